"""The receipts of calls, in the results of AutoGen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import autellix

if TYPE_CHECKING:
    from collections.abc import Callable

    from autellix.testing import RecordingBackend


def check(result: Any, backend: RecordingBackend) -> None:
    found = autellix.receipt(result)
    assert found is not None
    assert found.call_id == backend.recorded[-1].call_id


@pytest.mark.usefixtures("sdk")
def test_receipt_of_a_model_client(client: Any, play: Callable[..., Any], backend: RecordingBackend) -> None:
    from autogen_core.models import UserMessage

    autellix.configure(backend.url)
    message = UserMessage(content="x", source="user")

    async def run() -> None:
        check(await client.create([message]), backend)
        check([item async for item in client.create_stream([message])], backend)

    play(run())


@pytest.mark.usefixtures("sdk")
def test_receipt_of_an_agent_and_a_team(
    agent: Callable[..., Any], play: Callable[..., Any], backend: RecordingBackend
) -> None:
    from autogen_agentchat.conditions import MaxMessageTermination
    from autogen_agentchat.teams import RoundRobinGroupChat

    autellix.configure(backend.url)

    async def run() -> None:
        check(await agent("alone").run(task="x"), backend)
        team = RoundRobinGroupChat([agent("a"), agent("b")], termination_condition=MaxMessageTermination(3))
        check(await team.run(task="x"), backend)

    play(run())
