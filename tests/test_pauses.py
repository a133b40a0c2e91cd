"""Pauses in long work."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from autellix_backend import pauses
from autellix_backend.pauses import Pauses


async def test_pauses_take_as_long_as_the_work_between_them_unless_it_was_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    paused: list[float] = []
    moments = iter([10.0, 10.02, 11.0, 31.0, 32.0, 32.0001])

    async def sleep(delay_s: float) -> None:
        paused.append(round(delay_s, 6))

    monkeypatch.setattr(pauses, "time", SimpleNamespace(perf_counter=lambda: next(moments)))
    monkeypatch.setattr(pauses, "asyncio", SimpleNamespace(sleep=sleep))
    made = Pauses()
    for _ in range(3):
        await made.pause()
    assert paused == [0.02, pauses.MAX_PAUSE_S]
