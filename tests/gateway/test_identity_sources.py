"""The source of each program's id in the answers of a gateway, by the names that clients send."""

from __future__ import annotations

from typing import Any

from tests.fakes.engine import CHAT_PATH
from tests.identity.recorded import RECORDED

from autellix_backend.identity.aliases import PROGRAM_SOURCES

HELLO: dict[str, Any] = {"model": "autellix.fake-model", "messages": [{"role": "user", "content": "hello"}]}


async def test_two_calls_of_a_client_are_one_program_with_its_source(serve: Any) -> None:
    async with serve() as rig:
        for sent in RECORDED:
            if sent.source not in PROGRAM_SOURCES:
                continue
            rig.engine.requests.clear()
            for _ in range(2):
                body = {**HELLO, **sent.body}
                async with rig.client.post(rig.url + CHAT_PATH, json=body, headers=sent.headers) as response:
                    assert response.headers["X-Autellix-Identity-Source"] == sent.source
                    assert response.headers["X-Autellix-Program-ID"] == sent.value
            [first, second] = rig.engine.calls
            assert first.xargs["autellix_program"] == second.xargs["autellix_program"] == sent.value
            assert second.xargs["autellix_service_s"] > 0


async def test_unnamed_chats_that_extend_each_other_are_one_program(serve: Any) -> None:
    async with serve() as rig:
        messages = [*HELLO["messages"]]
        told = []
        for _ in range(4):
            async with rig.client.post(rig.url + CHAT_PATH, json={**HELLO, "messages": messages}) as response:
                message = (await response.json())["choices"][0]["message"]
                told.append(
                    (
                        response.headers["X-Autellix-Identity-Source"],
                        response.headers["X-Autellix-Program-ID"],
                    )
                )
            messages += [
                {"role": "assistant", "content": message["content"]},
                {"role": "user", "content": "more"},
            ]
        assert [source for source, _ in told] == ["request", *["content-chain"] * 3]
        assert len({program for _, program in told[1:]}) == 1
        assert told[0][1] != told[1][1]
