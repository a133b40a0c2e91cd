"""What is wrong with a job is found before anything is copied, and named."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from ctypes import c_char_p
from dataclasses import replace
from typing import Any

import pytest
from tests.kernels.jobs import Case, Memory, copy, geometry

from autellix_backend.kernels.base import Swapper
from autellix_backend.kernels.errors import Code, SwapError
from autellix_backend.kernels.job import (
    Direction,
    Job,
    Plane,
    Strategy,
    SwapOptions,
    SwapTable,
    pairs_of,
)
from autellix_backend.kernels.native import SwapLibrary

# The library's limits.
MAX_PLANES = 1024
MAX_PAIRS = 1 << 22
MAX_BLOCKS = 1 << 40
MAX_BLOCK_BYTES = 1 << 30

SIDE = geometry([64, 64], 4, is_together=False, padding=0, order=range(2))
CASE = Case(
    sources=SIDE,
    destinations=SIDE,
    pairs=((0, 1), (1, 2)),
    direction=Direction.STORE,
    strategy=Strategy.COALESCED,
)
Change = Callable[[Job], dict[str, Any]]


def _first(side: str, **changes: int) -> Change:
    """Change the first plane of a side."""
    return lambda job: {side: (replace(getattr(job, side)[0], **changes), *getattr(job, side)[1:])}


def _set(**changes: Any) -> Change:
    return lambda job: changes


def _moved(by: int) -> Change:
    """Put the second destination this many bytes behind the first, both with one stride."""
    return lambda job: {
        "destinations": tuple(Plane(job.destinations[0].base + k * by, 64, 128, 2) for k in range(2)),
        "pairs": pairs_of([(0, 0)]),
    }


BROKEN: dict[str, tuple[Change, Code, str]] = {
    "strategy": (_set(strategy=7), Code.CHOICE, "strategy"),
    "direction": (_set(direction=2), Code.CHOICE, "direction"),
    "no planes": (_set(sources=(), destinations=()), Code.LIMIT, "planes"),
    "too many planes": (
        lambda job: {side: getattr(job, side)[:1] * (MAX_PLANES + 1) for side in ("sources", "destinations")},
        Code.LIMIT,
        "planes",
    ),
    "one side short": (lambda job: {"sources": job.sources[:1]}, Code.MISMATCH, "planes"),
    "too many pairs": (_set(pairs=array("q", bytes(16 * (MAX_PAIRS + 1)))), Code.LIMIT, "pairs"),
    "half a pair": (_set(pairs=array("q", [1])), Code.STRUCT, "pairs"),
    "null": (_first("sources", base=0), Code.NULL, "sources[0].base"),
    "negative base": (_first("sources", base=-8), Code.LIMIT, "sources[0].base"),
    "base beyond a word": (_first("destinations", base=2**64), Code.LIMIT, "destinations[0].base"),
    "empty block": (_first("sources", block_bytes=0), Code.LIMIT, "sources[0].block_bytes"),
    "vast block": (_first("sources", block_bytes=MAX_BLOCK_BYTES + 8), Code.LIMIT, "sources[0].block_bytes"),
    "no blocks": (_first("destinations", blocks=0), Code.LIMIT, "destinations[0].blocks"),
    "vast plane": (_first("sources", blocks=MAX_BLOCKS + 1), Code.LIMIT, "sources[0].blocks"),
    "odd base": (
        lambda job: _first("sources", base=job.sources[0].base + 4)(job),
        Code.ALIGN,
        "sources[0].base",
    ),
    "odd block": (_first("sources", block_bytes=63), Code.ALIGN, "sources[0].block_bytes"),
    "odd stride": (_first("destinations", stride_bytes=68), Code.ALIGN, "destinations[0].stride_bytes"),
    "short stride": (_first("destinations", stride_bytes=56), Code.STRIDE, "destinations[0].stride_bytes"),
    "overflow": (_first("sources", stride_bytes=2**63), Code.OVERFLOW, "sources[0]"),
    "overflow twice": (_first("sources", stride_bytes=2**63, blocks=2**40), Code.OVERFLOW, "sources[0]"),
    "overflow at the end": (_first("sources", base=2**64 - 64, blocks=1), Code.OVERFLOW, "sources[0]"),
    "mismatch": (_first("destinations", block_bytes=56), Code.MISMATCH, "destinations[0].block_bytes"),
    "source beyond": (_set(pairs=pairs_of([(0, 0), (4, 1)])), Code.RANGE, "pairs[1].source"),
    "negative source": (_set(pairs=pairs_of([(-1, 0)])), Code.RANGE, "pairs[0].source"),
    "destination beyond": (_set(pairs=pairs_of([(0, 4)])), Code.RANGE, "pairs[0].destination"),
    "least destination": (_set(pairs=pairs_of([(0, -(2**63))])), Code.RANGE, "pairs[0].destination"),
    "twice": (
        _set(pairs=pairs_of([(0, 2), (1, 1), (2, 2), (3, 1), (0, 1)])),
        Code.TWICE,
        "pairs[2].destination",
    ),
    "onto itself": (lambda job: {"destinations": job.sources}, Code.OVERLAP, "destinations[0]"),
    "one byte shared": (
        lambda job: {
            **_first("destinations", base=job.sources[1].base + 3 * 64 + 56, blocks=1)(job),
            "pairs": pairs_of([(0, 0)]),
        },
        Code.OVERLAP,
        "destinations[0]",
    ),
    "one destination twice": (
        lambda job: {"destinations": job.destinations[:1] * 2},
        Code.OVERLAP,
        "destinations[0]",
    ),
    "interleaved too closely": (_moved(56), Code.OVERLAP, "destinations[0]"),
    "wrapped too closely": (_moved(128 - 56), Code.OVERLAP, "destinations[1]"),
    "two strides": (
        lambda job: {
            "destinations": tuple(replace(job.destinations[0], stride_bytes=stride) for stride in (72, 80)),
            "pairs": pairs_of([(0, 0)]),
        },
        Code.OVERLAP,
        "destinations[1]",
    ),
    "another back end's table": (
        _set(table=SwapTable(backend="other", seconds=(0.0,) * 160)),
        Code.CHOICE,
        "table",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_jobs_are_refused_by_field(native: Swapper, name: str) -> None:
    """The error names the field that is to blame; nothing was copied, and the swapper goes on."""
    change, code, field = BROKEN[name]
    memory = Memory(CASE)
    untouched = memory.destination.raw
    with pytest.raises(SwapError) as raised:
        native.submit(memory.job(**change(memory.job())))
    assert (raised.value.code, raised.value.field) == (code, field)
    assert memory.destination.raw == untouched
    assert copy(native, memory.job()).pages == 4


def test_interleaved_destinations_are_allowed(swapper: Swapper) -> None:
    """Two planes that take turns, byte for byte, are no overlap."""
    memory = Memory(CASE)
    assert copy(swapper, memory.job(**_moved(64)(memory.job()))).bytes == 128


def test_texts_are_the_librarys(library: SwapLibrary) -> None:
    """Messages do not depend on which swapper refuses."""
    text_of = library._library.ax_error_text
    text_of.restype = c_char_p
    assert {code: text_of(code).decode() for code in Code} == {code: code.text for code in Code}


@pytest.mark.parametrize(
    ("changes", "code", "field"),
    [
        ({"threads": 0}, Code.LIMIT, "threads"),
        ({"threads": 65}, Code.LIMIT, "threads"),
        ({"slot_bytes": 1024}, Code.LIMIT, "slot_bytes"),
        ({"slot_bytes": 5000}, Code.ALIGN, "slot_bytes"),
        ({"slots": 1}, Code.LIMIT, "slots"),
        ({"device": -1}, Code.LIMIT, "device"),
    ],
)
def test_options_are_checked(changes: dict[str, int], code: Code, field: str) -> None:
    """Options out of range are refused before anything is opened."""
    with pytest.raises(SwapError) as raised:
        SwapOptions(**changes)
    assert (raised.value.code, raised.value.field) == (code, field)


def test_a_back_end_that_is_not_there_is_refused(library: SwapLibrary) -> None:
    """A build without CUDA says so when CUDA is asked for."""
    with pytest.raises(SwapError) as raised:
        library.open("cuda", SwapOptions())
    assert (raised.value.code, raised.value.field) == (Code.BACKEND, "backend")


def test_a_closed_swapper_refuses(library: SwapLibrary) -> None:
    """After `close`, which may be called twice, every call is refused."""
    swapper = library.open("cpu", SwapOptions())
    handle = swapper.submit(Memory(CASE).job())
    swapper.close()
    swapper.close()
    calls: tuple[Callable[[], object], ...] = (
        lambda: swapper.submit(Memory(CASE).job()),
        lambda: swapper.poll(handle),
        lambda: swapper.pin(4096, 4096),
    )
    for call in calls:
        with pytest.raises(SwapError) as raised:
            call()
        assert raised.value.field == "context"


def test_pinning_host_memory_checks_its_range(native: Swapper) -> None:
    """Without a device pinning does nothing, but a bad range is refused all the same."""
    native.pin(4096, 4096)
    native.unpin(4096, 4096)
    for base, size in ((0, 4096), (4096, 0), (2**64 - 8, 8), (-1, 8)):
        with pytest.raises(SwapError) as raised:
            native.pin(base, size)
        assert raised.value.field == "memory"
