"""The CUDA back end over a stand-in for CUDA: random plays, failing calls, a lost device, and planted faults.

AUTELLIX_SWAP_SEEDS is the number of schedules to try; beyond the default all parts try more.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.kernels import cuda_faults, stand_in
from tests.kernels.conftest import Folder

# The first test of a process compiles, beside others that do.
pytestmark = pytest.mark.timeout(600)

SEEDS = int(os.environ.get("AUTELLIX_SWAP_SEEDS", "120"))
IS_LONG = SEEDS > 120
STARTS = (1, 1001, 2001, 3001, 4001) if IS_LONG else (1,)
"""Where the seeds of each planted fault begin."""


def _assert_right(result: stand_in.Result) -> None:
    assert result.code == 0, result.error + result.out


@pytest.mark.parametrize("runtime", stand_in.RUNTIMES)
def test_every_schedule_copies_byte_for_byte(shared: Folder, runtime: str) -> None:
    """Jobs of both directions, an engine's writes and reads of the host: all as if one came after another."""
    program = stand_in.build(shared.cxx, shared.path / f"cuda-{runtime}", runtime=runtime)
    count = SEEDS if runtime == "13.0" else SEEDS // 4
    _assert_right(stand_in.run(program, "schedules", 1, count))


@pytest.mark.parametrize("seed", range(1, 9 if IS_LONG else 2))
def test_each_call_may_fail(shared: Folder, seed: int) -> None:
    """A call that fails ends its job with an error, or is made up for; nothing leaks, the rest is right."""
    program = stand_in.build(shared.cxx, shared.path / "cuda-13.0")
    _assert_right(stand_in.run(program, "failures", seed))


def test_the_device_may_be_lost(shared: Folder) -> None:
    """From then on every job ends with an error, none hangs, and the context closes."""
    program = stand_in.build(shared.cxx, shared.path / "cuda-13.0")
    _assert_right(stand_in.run(program, "losses", 1, SEEDS // 2))


def test_threads_share_a_context(shared: Folder) -> None:
    """Three threads of the host submit, poll and wait at once."""
    program = stand_in.build(shared.cxx, shared.path / "cuda-13.0")
    _assert_right(stand_in.run(program, "threads", 1, SEEDS // 4))


def test_jobs_wait_only_for_those_whose_memory_they_touch(shared: Folder) -> None:
    """A small job passes a large one but where one writes what the other touches; small ones overlap."""
    program = stand_in.build(shared.cxx, shared.path / "cuda-13.0")
    _assert_right(stand_in.run(program, "overlap", 1, 2))


def test_a_device_that_cannot_serve_is_refused_with_the_reason(shared: Folder) -> None:
    """No device, a driver older than the runtime, and a device for which there is no code are told apart."""
    program = stand_in.build(shared.cxx, shared.path / "cuda-13.0")
    _assert_right(stand_in.run(program, "reasons", 1))


def test_a_process_may_end_with_jobs_under_way(shared: Folder) -> None:
    """Nothing is closed, nothing crashes."""
    program = stand_in.build(shared.cxx, shared.path / "cuda-13.0")
    for seed in range(1, 6):
        _assert_right(stand_in.run(program, "exit", seed))


def _faulty(shared: Folder) -> Path:
    replaced = {
        name: cuda_faults.plant((stand_in.SOURCES / name).read_text(), name)
        for name in (cuda_faults.BACKEND, cuda_faults.PLAN)
    }
    return stand_in.build(shared.cxx, shared.path / "cuda-faulty", replaced=replaced)


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("number", range(1, len(cuda_faults.FAULTS) + 1))
def test_planted_faults_are_caught(shared: Folder, number: int, start: int) -> None:
    """Some schedule shows each fault; without one the same program finds nothing."""
    fault = cuda_faults.FAULTS[number - 1]
    count = {"schedules": 1500, "failures": 4, "starts": 24, "overlap": 1, "reasons": 1}[fault.mode]
    result = stand_in.run(_faulty(shared), fault.mode, start, count, AX_FAULT=str(number))
    assert result.code != 0, f"not caught: {fault.name}"


def test_without_a_planted_fault_nothing_is_found(shared: Folder) -> None:
    """The edits themselves change nothing."""
    _assert_right(stand_in.run(_faulty(shared), "schedules", 1, SEEDS // 4, AX_FAULT="0"))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["schedules", "threads", "losses", "starts", "exit"])
@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
def test_plays_are_clean(shared: Folder, sanitizers: str, mode: str) -> None:
    """No sanitizer finds anything, whatever fails."""
    flags = ["-O1", "-g1", f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all"]
    try:
        program = stand_in.build(shared.cxx, shared.path / f"cuda-{sanitizers}", extra=flags)
    except stand_in.StandInError as error:
        if "cannot find" in str(error):
            pytest.skip(f"the compiler has no {sanitizers} sanitizer")
        raise
    # A start takes seconds under the sanitizer of threads.
    count = {"schedules": SEEDS // 4, "starts": SEEDS // 60, "exit": 1}.get(mode, SEEDS // 15)
    result = stand_in.run(program, mode, 1, count)
    if "FATAL: ThreadSanitizer: unexpected memory mapping" in result.error:
        pytest.skip("this kernel's memory layout is not one that the thread sanitizer knows")
    _assert_right(result)
