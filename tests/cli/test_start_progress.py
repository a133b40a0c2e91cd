"""What `autellix serve` shows while engines start."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path

import pytest

from autellix_backend.cli.start_progress import progress_line, showing_progress


class Terminal(io.StringIO):
    """Text that says when it was written."""

    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self.is_terminal = is_terminal
        self.written = asyncio.Event()

    def isatty(self) -> bool:
        return self.is_terminal

    def flush(self) -> None:
        self.written.set()


@pytest.mark.parametrize(
    ("log", "shown"),
    [
        ("", "replica-0: 7 s, no output yet"),
        ("first\nLoading weights\n\n", "replica-0: 7 s, Loading weights"),
        (
            "(EngineCore_DP0 pid=71) INFO 11-23 15:04:05 [gpu_model_runner.py:58] Starting to load model",
            "replica-0: 7 s, Starting to load model",
        ),
    ],
)
def test_the_last_line_of_the_log_is_shown(log: str, shown: str) -> None:
    """Without vLLM's prefix."""
    assert progress_line("replica-0", 7.2, log, 100) == shown


def test_a_long_line_is_no_wider_than_the_terminal() -> None:
    line = progress_line("replica-0", 7.2, "x" * 200, 40)
    assert len(line) == 40
    assert line.endswith("…")


@pytest.mark.parametrize("is_terminal", [True, False])
async def test_the_engines_take_turns(tmp_path: Path, is_terminal: bool) -> None:
    """On a terminal one line is written over, and is gone at the end; elsewhere each is a line of its own."""
    logs = [(f"replica-{number}", tmp_path / f"{number}.log") for number in range(2)]
    for number, (_, path) in enumerate(logs):
        path.write_text(f"step {number}\n")
    out = Terminal(is_terminal=is_terminal)
    async with showing_progress(logs, out, period_s=0.001):
        while not ("step 0" in out.getvalue() and "step 1" in out.getvalue()):
            await out.written.wait()
            out.written.clear()
    assert out.getvalue().endswith("\r\033[K" if is_terminal else "\n")
    assert ("\n" in out.getvalue()) is not is_terminal


async def test_without_engines_of_our_own_nothing_is_shown() -> None:
    out = Terminal(is_terminal=True)
    async with showing_progress([], out, period_s=0.001):
        await asyncio.sleep(0)
    assert out.getvalue() == ""
