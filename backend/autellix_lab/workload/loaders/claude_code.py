"""Claude Code sessions of kv-cache-tester, or weka traces: JSON files or JSON lines, each one session.

Source: github.com/callanjfox/kv-cache-tester, traces/ and docs/trace_replay_tester.md, read at commit
94f6046. Of a session: `tool_tokens`, `system_tokens`, `block_size`, and `requests` with `t` (seconds from the
start), `in`, `out` (tokens), `hash_ids` (blocks of the prompt), `api_time`, `think_time` (seconds). An entry
of type "subagent" holds the requests of a subagent, their `t` from its own start; its own `t` is when it
ended, and `duration_ms` how long it ran. In the JSON lines that SemiAnalysis publishes (cc-traces-weka), the
`t` of a subagent's requests count from the session's start, and its own is when it began, as
docs/tutorials/weka-trace.md of github.com/ai-dynamo/aiperf says. A session is of that kind if none of its
subagents seems to start before the request that it follows.

A session is a program; the main agent and each subagent are threads of it. Subagents start from the main call
before them and run beside each other; the next main call waits for them, but not for one that still runs when
it starts. A call shares the blocks that its prompt has in common with the last call of its thread; for a
subagent's first call, with the main call or the subagent's first call that fits best. A streamed request and
the plain one that repeats it are one call. A gap is `think_time`, else what the times leave between the end
of the last parent and the start; it is unknown where a parent has no `api_time`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from autellix_backend.identity.prefix_breaks import common_length
from autellix_lab.workload.loaders.base import (
    LoadOptions,
    Record,
    as_record,
    read_json,
    read_json_lines,
)
from autellix_lab.workload.trace import CallTrace, ProgramTrace, TraceError

MAIN = "main"
DEFAULT_BLOCK_TOKENS = 64
CLOCK_S = 1.0
"""Times of requests are whole seconds, so a request may seem to start before its parent has ended."""


@dataclass(slots=True)
class _Session:
    """The calls so far, the blocks of each one's prompt, and the first call of each thread."""

    block_tokens: int
    has_one_clock: bool
    """Whether subagents' times count from the session's start too."""
    calls: list[CallTrace] = field(default_factory=list)
    blocks: list[list[int]] = field(default_factory=list)
    firsts: list[int] = field(default_factory=list)


def load_claude_code(path: Path, _options: LoadOptions) -> list[ProgramTrace]:
    """Load a file of one session, a file of JSON lines, or every *.json of a folder in order of name.

    Raises:
        TraceError: for a folder without sessions or a broken session; names the file and the field.
    """
    if ".jsonl" in path.suffixes:
        return [_session(record, f"{path.name}:{n}") for n, record in enumerate(read_json_lines(path), 1)]
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not files:
        raise TraceError(str(path), "holds no *.json; expected one file a session")
    return [_session(as_record(read_json(file), str(file), "file"), file.stem) for file in files]


def _session(record: Record, name: str) -> ProgramTrace:
    session = _Session(record.find("block_size", int) or DEFAULT_BLOCK_TOKENS, _has_one_clock(record))
    _add_thread(session, record, MAIN, 0.0, ())
    program_id = record.find("id", str) or name
    prefix_tokens = [record.find(name, int) or 0 for name in ("tool_tokens", "system_tokens")]
    return record.program(
        source="claude_code",
        program_id=program_id,
        group=program_id,
        tokenizer="as recorded",
        models=tuple(record.names("models")),
        system_prefix_tokens=sum(prefix_tokens) or None,
        calls=tuple(session.calls),
    )


def _has_one_clock(record: Record) -> bool:
    starts: list[float] = []
    before_s = 0.0
    for entry in record.records("requests"):
        if entry.values.get("type") != "subagent":
            before_s = entry.find("t", float) or 0.0
            continue
        requests = entry.records("requests")
        starts += [requests[0].find("t", float) or 0.0] if requests else []
        if starts and starts[-1] < before_s:
            return False
    return any(starts)


def _add_thread(
    session: _Session, owner: Record, thread: str, origin_s: float, spawned_by: tuple[int, ...]
) -> int | None:
    """Add the calls of an agent and of its subagents; return the id of its last call."""
    last: int | None = None
    running: list[int] = []
    entries = owner.records("requests")
    for position, entry in enumerate(entries):
        parents = spawned_by if last is None else (last,)
        if entry.get("type", str) == "subagent":
            last_of_agent = _add_subagent(session, entry, thread, origin_s, parents)
            running += [] if last_of_agent is None else [last_of_agent]
        elif not _is_repeated(entry, entries[position + 1 : position + 2]):
            ended = [agent for agent in running if _has_ended(session, agent, entry, origin_s)]
            last = _add_call(session, entry, thread, origin_s, (*parents, *ended), last)
            # A subagent that still runs works in the background: later calls do not wait for it.
            running = []
    # An agent that ends with its subagents has ended when the last of them has.
    return running[-1] if running else last


def _add_subagent(
    session: _Session, entry: Record, owner: str, origin_s: float, parents: tuple[int, ...]
) -> int | None:
    ended_s = origin_s + entry.get("t", float)
    started_s = max(origin_s, ended_s - (entry.find("duration_ms", float) or 0.0) / 1000)
    if session.has_one_clock:
        started_s = 0.0
    name = entry.find("agent_id", str) or f"agent{len(session.firsts)}"
    return _add_thread(session, entry, name if owner == MAIN else f"{owner}.{name}", started_s, parents)


def _is_repeated(entry: Record, following: list[Record]) -> bool:
    """Whether a streamed request is followed by the plain one with the same prompt."""
    if not following or entry.values.get("type") != "s" or following[0].values.get("type") != "n":
        return False
    return entry.numbers("hash_ids") == following[0].values.get("hash_ids")


def _add_call(
    session: _Session, entry: Record, thread: str, origin_s: float, parents: tuple[int, ...], last: int | None
) -> int:
    blocks = entry.numbers("hash_ids")
    prefill_tokens = entry.count("in")
    candidates = (*parents, *session.firsts) if last is None else (last,)
    prefix_from, shared_tokens = _longest_prefix(session, blocks, candidates, prefill_tokens)
    start_s = origin_s + entry.get("t", float)
    call = CallTrace(
        id=len(session.calls),
        parents=parents,
        thread=thread,
        prefill_tokens=prefill_tokens,
        decode_tokens=entry.count("out"),
        shared_prefix_tokens=shared_tokens,
        prefix_from=prefix_from,
        gap_before_s=_gap_s(session, entry, parents, start_s),
        kind=_kind(entry, thread, parents, last),
        start_s=start_s,
        latency_s=entry.find("api_time", float),
    )
    session.calls.append(call)
    session.blocks.append(blocks)
    if last is None:
        session.firsts.append(call.id)
    return call.id


def _kind(entry: Record, thread: str, parents: tuple[int, ...], last: int | None) -> str:
    if last is None:
        return "root" if thread == MAIN else "spawn"
    if len(parents) > 1:
        return "join"
    inputs = entry.names("input_types")
    if "tool_result" in inputs:
        return "tool"
    return "human" if "text" in inputs else "unknown"


def _gap_s(session: _Session, entry: Record, parents: tuple[int, ...], start_s: float) -> float | None:
    ends = [_end_s(session.calls[parent]) for parent in parents]
    known = [end for end in ends if end is not None]
    if not parents or len(known) < len(ends):
        # Where a request's time is unknown, the next one's think_time counts from the end of an earlier one.
        return None
    think_s = entry.find("think_time", float)
    if len(parents) == 1 and think_s is not None and entry.get("t", float) > 0:
        return max(0.0, think_s)
    # To the microsecond: times are sums of decimals.
    return round(max(0.0, start_s - max(known)), 6)


def _has_ended(session: _Session, agent: int, entry: Record, origin_s: float) -> bool:
    end_s = _end_s(session.calls[agent])
    return end_s is None or end_s <= origin_s + entry.get("t", float) + CLOCK_S


def _end_s(call: CallTrace) -> float | None:
    return None if call.start_s is None or call.latency_s is None else call.start_s + call.latency_s


def _longest_prefix(
    session: _Session, blocks: list[int], candidates: tuple[int, ...], prefill_tokens: int
) -> tuple[int | None, int]:
    best, best_blocks = None, 0
    for candidate in candidates:
        common = common_length(blocks, session.blocks[candidate])
        if common > best_blocks:
            best, best_blocks = candidate, common
    if best is None:
        return None, 0
    longest = session.calls[best].context_tokens
    return best, min(best_blocks * session.block_tokens, prefill_tokens, longest)
