"""Planted breaks are each named right, with their place; 1,200 clean calls are silent.

Bodies have the structure of real clients: chats with tools, Anthropic's messages with rolling marks of the
cache, and responses. The engine here finds what a prefix cache would, in blocks of 16 tokens of 4 bytes.
"""

from __future__ import annotations

import copy
import itertools
import json
import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from prometheus_client import generate_latest
from tests.gateway.open_calls import open_call
from tests.observe.settled_calls import settled_call

from autellix_backend.gateway.calls import prefix_doctor
from autellix_backend.gateway.calls.prefix_doctor import PrefixDoctor, client_of
from autellix_backend.identity.outlines import (
    MAX_MESSAGES,
    MAX_PARTS,
    MAX_TOOLS,
    OWN_SIZE,
    Kind,
    Outline,
    transcript_of,
)
from autellix_backend.observe.metrics import GatewayMetrics
from autellix_backend.observe.settled_call import PrefixBreak

Body = dict[str, Any]
WORDS = ["the", "file", "def", "return", '"quoted"', "line\n", "x = 1;", "path/to", "{}", "7", "né"]
CLAUDE = "claude-cli/2.1.233 (external, cli)"


class Engine:
    """A prefix cache that holds every prompt, and the doctor of the gateway before it."""

    def __init__(self) -> None:
        self.metrics = GatewayMetrics()
        self.doctor = PrefixDoctor(self.metrics, idle_s=600.0)
        self.prompts: dict[tuple[str, str, str, str], list[str]] = {}
        self.now = 1.0
        self.numbers = itertools.count()

    def call(
        self,
        body: Body,
        *,
        engine: str = "a",
        thread: str = "0",
        is_evicted: bool = False,
        inactive_s: float = 0.0,
        program: str = "p",
        agent: str = CLAUDE,
        tenant: str = "",
    ) -> PrefixBreak | None:
        """Serve a call of a program, and return what the doctor finds."""
        key = f"k{next(self.numbers)}"
        headers = {"x-autellix-program-id": program, "x-autellix-thread-id": thread, "user-agent": agent}
        call = open_call(
            headers, key=key, now=self.now, body=json.dumps(body).encode(), engine=engine, tenant=tenant
        )
        prompt = self._prompt(body)
        known = self.prompts.setdefault((engine, str(body["model"]), f"{tenant}/{program}", thread), [])
        common = max((_common(prompt, each) for each in known[-4:]), default=0)
        found = 0 if is_evicted else common // 64 * 16
        known.append(prompt)
        self.now += 2.0
        settled = settled_call(
            program_id=program,
            thread_id=thread,
            engine=engine,
            model=body["model"],
            began_s=self.now - 2.0,
            settled_s=self.now - 1.0,
            prompt_tokens=len(prompt) // 4,
            cached_tokens=found,
            inactive_s=inactive_s,
            tenant=tenant,
        )
        return self.doctor.examine(call, settled).prefix_break

    @staticmethod
    def _prompt(body: Body) -> str:
        """Return what a template makes of a body; marks of the cache are in it here, as in some servers."""
        parts = [body.get("tools", []), body.get("system", ""), body.get("instructions", "")]
        return json.dumps(parts) + "".join(json.dumps(each) for each in body.get("messages") or body["input"])

    def metric(self) -> str:
        return generate_latest(self.metrics.registry).decode()


def _common(one: str, other: str) -> int:
    """Return the length of what two texts begin with."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[:middle] == other[:middle] else (low, middle - 1)
    return low


class Agent:
    """A coding agent whose transcript grows by an answer and what its tool returned."""

    def __init__(self, seed: int, dialect: str = "chat") -> None:
        self.random = random.Random(seed)
        self.dialect = dialect
        self.tools = [self._tool(name) for name in ("read", "write", "bash", "search", "edit")]
        self.system = self.text(3000)
        self.turns: list[Body] = [
            {"role": "user", "content": self._content("now is 12:00:01\n" + self.text(800))}
        ]

    def text(self, size: int) -> str:
        return " ".join(self.random.choices(WORDS, k=size // 5))

    def _content(self, text: str) -> Any:
        return [{"type": "text", "text": text}] if self.dialect == "messages" else text

    def _tool(self, name: str) -> Body:
        schema = {"type": "object", "properties": {"path": {"type": "string", "description": self.text(60)}}}
        if self.dialect == "chat":
            function = {"name": name, "description": self.text(400), "parameters": schema}
            return {"type": "function", "function": function}
        key = "input_schema" if self.dialect == "messages" else "parameters"
        return {"name": name, "description": self.text(400), key: schema}

    def step(self) -> None:
        number = f"call_{self.random.randrange(10**9)}"
        answer, returned = self.text(200), self.text(self.random.randrange(200, 4000))
        if self.dialect == "chat":
            function = {"name": "read", "arguments": json.dumps({"path": self.text(20)})}
            calls = [{"id": number, "type": "function", "function": function}]
            self.turns += [
                {"role": "assistant", "content": answer, "tool_calls": calls},
                {"role": "tool", "tool_call_id": number, "content": returned},
            ]
        elif self.dialect == "messages":
            use = {"type": "tool_use", "id": number, "name": "read", "input": {"path": self.text(20)}}
            result = {"type": "tool_result", "tool_use_id": number, "content": returned}
            self.turns += [
                {"role": "assistant", "content": [{"type": "text", "text": answer}, use]},
                {"role": "user", "content": [result]},
            ]
        else:
            self.turns += [
                {"type": "function_call", "call_id": number, "name": "read", "arguments": "{}"},
                {"type": "function_call_output", "call_id": number, "output": returned},
            ]

    def body(self) -> Body:
        turns = copy.deepcopy(self.turns)
        if self.dialect == "messages":
            system = [{"type": "text", "text": self.system, "cache_control": {"type": "ephemeral"}}]
            return {"model": "m", "tools": self.tools, "system": system, "messages": turns}
        if self.dialect == "responses":
            return {"model": "m", "tools": self.tools, "instructions": self.system, "input": turns}
        return {
            "model": "m",
            "tools": self.tools,
            "messages": [{"role": "system", "content": self.system}, *turns],
        }


def _changes_tool(body: Body) -> None:
    body["tools"][3]["function"]["description"] += " (2 servers)"


def _changes_system(body: Body) -> None:
    body["messages"][0]["content"] = "Today you are terse." + body["messages"][0]["content"]


def _stamps(body: Body) -> None:
    message = body["messages"][1]
    message["content"] = message["content"].replace("12:00:01", "12:00:42")


def _marks(body: Body) -> None:
    body["messages"][1]["cache_control"] = {"type": "ephemeral"}


def _edits(body: Body) -> None:
    body["messages"][4]["content"] += "[trimmed]"


def _compacts(body: Body) -> None:
    summary = {"role": "user", "content": "A summary of what came before. " * 90}
    body["messages"] = [body["messages"][0], summary]


def _delegates(body: Body) -> None:
    body["messages"] = [
        {"role": "system", "content": "You search files. " * 200},
        {"role": "user", "content": "Where is main? " * 50},
    ]


PLANTED: list[tuple[Callable[[Body], None], Kind, str]] = [
    (_changes_tool, Kind.TOOLS, "tools[3].function.description"),
    (lambda body: body["tools"].pop(), Kind.TOOLS, "tools[4]"),
    (lambda body: body["tools"].reverse(), Kind.TOOL_ORDER, "tools[0]"),
    (_changes_system, Kind.SYSTEM, "messages[0].content"),
    (_stamps, Kind.TIMESTAMP, "messages[1].content"),
    (_marks, Kind.CACHE_CONTROL, "messages[1].cache_control"),
    (_edits, Kind.MESSAGE, "messages[4]"),
    (_compacts, Kind.COMPACTION, "messages[1].content"),
    (_delegates, Kind.SUB_AGENT, ""),
    (lambda body: body.update(model="adapter"), Kind.MODEL, "model"),
]


def played(engine: Engine, steps: int = 6) -> Agent:
    agent = Agent(7)
    for _ in range(steps):
        assert engine.call(agent.body()) is None
        agent.step()
    return agent


@pytest.mark.parametrize(
    ("change", "kind", "path"), PLANTED, ids=[f"{kind} {path}" for _, kind, path in PLANTED]
)
def test_each_planted_break_is_named_with_its_place(
    change: Callable[[Body], None], kind: Kind, path: str
) -> None:
    engine = Engine()
    agent = played(engine)
    body = copy.deepcopy(agent.body())
    change(body)
    found = engine.call(body)
    assert found is not None
    assert (found.kind, found.path) == (kind, path)
    assert found.found_tokens < found.expected_tokens <= found.prompt_tokens
    assert f'prefix_breaks_total{{client="claude-cli/2.1.233",kind="{kind}"}} 1.0' in engine.metric()
    # The next call goes on from the changed one, or from what a sub-agent has left alone.
    if kind is Kind.SUB_AGENT:
        body = agent.body()
    body["messages"] += [{"role": "assistant", "content": "ok"}, {"role": "user", "content": "go on"}]
    assert engine.call(body) is None


@pytest.mark.parametrize(
    ("how", "kind"),
    [
        ({"engine": "b"}, Kind.MOVED),
        ({"is_evicted": True}, Kind.EVICTED),
        ({"is_evicted": True, "inactive_s": 3.0}, Kind.MADE_WAY),
    ],
)
def test_an_equal_prefix_was_lost_by_the_engine(how: dict[str, Any], kind: Kind) -> None:
    engine = Engine()
    agent = played(engine)
    found = engine.call(agent.body(), **how)
    assert found is not None
    assert (found.kind, found.path, found.found_tokens) == (kind, "", 0)


@pytest.mark.parametrize("dialect", ["chat", "messages", "responses"])
def test_clean_calls_are_silent(dialect: str) -> None:
    """Programs side by side, with sub-agents in threads of their own, and calls that are sent again."""
    engine, chance = Engine(), random.Random(3)
    agents: dict[tuple[int, str], tuple[int, Agent]] = {}
    for number in range(400):
        place = (chance.randrange(6), chance.choice(["0", "sub"]))
        began, agent = agents.get(place, (0, None))
        if agent is None or len(agent.turns) > 60:
            began, agent = agents[place] = (number, Agent(number, dialect))
        program = f"p{place[0]}-{began}"
        assert engine.call(agent.body(), program=program, thread=place[1]) is None
        if chance.random() < 0.05:
            assert engine.call(agent.body(), program=program, thread=place[1]) is None
        agent.step()
    assert "prefix_breaks_total{" not in engine.metric()


def test_marks_that_roll_without_harm_are_silent() -> None:
    """Where the template leaves the marks out, all is found."""
    engine = Engine()
    agent = Agent(1, "messages")
    unmarked = Engine._prompt
    for _ in range(30):
        body = agent.body()
        prompt = unmarked(body)
        for turn in body["messages"][-2:]:
            turn["content"][-1]["cache_control"] = {"type": "ephemeral"}
        engine._prompt = lambda _, prompt=prompt: prompt  # type: ignore[misc, method-assign]
        assert engine.call(body) is None
        agent.step()


def test_a_call_beside_the_one_before_is_not_judged() -> None:
    engine = Engine()
    agent = played(engine)
    engine.now -= 1.5
    assert engine.call(agent.body(), is_evicted=True) is None


def test_nothing_of_a_text_is_kept() -> None:
    engine = Engine()
    agent = Agent(2)
    agent.system = "a secret of the house " * 200
    for _ in range(3):
        engine.call(agent.body())
        agent.step()
    kept = engine.doctor._programs.get("", "p")
    assert kept is not None
    outline = kept[-1].outline
    text = repr([outline._tools, outline._system, outline._messages, outline._boundaries])
    assert "secret" not in text
    assert "path/to" not in text


MANY: dict[str, list[Any]] = {
    "values": [1] * 100_000,
    "lists": [[]] * 50_000,
    "tools": [{"type": "function", "function": {"name": f"f{number}"}} for number in range(5_000)],
    "parts": [{f"part{part}-{number}": part for part in range(100)} for number in range(MAX_TOOLS)],
}


@pytest.mark.parametrize("tools", MANY.values(), ids=MANY)
def test_an_outline_is_small_whatever_a_client_sends(tools: list[Any]) -> None:
    """Engines ignore tools that they are told not to call, and fields of other routes."""
    fields = {
        name: msgspec.Raw(msgspec.json.encode(value))
        for name, value in {"tools": tools, "messages": [1] * 100_000, "system": [{"a": 1}] * 1_000}.items()
    }
    messages = transcript_of(fields)
    assert messages is not None
    outline = Outline(fields, messages)
    assert outline.size <= OWN_SIZE + (2 * MAX_PARTS + 1) * (MAX_TOOLS + 1) + MAX_MESSAGES
    fields["tools"] = msgspec.Raw(msgspec.json.encode([*tools, {}]))
    found = outline.first_break(Outline(fields, messages))
    assert found is not None
    assert found.kind is Kind.TOOLS


def test_a_tenant_with_large_outlines_displaces_its_own_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_doctor, "MAX_DIGESTS", 20_000)
    engine, quiet = Engine(), Agent(5)
    assert engine.call(quiet.body(), tenant="quiet") is None
    large = {"model": "m", "tools": MANY["tools"][:MAX_TOOLS], "messages": [{"role": "user", "content": "a"}]}
    for number in range(60):
        engine.call(large, program=f"p{number}", tenant="hostile")
    kept = engine.doctor._programs
    assert sum(each.outline.size for known in kept.values() for each in known) <= 20_000
    assert 1 < kept.count("hostile") < 60
    quiet.step()
    quiet.tools[3]["function"]["description"] += " (2 servers)"
    found = engine.call(quiet.body(), tenant="quiet")
    assert found is not None
    assert (found.kind, found.path) == (Kind.TOOLS, "tools[3].function.description")
    # A program of the same name is another one's.
    assert engine.call(quiet.body(), tenant="hostile", is_evicted=True) is None


@pytest.mark.parametrize(
    ("agent", "client"),
    [
        (CLAUDE, "claude-cli/2.1.233"),
        ("OpenAI/Python 1.3", "OpenAI/Python"),
        ("curl", "unknown"),
        ("", "unknown"),
        ("x" * 500, "unknown"),
    ],
)
def test_a_client_is_known_by_name_and_version(agent: str, client: str) -> None:
    assert client_of({"user-agent": agent}) == client
