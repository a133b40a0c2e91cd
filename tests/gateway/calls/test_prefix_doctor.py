"""Planted breaks, and those of clients' versions by public reports, are named right; clean calls are silent.

The engine here finds what a prefix cache would, in blocks of 16 tokens of 4 bytes. It renders bodies as vLLM
does: without the marks of a cache, and without Claude Code's billing line where it is a block of its own.
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
from tests.gateway.calls.agent_clients import (
    CLIENTS,
    Body,
    ClaudeCode,
    Client,
    Codex,
    LangGraph,
    OpenCode,
)
from tests.gateway.open_calls import open_call
from tests.observe.settled_calls import settled_call

from autellix_backend.gateway.calls import prefix_doctor
from autellix_backend.gateway.calls.prefix_doctor import PrefixDoctor, client_of
from autellix_backend.identity.billing_line import without_billing_line
from autellix_backend.identity.prefix_breaks import MAX_PATH, Kind, first_break
from autellix_backend.observe.metrics import GatewayMetrics
from autellix_backend.observe.settled_call import PrefixBreak


class Engine:
    """A prefix cache that holds every prompt, and the doctor of the gateway before it."""

    def __init__(self, *, keeps_marks: bool = False, merges_system: bool = False) -> None:
        self.keeps_marks, self.merges_system = keeps_marks, merges_system
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
        agent: str = ClaudeCode.agent,
        tenant: str = "",
    ) -> PrefixBreak | None:
        """Serve a call of a program, and return what the doctor finds."""
        headers = {"x-autellix-program-id": program, "x-autellix-thread-id": thread, "user-agent": agent}
        key, data = f"k{next(self.numbers)}", json.dumps(body).encode()
        call = open_call(headers, key=key, now=self.now, body=data, engine=engine, tenant=tenant)
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

    def kept(self) -> list[tuple[str, str]]:
        """Return the tenants and programs whose bodies are kept, in the order of their last call."""
        programs = self.doctor._programs
        assert (
            sum(each.size_bytes for known in programs.values() for each in known) <= prefix_doctor.MAX_BYTES
        )
        return [(tenant, program) for tenant, known in programs._scopes.items() for program in known]

    def _prompt(self, body: Body) -> str:
        """Return what a template makes of a body."""
        blocks = body.get("system", [])
        system = [each for each in blocks if without_billing_line(each["text"].encode())]
        turns = body.get("messages") or body["input"]
        if self.merges_system:
            turns = sorted(turns, key=lambda turn: turn.get("role") != "system")
        parts = [body.get("tools", []), system, body.get("instructions", ""), *turns]
        return "".join(json.dumps(each if self.keeps_marks else _unmarked(each)) for each in parts)

    def metric(self) -> str:
        return generate_latest(self.metrics.registry).decode()


def _unmarked(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _unmarked(each) for name, each in value.items() if name != "cache_control"}
    return [_unmarked(each) for each in value] if isinstance(value, list) else value


def _common(one: str, other: str) -> int:
    """Return the length of what two texts begin with."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[:middle] == other[:middle] else (low, middle - 1)
    return low


def played(engine: Engine, client: Client, steps: int = 6) -> Client:
    for _ in range(steps):
        assert engine.call(client.body()) is None
        client.step()
    return client


def _changes_tool(body: Body) -> None:
    body["tools"][3]["function"]["description"] += " (2 servers)"


def _reorders_keys(body: Body) -> None:
    properties = body["tools"][2]["function"]["parameters"]["properties"]
    properties["path"] = properties.pop("path")


def _changes_system(body: Body) -> None:
    body["messages"][0]["content"] = "Today you are terse." + body["messages"][0]["content"]


def _numbers(body: Body) -> None:
    body["messages"][2]["content"] = "task 17:\n" + body["messages"][2]["content"]


def _marks(body: Body) -> None:
    body["messages"][2]["cache_control"] = {"type": "ephemeral"}


def _edits(body: Body) -> None:
    body["messages"][4]["content"] += "[trimmed]"


def _compacts(body: Body) -> None:
    summary = {"role": "user", "content": "A summary of what came before. " * 90}
    body["messages"] = [*body["messages"][:2], summary]


def _delegates(body: Body) -> None:
    body["messages"] = [
        {"role": "system", "content": "You search files. " * 200},
        {"role": "user", "content": "Where is main? " * 50},
    ]


def _asks_anew(body: Body) -> None:
    """As a batch of tasks with one system prompt does in a thread."""
    body["messages"] = [
        *body["messages"][:2],
        *({"role": "user", "content": f"{n}" * 600} for n in range(20)),
    ]


PLANTED: list[tuple[Callable[[Body], None], Kind, str]] = [
    (_changes_tool, Kind.TOOLS, "tools[3].function.description"),
    (_reorders_keys, Kind.TOOLS, "tools[2].function.parameters.properties.pattern"),
    (lambda body: body["tools"].pop(), Kind.TOOLS, "tools[6]"),
    (lambda body: body["tools"].reverse(), Kind.TOOL_ORDER, "tools[0]"),
    (_changes_system, Kind.SYSTEM, "messages[0].content"),
    (lambda body: body["messages"].pop(1), Kind.SYSTEM, "messages[1]"),
    (_numbers, Kind.MESSAGE, "messages[2].content"),
    (_marks, Kind.CACHE_CONTROL, "messages[2].cache_control"),
    (_edits, Kind.MESSAGE, "messages[4].content"),
    (_compacts, Kind.COMPACTION, "messages[2].content"),
    (_delegates, Kind.SUB_AGENT, ""),
    (_asks_anew, Kind.SUB_AGENT, ""),
    (lambda body: body.update(model="adapter"), Kind.MODEL, "model"),
]


@pytest.mark.parametrize(
    ("change", "kind", "path"), PLANTED, ids=[f"{kind} {path}" for _, kind, path in PLANTED]
)
def test_each_planted_break_is_named_with_its_place(
    change: Callable[[Body], None], kind: Kind, path: str
) -> None:
    engine = Engine(keeps_marks=True)
    client = played(engine, OpenCode(7))
    body = copy.deepcopy(client.body())
    change(body)
    found = engine.call(body)
    assert found is not None
    assert (found.kind, found.path.partition(" line")[0]) == (kind, path)
    assert found.found_tokens < found.expected_tokens <= found.prompt_tokens
    assert f'prefix_breaks_total{{client="claude-cli/2.1.233",kind="{kind}"}} 1.0' in engine.metric()
    # The next call goes on from the changed one, or from what a sub-agent has left alone.
    if kind is Kind.SUB_AGENT:
        body = client.body()
    body["messages"] += [{"role": "assistant", "content": "ok"}, {"role": "user", "content": "go on"}]
    assert engine.call(body) is None


def _passes_midnight(client: Client) -> None:
    assert isinstance(client, OpenCode)
    client.day = "Thu Jun 18 2026"


def _moves(client: Client) -> None:
    assert isinstance(client, OpenCode)
    client.folder = "/work/app/backend"


def _unchanged(client: Client) -> None:
    """Its requests differ by themselves."""


REPORTED: dict[str, tuple[Engine, Client, Callable[[Client], None], Kind, str]] = {
    "anthropics/claude-code#87227: system messages amid a transcript, which vLLM merges for some templates": (
        Engine(merges_system=True),
        ClaudeCode(1, reminds=True),
        _unchanged,
        Kind.LATE_SYSTEM,
        "messages[3]",
    ),
    "sgl-project/sglang#36877: marks of the cache roll, and get into the prompt": (
        Engine(keeps_marks=True),
        ClaudeCode(2, bills=False),
        _unchanged,
        Kind.CACHE_CONTROL,
        "messages[1].content[1].cache_control",
    ),
    "anthropics/claude-agent-sdk-typescript#269: reminders of earlier messages are stripped": (
        Engine(),
        ClaudeCode(3, strips=True),
        _unchanged,
        Kind.MESSAGE,
        "messages[0].content",
    ),
    "jundot/omlx#2333: old results are cleared": (
        Engine(),
        ClaudeCode(4, clears=True),
        _unchanged,
        Kind.MESSAGE,
        "messages[2].content[0].content",
    ),
    "openai/codex#2610: tools of MCP servers in the order of a hash map": (
        Engine(),
        Codex(5, shuffles=True),
        _unchanged,
        Kind.TOOL_ORDER,
        "tools[3]",
    ),
    "anomalyco/opencode#32622: a date in the system prompt, at midnight": (
        Engine(),
        OpenCode(6),
        _passes_midnight,
        Kind.TIMESTAMP,
        "messages[1].content line 4",
    ),
    "anomalyco/opencode#14743: the directory in a tool's description": (
        Engine(),
        OpenCode(7),
        _moves,
        Kind.TOOLS,
        "tools[0].function.description",
    ),
    "trim_messages of LangChain: a window over the last messages": (
        Engine(),
        LangGraph(8, trims=True),
        _unchanged,
        Kind.COMPACTION,
        "messages[1].",
    ),
}


@pytest.mark.parametrize("report", REPORTED)
def test_a_reported_break_of_a_client_is_named(report: str) -> None:
    engine, client, change, kind, path = REPORTED[report]
    found: PrefixBreak | None = None
    for number in range(12):
        if number == 6:
            change(client)
        found = engine.call(client.body())
        if found is not None:
            break
        client.step()
    assert found is not None
    assert found.kind == kind
    assert found.path.startswith(path)


def test_a_billing_line_in_instructions_is_named() -> None:
    """farion1231/cc-switch#2350: converted to OpenAI's responses, where no server drops it."""
    engine, client = Engine(), Codex(9)
    found = []
    for number in range(3):
        body = client.body()
        line = f"x-anthropic-billing-header: cc_version=2.1.119.47e; cch=a77{number};\n\n"
        found.append(engine.call({**body, "instructions": line + body["instructions"]}))
        client.step()
    assert found[0] is None
    assert [(each.kind, each.path) for each in found[1:] if each] == [(Kind.BILLING_LINE, "instructions")] * 2


def test_a_merged_system_message_is_named_by_its_place() -> None:
    """farion1231/cc-switch#6626, and #6789: each reminder that a converter puts in front."""
    engine, client = Engine(merges_system=True), ClaudeCode(10, reminds=True)
    assert engine.call(client.body()) is None
    for _ in range(12):
        known = len(client.turns)
        client.step()
        body = client.body()
        late = [place for place in range(known, len(client.turns)) if client.turns[place]["role"] == "system"]
        found = engine.call(body)
        paths = [] if found is None else [(found.kind, found.path)]
        assert paths == [(Kind.LATE_SYSTEM, f"messages[{place}]") for place in late]


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
    client = played(engine, OpenCode(7))
    found = engine.call(client.body(), **how)
    assert found is not None
    assert (found.kind, found.path, found.found_tokens) == (kind, "", 0)


@pytest.mark.parametrize("make", CLIENTS)
def test_clean_calls_are_silent(make: type[Client]) -> None:
    """Programs side by side, with sub-agents in threads of their own, and calls that are sent again."""
    engine, chance, calls = Engine(), random.Random(3), 0
    clients: dict[tuple[int, str], tuple[int, Client]] = {}
    for number in range(300):
        place = (chance.randrange(6), chance.choice(["0", "sub"]))
        began, client = clients.get(place, (0, None))
        if client is None or len(client.turns) > 40:
            began, client = clients[place] = (number, make(number))
        program, thread = f"p{place[0]}-{began}", place[1]
        for _ in range(1 + (chance.random() < 0.05)):
            assert engine.call(client.body(), program=program, thread=thread, agent=make.agent) is None
            calls += 1
        client.step()
    assert calls >= 300
    assert "prefix_breaks_total{" not in engine.metric()


def test_conversations_of_one_thread_are_told_apart() -> None:
    """A sub-agent without a thread of its own begins once; then each goes on from its own last call."""
    engine = Engine()
    main, sub = played(engine, ClaudeCode(1)), OpenCode(2)
    found = engine.call(sub.body())
    assert found is not None
    assert found.kind is Kind.SUB_AGENT
    for _ in range(8):
        assert engine.call(main.body()) is None
        sub.step()
        assert engine.call(sub.body()) is None
        main.step()


def test_a_short_question_beside_a_conversation_is_silent_and_takes_no_place() -> None:
    engine = Engine()
    client = played(engine, ClaudeCode(1))
    for _ in range(6):
        question = {"model": "m", "messages": [{"role": "user", "content": "A title for this, please."}]}
        assert engine.call(question) is None
        assert engine.call(client.body()) is None
        client.step()


def test_a_call_beside_the_one_before_is_not_judged() -> None:
    engine = Engine()
    client = played(engine, OpenCode(7))
    engine.now -= 1.5
    assert engine.call(client.body(), is_evicted=True) is None


def test_comparing_is_bounded_in_time() -> None:
    """A client that breaks each of its prefixes takes no more of the gateway than a share."""
    now_s = 0.0

    def clock() -> float:
        nonlocal now_s
        now_s += 0.2
        return now_s

    engine, client = Engine(), OpenCode(1)
    engine.doctor = PrefixDoctor(engine.metrics, idle_s=600.0, clock=clock)
    engine.call(client.body())
    kinds = [found.kind for _ in range(3) if (found := engine.call(client.body(), is_evicted=True))]
    assert kinds == [Kind.EVICTED, Kind.EVICTED, Kind.UNEXAMINED]
    now_s += 1.0 / prefix_doctor.MAX_SHARE
    found = engine.call(client.body(), is_evicted=True)
    assert found is not None
    assert found.kind is Kind.EVICTED
    assert 'prefix_calls_total{client="claude-cli/2.1.233"} 3.0' in engine.metric()


def test_bodies_are_kept_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The programs whose last call is the longest ago are forgotten first, so are ended and idle ones."""
    size = len(json.dumps(ClaudeCode(1).body()))
    monkeypatch.setattr(prefix_doctor, "MAX_BYTES", 3 * size + size // 2)
    engine, client = Engine(), ClaudeCode(1)
    for program in ("a", "b", "c", "a", "d"):
        engine.call(client.body(), program=program)
    assert engine.kept() == [("", "c"), ("", "a"), ("", "d")]
    engine.doctor.on_program_ended("", "a")
    engine.doctor.on_program_ended("", "never")
    assert engine.kept() == [("", "c"), ("", "d")]
    engine.doctor.expire(engine.now + 599.0 - 3.0)
    assert engine.kept() == [("", "d")]
    engine.doctor.expire(engine.now + 601.0)
    assert not engine.kept()


def test_a_tenant_with_large_bodies_displaces_its_own_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    large = ClaudeCode(1).body()
    monkeypatch.setattr(prefix_doctor, "MAX_BYTES", 5 * len(json.dumps(large)))
    engine, quiet = Engine(), OpenCode(5)
    assert engine.call(quiet.body(), tenant="quiet") is None
    for number in range(20):
        engine.call(large, program=f"p{number}", tenant="hostile")
    assert [tenant for tenant, _ in engine.kept()].count("hostile") == 4
    quiet.folder = "/work/other"
    found = engine.call(quiet.body(), tenant="quiet")
    assert found is not None
    assert (found.kind, found.path) == (Kind.TOOLS, "tools[0].function.description line 16")
    # A program of the same name is another one's.
    assert engine.call(quiet.body(), tenant="hostile", is_evicted=True) is None


MANY: dict[str, Any] = {
    "values": [1] * 300_000,
    "lists": [[]] * 150_000,
    "objects": [{"a": 1, "b": 2, "c": 3, "d": 4}] * 20_000,
    "names": {f"name{number}": 1 for number in range(100_000)},
    "marks": [{"cache_control": None}] * 19_000,
    "blanks": [{"cache_control": " " * 90_000}] * 20,
}


@pytest.mark.parametrize("value", MANY.values(), ids=MANY)
def test_hostile_values_are_compared_within_bounds(value: Any) -> None:
    """Engines ignore tools that they are told not to call, and fields of other routes."""
    first = {"tools": value, "messages": [{"role": "user", "content": value}]}
    second = {"tools": [value, 1], "messages": [*first["messages"], {"role": "system", "content": value}]}
    old, new = (
        {name: msgspec.Raw(msgspec.json.encode(part)) for name, part in body.items()}
        for body in (first, second)
    )
    found = first_break(old, new)
    assert found is not None
    assert found.kind is Kind.TOOLS
    assert len(found.path) <= MAX_PATH


def test_a_body_that_is_too_long_or_has_no_transcript_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine()
    engine.call({"model": "m", "input": "a text"})
    engine.call({**Codex(1).body(), "previous_response_id": "resp_1"})
    monkeypatch.setattr("autellix_backend.identity.prefix_breaks.MAX_READ_BYTES", 2000)
    engine.call(Codex(1).body())
    assert not engine.kept()


def test_a_finding_has_no_text_of_the_client() -> None:
    engine = Engine()
    client = played(engine, OpenCode(7))
    assert isinstance(client, OpenCode)
    client.rules = "a secret of the house " * 200
    found = engine.call(client.body())
    assert found is not None
    assert (found.kind, found.path) == (Kind.SYSTEM, "messages[1].content line 6")


@pytest.mark.parametrize(
    ("agent", "client"),
    [
        (ClaudeCode.agent, "claude-cli/2.1.233"),
        (Codex.agent, "codex_cli_rs/0.145.0"),
        (OpenCode.agent, "opencode/1.4.3"),
        (LangGraph.agent, "OpenAI/Python"),
        ("curl", "unknown"),
        ("", "unknown"),
        ("x" * 500, "unknown"),
    ],
)
def test_a_client_is_known_by_name_and_version(agent: str, client: str) -> None:
    assert client_of({"user-agent": agent}) == client
