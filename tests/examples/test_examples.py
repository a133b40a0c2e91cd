"""Each example runs, and its calls carry the identity that its text promises."""

from __future__ import annotations

import importlib.util
from collections import Counter
from typing import Any

import pytest
from tests.examples.runner import EXAMPLES, by_program, ids, parents, run_example

from autellix.testing import tool_call

TWO_QUESTIONS = (
    "from fastapi.testclient import TestClient\n"
    "from fastapi_service import app\n"
    "with TestClient(app) as client:\n"
    "    for _ in range(2):\n"
    "        answer = client.post('/questions', json={'text': 'swim?'})\n"
    "        assert answer.json()['answer']\n"
)
"""What a client of `fastapi_service` does."""


def needs(*modules: str) -> pytest.MarkDecorator:
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed here: {', '.join(missing)}")


def test_each_example_has_a_test() -> None:
    tested = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    # With real engines, in `test_at_a_gateway` and `tests/vllm_plugin/test_offline_agents`.
    tested |= {"grpo", "offline_agents"}
    assert {path.stem for path in EXAMPLES.glob("*.py")} <= tested


def test_openai_chat() -> None:
    """One program whose calls follow one another."""
    calls = run_example("openai_chat")
    assert [call.program_name for call in calls] == ["research"] * 3
    assert [parents(call) for call in calls] == [set(), ids(calls[:1]), ids(calls[1:2])]


def test_the_model_and_the_key_come_from_the_environment() -> None:
    calls = run_example("openai_chat", MODEL="a-model", AUTELLIX_API_KEY="a-key")
    assert {call.body["model"] for call in calls} == {"a-model"}
    assert {call.header("authorization") for call in calls} == {"Bearer a-key"}


def test_streaming() -> None:
    """The second call depends on the stream, and holds its text."""
    stream, shorten = run_example("streaming", answer=lambda _body: "The sea is wide.")
    assert stream.body["stream"] is True
    assert shorten.content == "Shorten this: The sea is wide."
    assert (stream.program_name, shorten.program_id) == ("story", stream.program_id)
    assert parents(shorten) == ids([stream])


def test_threads() -> None:
    """The critics are three threads of one program; the last call depends on all of them."""
    draft, *critics, rewrite = run_example("threads")
    assert {call.program_id for call in (draft, *critics, rewrite)} == {draft.program_id}
    assert len({call.thread_id for call in critics}) == 3
    assert [parents(call) for call in critics] == [ids([draft])] * 3
    assert parents(rewrite) == ids(critics)


@needs("langgraph", "langchain_openai")
def test_langgraph_agent() -> None:
    """Each call names its tool and holds the model to the schema; the last one answers from both results."""

    def answer(body: dict[str, Any]) -> str | dict[str, Any]:
        if "tools" not in body:
            return "Rome, and Italian."
        assert all(tool["function"]["strict"] for tool in body["tools"])
        return tool_call((body["tool_choice"]["function"]["name"], {"country": "Italy"}))

    first, second, last = run_example("langgraph_agent", answer=answer)
    assert {call.program_name for call in (first, second, last)} == {"geographer"}
    assert [parents(call) for call in (first, second, last)] == [set(), ids([first]), ids([second])]
    facts = " Use these facts: The capital of Italy is Rome. People in Italy speak Italian."
    assert last.content is not None
    assert last.content.endswith(facts)


@needs("langgraph", "langchain_openai")
def test_langgraph_fanout() -> None:
    """A run is a program; the branches are side by side."""
    plan, *branches, summary = run_example("langgraph_fanout")
    assert {call.program_name for call in (plan, *branches, summary)} == {"report"}
    assert [parents(call) for call in branches] == [ids([plan])] * 3
    assert parents(summary) == ids(branches)


@needs("autogen_agentchat", "autogen_ext")
def test_autogen_team() -> None:
    """A team is a program; each agent is a thread, and each turn depends on the one before."""
    calls = run_example("autogen_team")
    assert [call.program_name for call in calls] == ["essay"] * 4
    first, second, third, fourth = calls
    assert first.thread_id == third.thread_id != second.thread_id == fourth.thread_id
    assert [parents(call) for call in calls[1:]] == [ids([call]) for call in calls[:-1]]


@needs("agents")
def test_openai_agents() -> None:
    """The answer of the second agent depends on the call of the first, which names its tool."""

    def answer(body: dict[str, Any]) -> str | dict[str, Any]:
        if "tools" not in body:
            return "3.7 million"
        assert body["tools"][0]["function"]["strict"]
        return tool_call((body["tool_choice"]["function"]["name"], {"city": "Berlin"}))

    ask, conclude = run_example("openai_agents", answer=answer)
    assert (ask.program_name, conclude.program_id) == ("geographer", ask.program_id)
    assert "Berlin has 3.7 million inhabitants." in str(conclude.content)
    assert parents(conclude) == ids([ask])


@needs("fastapi", "uvicorn")
def test_fastapi_service() -> None:
    """Each request is a program, whose two first calls are side by side."""
    programs = by_program(run_example("fastapi_service", code=TWO_QUESTIONS))
    assert [len(calls) for calls in programs] == [3, 3]
    for *sides, conclusion in programs:
        assert conclusion.program_name == "POST /questions"
        assert parents(conclusion) == ids(sides)


def test_chat_sessions() -> None:
    """The turns are one program of one session, each after the last."""
    calls = run_example("chat_sessions")
    assert {(call.session_id, call.program_id) for call in calls} == {
        ("conversation-7", "conversation-7-chat")
    }
    assert [parents(call) for call in calls] == [set(), ids(calls[:1]), ids(calls[1:2])]


def test_offline_batch() -> None:
    """Each document is a program of two calls."""
    programs = by_program(run_example("offline_batch", DOCUMENTS="5"))
    assert [len(calls) for calls in programs] == [2] * 5
    for summary, keywords in programs:
        assert summary.program_name == "digest"
        assert parents(keywords) == ids([summary])


def test_rl_rollouts() -> None:
    """Twelve programs for each step's session, in groups of four, with a hint of their length."""
    programs = by_program(run_example("rl_rollouts"))
    sessions = Counter(str(calls[0].session_id)[: len("step-0")] for calls in programs)
    assert sessions == {"step-0": 12, "step-1": 12}
    groups = Counter(calls[0].header("x-autellix-group") for calls in programs)
    assert groups == {f"{step}.{prompt}": 4 for step in range(2) for prompt in range(3)}
    assert {len(calls) for calls in programs} == {1, 2, 3}
    assert {call.program_name for calls in programs for call in calls} == {"rollout"}
    assert {calls[0].header("x-autellix-expected-calls") for calls in programs} == {"3"}
