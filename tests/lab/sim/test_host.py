"""Host memory of a simulated engine: what it finds, what it keeps, and what a load changes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import islice, takewhile
from typing import Any

import pytest

from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.retention import Retention
from autellix_lab.sim.calls import EngineCall
from autellix_lab.sim.host import HostBlocks
from autellix_lab.sim.model import EngineModel
from autellix_lab.sim.results import SimResult
from autellix_lab.sim.simulation import SimSettings, simulate
from autellix_lab.workload.prefixes import SystemPrefix
from autellix_lab.workload.trace import CallTrace, ProgramTrace

BLOCK = 16


def call_of(
    program: str,
    blocks: int,
    *,
    name: str | None = None,
    base: EngineCall | None = None,
    shared: int = 0,
    prefix: SystemPrefix | None = None,
) -> EngineCall:
    """A finished call whose context fills so many blocks and a token, of which some are its base's."""
    trace = CallTrace(
        id=0,
        parents=(),
        thread="0",
        prefill_tokens=blocks * BLOCK + 1,
        decode_tokens=1,
        shared_prefix_tokens=shared * BLOCK,
    )
    call = EngineCall(name or f"{program}.{blocks}", program, trace, parents=(), prefix=prefix)
    call.base, call.computed = base, blocks * BLOCK + 1
    return call


def keep(host: HostBlocks, call: EngineCall, *, leaves: bool = True) -> EngineCall:
    """Let a call come, store its context, and leave."""
    host.arrive(call)
    host.store(call)
    if leaves:
        host.leave(call)
    host.check()
    return call


def test_contexts_are_found_behind_what_the_engine_has() -> None:
    """Also those of an earlier call, as far as the two begin alike."""
    host = HostBlocks(None, BLOCK)
    first = keep(host, call_of("p", 4))
    later = call_of("p", 8, base=first, shared=3)
    assert [host.find(later, start) for start in (0, BLOCK, 3 * BLOCK, 5 * BLOCK)] == [48, 32, 0, 0]
    keep(host, later)
    assert host.find(later, BLOCK) == 7 * BLOCK
    assert host.find(call_of("q", 4), 0) == 0


def test_the_worst_blocks_make_room() -> None:
    """Those of ended programs, then of idle ones; those of a program that admission counts on stay."""
    host = HostBlocks(12, BLOCK)
    held = keep(host, call_of("held", 4))
    host.keep({"held": True})
    idle, ended = keep(host, call_of("idle", 4)), keep(host, call_of("ended", 4))
    host.end_program("ended")
    keep(host, call_of("new", 4))
    assert [host.find(call, 0) // BLOCK for call in (held, idle, ended)] == [4, 4, 0]
    keep(host, call_of("long", 6))
    assert [host.find(call, 0) // BLOCK for call in (held, idle)] == [4, 0]


def test_more_than_fits_is_not_stored() -> None:
    """The front of a context is of use without its end."""
    host = HostBlocks(3, BLOCK)
    assert host.find(keep(host, call_of("p", 5)), 0) == 3 * BLOCK


class BlockByBlock:
    """The same memory with each block on its own: contexts of a chain of calls, behind a common prefix."""

    def __init__(self, total: int) -> None:
        self.retention: Retention[tuple[str, int]] = Retention()
        self.kept: set[tuple[str, int]] = set()
        self.total = total

    def find(self, content: Sequence[tuple[str, int]]) -> int:
        return len(list(takewhile(self.kept.__contains__, content)))

    def store(self, content: Sequence[tuple[str, int]], program: str) -> None:
        missing = [key for key in content if key not in self.kept]
        missing = missing[: max(0, self.total - (len(content) - len(missing)))]
        worst = (key for key in self.retention.worst_first() if key not in set(content))
        for key in list(islice(worst, max(0, len(self.kept) + len(missing) - self.total))):
            self.kept.discard(key)
            self.retention.discard(key)
        for key in missing:
            self.retention.add(key)
        self.kept.update(missing)
        self.retention.use(content, program)


@pytest.mark.parametrize("seed", range(20))
def test_runs_of_blocks_are_kept_as_single_blocks_would_be(seed: int) -> None:
    """Whatever calls extend, repeat a part of or compute again, and whatever programs wait or end."""
    rng = random.Random(seed)
    total = rng.randint(20, 120)
    host, single = HostBlocks(total, BLOCK), BlockByBlock(total)
    made: dict[str, list[tuple[EngineCall, list[tuple[str, int]]]]] = {name: [] for name in "abcd"}
    for number in range(150):
        program = rng.choice(sorted(made))
        base, content = rng.choice(made[program]) if made[program] and rng.random() < 0.9 else (None, [])
        prefix_blocks = 4
        # All of a run or nothing: who uses a part of it is a user of all of it.
        ends = [place for place in range(4, len(content)) if content[place][0] != content[place - 1][0]]
        shared = len(content) if rng.random() < 0.5 or not content else rng.choice([4, *ends])
        begin = max(shared, prefix_blocks)
        blocks = begin + rng.randint(0, 12)
        prefix = SystemPrefix("prefix", (prefix_blocks * BLOCK,))
        call = call_of(program, blocks, name=f"{number}", base=base, shared=shared, prefix=prefix)
        whole = content[:shared] + [("prefix", place) for place in range(shared, prefix_blocks)]
        whole += [(call.call_id, place) for place in range(begin, blocks)]
        host.arrive(call)
        single.retention.begin_call(program)
        for is_kept in (True, False) if rng.random() < 0.5 else ():
            host.keep({program: is_kept})
            single.retention.keep(program, is_kept=is_kept)
        assert host.find(call, 0) == single.find(whole) * BLOCK
        assert host.find(call, begin * BLOCK) == single.find(whole[begin:]) * BLOCK
        host.store(call)
        single.store(whole, program)
        host.leave(call)
        single.retention.end_call(program, is_last=False)
        made[program].append((call, whole))
        if rng.random() < 0.1:
            host.end_program(program)
            single.retention.end_program(program)
            made[f"{program}{number}"] = []
            del made[program]
        host.check()
        for name in made:
            assert host.kept_tokens(name) == len(single.retention.kept(name)) * BLOCK


def programs(gap_s: float, count: int = 24, calls: int = 4) -> list[tuple[float, ProgramTrace]]:
    """Conversations whose contexts exceed the engine's memory together, with tools in between."""
    return [
        (
            0.05 * number,
            ProgramTrace(
                program_id=str(number),
                source="chat",
                calls=tuple(
                    CallTrace(
                        id=call,
                        parents=(call - 1,) if call else (),
                        thread="0",
                        prefill_tokens=200 + 100 * call,
                        decode_tokens=20,
                        shared_prefix_tokens=200 + 100 * (call - 1) if call else 0,
                        prefix_from=call - 1 if call else None,
                        gap_before_s=gap_s if call else None,
                    )
                    for call in range(calls)
                ),
            ),
        )
        for number in range(count)
    ]


def play(policy: str, gap_s: float = 1.0, **changes: Any) -> SimResult:
    """Play the conversations on a small engine."""
    model = EngineModel(
        **{
            "max_num_seqs": 2,
            "kv_blocks": 100,
            "prefill_s": 0.0005,
            "swap_block_s": 0.0001,
            "swap_transfer_s": 0.0001,
        }
        | changes
    )
    return simulate(programs(gap_s), SimSettings(model=model, scheduler=SchedulerConfig(policy=policy)))


def shares(result: SimResult) -> tuple[float, float]:
    """Return the shares of all prompts that the engine had, and that host memory had."""
    prompts = sum(record.prompt_tokens for record in result.programs)
    loaded = sum(record.loaded_tokens for record in result.programs)
    return (sum(record.cached_tokens for record in result.programs) - loaded) / prompts, loaded / prompts


@pytest.mark.parametrize("policy", ["fcfs", "boost", "plas"])
def test_loads_take_the_place_of_recomputing(policy: str) -> None:
    """Where prefill is dear and loads are cheap, all programs end sooner."""
    without, with_host = play(policy), play(policy, resume="host")
    assert shares(without)[1] == 0
    assert sum(shares(with_host)) > sum(shares(without)) + 0.05
    assert with_host.makespan_s < without.makespan_s


@pytest.mark.parametrize("gap_s", [0.0, 0.05, 1.0])
def test_little_host_memory_gives_back_less(gap_s: float) -> None:
    """With room for a few contexts."""
    little, plenty = (play("boost", gap_s, resume="host", host_blocks=blocks) for blocks in (60, None))
    assert shares(little)[1] <= shares(plenty)[1]
    assert sum(shares(little)) < sum(shares(plenty))


def test_dear_loads_are_not_made() -> None:
    """After the first few, which teach their price."""
    cheap, dear = play("boost", resume="host"), play("boost", resume="host", swap_block_s=0.5)
    assert shares(dear)[1] < shares(cheap)[1] / 2
