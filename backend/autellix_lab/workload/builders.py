"""The call graphs of generated programs: one function for each kind.

The tree follows LATS as run on HotpotQA. A round samples `TREE_WIDTH` answers to one prompt, so the samples
after the first repeat it all but for its last block. Then some answers are valued, and after a lost
trajectory one call reflects. The next round waits for all of that. Prompts of rounds and of values each
begin with the same examples and continue with text of their own.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from autellix_lab.workload.heavy_tail import HeavyTail
from autellix_lab.workload.trace import CallTrace

TREE_WIDTH = 5
"""Answers sampled in a round, LATS's number of samples per expansion."""
SIBLING_NEW_TOKENS = 7
"""New tokens of a repeated prompt: an engine computes the last block of a prompt again."""
VALUED_SHARES = (0.55, 0.18, 0.13, 0.09, 0.05)
"""Shares of the rounds with 0, 1, ... valued answers: equal answers are valued once, known ones not again."""
REFLECT_SHARE = 0.09
"""Share of the rounds that end a lost trajectory and reflect on it."""

MIN_MAP_REDUCE_CALLS = 4
"""A plan, two maps and the reduce."""

TOOL_MS = HeavyTail(150, 3000, 1.0)
"""Duration of a tool call (ms): local functions, files, quick services."""


TASK_TOKENS = HeavyTail(11_000, 60_000, 0.8)
"""New tokens of a coding session's first prompt, and of one with a summary: the task, files, notes."""
COMPACT_TOKENS = 180_000
"""The context at which a coding session begins again, with a summary in place of its history."""
CODING_GAP_MS = HeavyTail(20_000, 60_000, 1.4)
"""Gap between two calls of a coding session (ms): builds, tests; longer pauses count as a minute."""


@dataclass(frozen=True, slots=True)
class WorkloadShape:
    """The statistics of one workload."""

    calls: HeavyTail
    prefill_tokens: HeavyTail
    """New prompt tokens of one call."""
    decode_tokens: HeavyTail


class CallList:
    """Collects the calls of one program; each draws its lengths from the shape."""

    def __init__(self, rng: random.Random, shape: WorkloadShape) -> None:
        self.rng = rng
        self.shape = shape
        self.prefix_tokens = 0
        """Tokens of the system prefix that the first prompt begins with."""
        self.calls: list[CallTrace] = []

    def add(
        self,
        thread: str,
        kind: str,
        parents: tuple[int, ...],
        *,
        prefix_from: int | None = None,
        shared_tokens: int = 0,
        new_tokens: int | None = None,
        group: int | None = None,
        gap_s: float | None = None,
    ) -> int:
        """Append a call that repeats `shared_tokens` of another; its new tokens are drawn unless given."""
        if new_tokens is None:
            new_tokens = self.shape.prefill_tokens.draw(self.rng)
        call = CallTrace(
            id=len(self.calls),
            parents=parents,
            thread=thread,
            prefill_tokens=shared_tokens + new_tokens + (0 if self.calls else self.prefix_tokens),
            decode_tokens=self.shape.decode_tokens.draw(self.rng),
            shared_prefix_tokens=shared_tokens,
            prefix_from=prefix_from,
            gap_before_s=gap_s,
            kind=kind,
            sample_group=group,
        )
        self.calls.append(call)
        return call.id

    def extend(self, thread: str, kind: str, parent: int, gap_s: float | None = None) -> int:
        """Append a call that repeats the whole prompt and answer of its parent, after a gap."""
        shared_tokens = self.calls[parent].context_tokens
        return self.add(thread, kind, (parent,), prefix_from=parent, shared_tokens=shared_tokens, gap_s=gap_s)


def build_chat(program: CallList, call_count: int) -> None:
    """Make one thread of turns with a person."""
    _build_thread(program, call_count, "human")


def build_react(program: CallList, call_count: int) -> None:
    """Make one thread of tool steps."""
    _build_thread(program, call_count, "tool")


def build_tools(program: CallList, call_count: int) -> None:
    """Make one thread of tool steps, each after the time that its tool takes."""
    last = program.add("main", "root", ())
    for _ in range(call_count - 1):
        last = program.extend("main", "tool", last, gap_s=TOOL_MS.draw(program.rng) / 1000)


def build_coding(program: CallList, call_count: int) -> None:
    """Make one thread of tool steps, with a gap before each and compactions between them."""
    last = program.add("main", "root", (), new_tokens=TASK_TOKENS.draw(program.rng))
    for _ in range(call_count - 1):
        gap_s = CODING_GAP_MS.draw(program.rng) / 1000
        if program.calls[last].context_tokens < COMPACT_TOKENS:
            last = program.extend("main", "tool", last, gap_s)
        else:
            last = program.add(
                "main",
                "compact",
                (last,),
                prefix_from=0,
                shared_tokens=program.prefix_tokens,
                new_tokens=TASK_TOKENS.draw(program.rng),
                gap_s=gap_s,
            )


def build_tree(program: CallList, call_count: int) -> None:
    """Make rounds of sampled answers and their values until the calls are used up."""
    parents: tuple[int, ...] = ()
    first_value: int | None = None
    while len(program.calls) < call_count:
        samples = _add_samples(program, min(TREE_WIDTH, call_count - len(program.calls)), parents)
        room = call_count - len(program.calls)
        wanted = program.rng.choices(range(len(VALUED_SHARES)), VALUED_SHARES)[0]
        valued = samples[: min(wanted, room)]
        values = []
        for sample in valued:
            values.append(_add_from_examples(program, "value", (sample,), first_value))
            first_value = values[0] if first_value is None else first_value
        # The round is over when every branch is, valued or not.
        parents = (*values, *samples[len(valued) :])
        if len(program.calls) < call_count and program.rng.random() < REFLECT_SHARE:
            parents = (_add_from_examples(program, "reflect", parents, first_value),)


def build_map_reduce(program: CallList, call_count: int) -> None:
    """Make a plan, parallel maps with a part of the input each, and a reduce over all answers."""
    plan = program.add("main", "root", ())
    instructions = program.calls[plan].prefill_tokens
    maps = [
        program.add(f"map.{part}", "map", (plan,), prefix_from=plan, shared_tokens=instructions)
        for part in range(max(MIN_MAP_REDUCE_CALLS, call_count) - 2)
    ]
    read_tokens = sum(program.calls[part].decode_tokens for part in maps)
    program.add(
        "main",
        "reduce",
        tuple(maps),
        prefix_from=plan,
        shared_tokens=program.calls[plan].context_tokens,
        new_tokens=read_tokens,
    )


BUILDERS: dict[str, Callable[[CallList, int], None]] = {
    "chat": build_chat,
    "react": build_react,
    "tree": build_tree,
    "map_reduce": build_map_reduce,
    "tools": build_tools,
    "coding": build_coding,
}
"""Builder by kind of program."""


def _build_thread(program: CallList, call_count: int, kind: str) -> None:
    last = program.add("main", "root", ())
    for _ in range(call_count - 1):
        last = program.extend("main", kind, last)


def _add_samples(program: CallList, count: int, parents: tuple[int, ...]) -> tuple[int, ...]:
    group = len(program.calls)
    if parents:
        # All rounds begin with the examples and the question of the first.
        shared_tokens = program.calls[0].prefill_tokens
        first = program.add(
            f"gen.{group}.0", "generate", parents, prefix_from=0, shared_tokens=shared_tokens, group=group
        )
    else:
        first = program.add(f"gen.{group}.0", "root", (), group=group)
    repeated = max(0, program.calls[first].prefill_tokens - SIBLING_NEW_TOKENS)
    rest = [
        program.add(
            f"gen.{group}.{branch}",
            "generate",
            parents,
            prefix_from=first,
            shared_tokens=repeated,
            new_tokens=program.calls[first].prefill_tokens - repeated,
            group=group,
        )
        for branch in range(1, count)
    ]
    return (first, *rest)


def _add_from_examples(program: CallList, kind: str, parents: tuple[int, ...], like: int | None) -> int:
    """Append a call that shares the prompt of the first value; the first value itself shares nothing."""
    thread = f"{kind}.{len(program.calls)}"
    if like is None:
        return program.add(thread, kind, parents)
    shared_tokens = program.calls[like].prefill_tokens
    return program.add(thread, kind, parents, prefix_from=like, shared_tokens=shared_tokens)
