"""Every way of an OpenAI client to call, and the other clients that are annotated."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, Any

import httpx
import openai
import pydantic
import pytest
from tests.waiting import PATIENCE_S, until

import autellix

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.sdk.conftest import Recording

MESSAGES: Any = [{"role": "user", "content": "x"}]


class Reply(pydantic.BaseModel):
    word: str


@pytest.fixture
def client(sdk: None, backend: Recording) -> openai.OpenAI:
    autellix.configure(backend.url)
    return openai.OpenAI(base_url=backend.url, api_key="key", max_retries=0)


CALLS: dict[str, Callable[[openai.OpenAI], object]] = {
    "chat": lambda client: client.chat.completions.create(model="m", messages=MESSAGES),
    "responses": lambda client: client.responses.create(model="m", input="x"),
    "completions": lambda client: client.completions.create(model="m", prompt="x"),
    "embeddings": lambda client: client.embeddings.create(model="m", input="x", encoding_format="float"),
    "parse": lambda client: client.chat.completions.parse(
        model="m", messages=MESSAGES, response_format=Reply
    ),
    "raw": lambda client: client.chat.completions.with_raw_response.create(
        model="m", messages=MESSAGES
    ).parse(),
    "with_options": lambda client: client.with_options(timeout=9).chat.completions.create(
        model="m", messages=MESSAGES
    ),
    "post": lambda client: client.post("/chat/completions", cast_to=object, body={"messages": MESSAGES}),
}


@pytest.mark.parametrize("kind", CALLS)
def test_every_kind_of_call_is_annotated(client: openai.OpenAI, backend: Recording, kind: str) -> None:
    backend.answer = lambda _body: '{"word": "hello"}'
    with client, autellix.program("agent"):
        CALLS[kind](client)
    (call,) = backend.calls
    assert call["x-autellix-program-name"] == "agent"
    assert call["x-autellix-parent-ids"] == "-"


def test_streaming_response_is_annotated(client: openai.OpenAI, backend: Recording) -> None:
    with client, autellix.program("agent"):
        create = client.chat.completions.with_streaming_response.create
        with create(model="m", messages=MESSAGES) as response:
            assert "hello" in "".join(response.iter_lines())
    assert backend.calls[0]["x-autellix-program-name"] == "agent"


def test_azure_client_is_annotated(client: openai.OpenAI, backend: Recording) -> None:
    azure = openai.AzureOpenAI(
        azure_endpoint=f"http://127.0.0.1:{backend.port}", api_key="azure", api_version="1"
    )
    with azure, client, autellix.program("agent"):
        azure.chat.completions.create(model="m", messages=MESSAGES)
    assert backend.calls[0]["x-autellix-program-name"] == "agent"
    backend.wait_for("POST", "/sessions")
    assert backend.credentials == ["azure"]


def test_cancelled_call_leaves_nothing_behind(client: openai.OpenAI, backend: Recording) -> None:
    from autellix._instrument.openai import in_flight

    has_come, may_answer = threading.Event(), threading.Event()

    def answer_late(_body: object) -> str:
        has_come.set()
        may_answer.wait(PATIENCE_S)
        return "late"

    backend.answer = answer_late

    async def main() -> None:
        async with openai.AsyncOpenAI(base_url=backend.url, api_key="key") as client:
            call = asyncio.create_task(client.chat.completions.create(model="m", messages=MESSAGES))
            await until(has_come.is_set)
            call.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await call
            may_answer.set()

    asyncio.run(main())
    client.close()
    assert len(backend.calls) == 1
    assert in_flight._by_key == {}


def test_anthropic_client_is_annotated(client: openai.OpenAI, backend: Recording) -> None:
    # Here, for it takes seconds to import.
    import anthropic

    async def main() -> None:
        url = f"http://127.0.0.1:{backend.port}"
        async with anthropic.AsyncAnthropic(base_url=url, api_key="key") as asynchronous:
            await asynchronous.messages.create(model="m", max_tokens=9, messages=MESSAGES)

    with (
        client,
        anthropic.Anthropic(base_url=f"http://127.0.0.1:{backend.port}", api_key="key") as claude,
        autellix.program("agent"),
    ):
        answer = claude.messages.create(model="m", max_tokens=9, messages=MESSAGES)
        asyncio.run(main())
    assert answer.content[0].text == "hello"  # type: ignore[union-attr]
    assert [call["x-autellix-program-name"] for call in backend.calls] == ["agent"] * 2
    backend.wait_for("POST", "/sessions")
    assert {str(credential).removeprefix("Bearer ") for credential in backend.credentials} == {"key"}


@pytest.mark.parametrize("package", ["httpx", "httpx2"])
def test_bare_clients_are_annotated_where_asked_for(
    client: openai.OpenAI, backend: Recording, package: str
) -> None:
    module: Any = pytest.importorskip(package)
    url = backend.url + "/chat/completions"

    async def main() -> None:
        async with module.AsyncClient() as asynchronous:
            await asynchronous.post(url, json={"messages": MESSAGES})

    def use() -> None:
        with module.Client() as bare:
            assert bare.post(url, json={"messages": MESSAGES}).status_code == 200
            bare.get(url)
        asyncio.run(main())

    with client, autellix.program("agent"):
        use()
        autellix.instrument(raw_http=True)
        use()
        client.chat.completions.create(model="m", messages=MESSAGES)
    names = [call.get("x-autellix-program-name") for call in backend.calls]
    assert names == [None, None, "agent", "agent", "agent"]
    ids = [call["x-autellix-call-id"] for call in backend.calls[2:]]
    assert [call["x-autellix-parent-ids"] for call in backend.calls[2:]] == ["-", ids[0], ids[1]]


def test_bare_clients_find_a_backend_by_its_answer(sdk: None, backend: Recording) -> None:
    autellix.instrument(raw_http=True)
    with autellix.program("agent"):
        for _ in range(2):
            httpx.post(backend.url + "/chat/completions", json={"messages": MESSAGES})
    assert [call.get("x-autellix-program-name") for call in backend.calls] == [None, "agent"]
    # Our own control API is no call.
    httpx.post(f"http://127.0.0.1:{backend.port}/autellix/v1/sessions", json={"session_id": "x"})
    assert len(backend.calls) == 2


def test_bare_clients_send_nothing_to_a_foreign_host(
    sdk: None, make_backend: Callable[..., Recording]
) -> None:
    foreign = make_backend(is_autellix=False)
    autellix.instrument(raw_http=True)
    for _ in range(2):
        httpx.post(foreign.url + "/chat/completions", json={"messages": MESSAGES})
    assert [name for call in foreign.calls for name in call if name.startswith("x-autellix")] == []


def test_client_alone_needs_no_other_package(run_script: Callable[..., str]) -> None:
    """Without site-packages there is nothing but the standard library."""
    import subprocess
    import sys
    from pathlib import Path

    sdk = Path(autellix.__file__).parents[1]
    script = (
        f"import sys; sys.path.insert(0, {str(sdk)!r}); import autellix, autellix.testing, autellix.web\n"
        "with autellix.program('a') as identity: print(identity.name)\n"
        "print(any(name in sys.modules for name in ('asyncio', 'openai', 'httpx')))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", script], capture_output=True, text=True, check=True, timeout=PATIENCE_S
    )
    assert done.stdout == "a\nFalse\n"


def test_a_frozen_clock_delays_no_call_and_no_exit(
    backend: Recording, run_script: Callable[..., str]
) -> None:
    """Test suites freeze all clocks of `time`, and so the timers of asyncio."""
    script = """
        import asyncio, sys, time
        import autellix
        from openai import AsyncOpenAI

        for name in ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"):
            setattr(time, name, lambda now=getattr(time, name)(): now)

        async def main():
            async with AsyncOpenAI(base_url=sys.argv[1], api_key="key", max_retries=0) as client:
                for _ in range(3):
                    with autellix.program("frozen"):
                        await client.completions.create(model="m", prompt="hi")

        asyncio.run(main())
    """
    run_script(script, backend.url)
    assert [call.get("x-autellix-program-name") for call in backend.calls][1:] == ["frozen"] * 2
