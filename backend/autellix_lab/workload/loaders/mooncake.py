"""Mooncake request traces: JSON lines of {"timestamp", "input_length", "output_length", "hash_ids"}.

Source: github.com/kvcache-ai/Mooncake, FAST25-release/traces, read at commit 3b5a594. Timestamps are
milliseconds; each hash id stands for a block of 512 prompt tokens together with all before it.

The trace does not relate requests to each other. A request continues the program that holds the longest
prefix of its blocks, looking at requests in order of time, and the latest program where several do; blocks of
more than 1 % of all requests are system prompts and do not count. A program is a chain: a call waits for its
program's last. Prompts are shared as far as the blocks agree. How long requests took is unknown, so gaps are
too: `start_s` keeps the recorded start.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from autellix_lab.workload.loaders.base import LoadOptions, Record, read_json_lines
from autellix_lab.workload.trace import CallTrace, ProgramTrace

BLOCK_TOKENS = 512
COMMON_SHARE = 0.01
"""Share of the requests above which a block is a system prompt's."""
COMMON_AT_LEAST = 10
"""A block of fewer requests is no system prompt, however short the trace."""


@dataclass(slots=True)
class _Chain:
    record: Record
    index: int
    arrival_s: float
    calls: list[CallTrace] = field(default_factory=list)


def load_mooncake(path: Path, _options: LoadOptions) -> list[ProgramTrace]:
    """Load the requests of a file as chains of calls.

    Raises:
        TraceError: for a broken line; names the line and the field.
    """
    requests = sorted(read_json_lines(path), key=lambda record: record.get("timestamp", float))
    common = _common_blocks(requests)
    programs: list[_Chain] = []
    latest: dict[int, tuple[_Chain, CallTrace]] = {}
    for request in requests:
        blocks = request.numbers("hash_ids")
        matched = _matched(blocks, latest)
        if matched and blocks[matched - 1] not in common:
            program, prefix = latest[blocks[matched - 1]]
        else:
            # A shared system prompt makes no program, and is not shared between programs in a trace.
            program, prefix, matched = _start(request, programs), None, 0
        call = _call(request, program, prefix, matched)
        program.calls.append(call)
        latest.update(dict.fromkeys(blocks, (program, call)))
    system_tokens = BLOCK_TOKENS * len(common) if len(common) == 1 else None
    return [_finish(path, program, system_tokens) for program in programs]


def _common_blocks(requests: list[Record]) -> set[int]:
    uses = Counter(block for request in requests for block in set(request.numbers("hash_ids")))
    limit = max(COMMON_AT_LEAST, COMMON_SHARE * len(requests))
    return {block for block, count in uses.items() if count > limit}


def _matched(blocks: list[int], latest: dict[int, tuple[_Chain, CallTrace]]) -> int:
    """Return how many leading blocks have been seen; each id stands for all blocks before it too."""
    return next((place for place, block in enumerate(blocks) if block not in latest), len(blocks))


def _start(request: Record, programs: list[_Chain]) -> _Chain:
    program = _Chain(request, len(programs), request.get("timestamp", float) / 1000)
    programs.append(program)
    return program


def _call(request: Record, program: _Chain, prefix: CallTrace | None, matched: int) -> CallTrace:
    prefill_tokens = request.count("input_length")
    shared_tokens = (
        0 if prefix is None else min(matched * BLOCK_TOKENS, prefill_tokens, prefix.context_tokens)
    )
    return CallTrace(
        id=len(program.calls),
        parents=(program.calls[-1].id,) if program.calls else (),
        thread="main",
        prefill_tokens=prefill_tokens,
        decode_tokens=request.count("output_length"),
        shared_prefix_tokens=shared_tokens,
        prefix_from=None if prefix is None else prefix.id,
        kind="human" if program.calls else "root",
        start_s=request.get("timestamp", float) / 1000 - program.arrival_s,
    )


def _finish(path: Path, program: _Chain, system_tokens: int | None) -> ProgramTrace:
    program_id = f"{path.name.split('.')[0]}_{program.index}"
    return program.record.program(
        source="mooncake",
        program_id=program_id,
        group=program_id,
        tokenizer="as recorded",
        system_prefix_tokens=system_tokens,
        arrival_s=program.arrival_s,
        calls=tuple(program.calls),
    )
