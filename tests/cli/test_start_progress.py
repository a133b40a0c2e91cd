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


PREFIX = "(EngineCore_DP0 pid=71) INFO 11-23 15:04:05 [gpu_model_runner.py:58] "
LOG = (
    ("/v/api_server.py:24: DeprecationWarning: `vllm.entrypoints` is deprecated", "importing vLLM (stage 1"),
    ("  warnings.warn(", "importing vLLM"),
    (f"{PREFIX}Enforce eager set, disabling torch.compile, CUDAGraphs", "importing vLLM"),
    (f"{PREFIX}Initializing a V1 LLM engine (v0.32.0) with config: ...", "starting the engine (stage 2"),
    (f"{PREFIX}Starting to load model /models/m...", "loading weights (stage 3"),
    ("Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:00<00:00]", "loading weights 50 %"),
    (f"{PREFIX}Auto-prefetch is disabled", "loading weights 50 % (stage 3"),
    (f"{PREFIX}Dynamo bytecode transform time: 3.21 s", "compiling (stage 4"),
    (f"{PREFIX}Available KV cache memory: 51.2 GiB", "allocating KV memory (stage 5"),
    (
        "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  24%|██ | 16/67",
        "capturing CUDA graphs 24 %",
    ),
    (
        "(APIServer pid=6) INFO 11-27 17:01:38 [entry.py:140] Starting vLLM server on http://h:1",
        "starting the server (stage 7 of 7",
    ),
)


def test_the_stage_of_the_start_is_shown_not_the_last_line() -> None:
    """Warnings change nothing."""
    assert progress_line("replica-0", 7.2, [], 100) == "replica-0: importing vLLM (stage 1 of 7), 7 s"
    lines = []
    for line, shown in LOG:
        lines.append(line)
        assert progress_line("replica-0", 7.2, lines, 100).startswith(f"replica-0: {shown}"), line


def test_a_long_line_is_no_wider_than_the_terminal() -> None:
    line = progress_line("replica-0", 7.2, [], 30)
    assert len(line) == 30
    assert line.endswith("…")


@pytest.mark.parametrize("is_terminal", [True, False])
async def test_the_engines_take_turns(tmp_path: Path, is_terminal: bool) -> None:
    """On a terminal one line is written over, and is gone at the end; elsewhere each is a line of its own."""
    logs = [(f"replica-{number}", tmp_path / f"{number}.log") for number in range(2)]
    for number, (_, path) in enumerate(logs):
        path.write_text(f"{LOG[3 + number][0]}\n")
    out = Terminal(is_terminal=is_terminal)
    async with showing_progress(logs, out, period_s=0.001):
        while not ("replica-0: starting" in out.getvalue() and "replica-1: loading" in out.getvalue()):
            await out.written.wait()
            out.written.clear()
    assert out.getvalue().endswith("\r\033[K" if is_terminal else "\n")
    assert ("\n" in out.getvalue()) is not is_terminal


async def test_without_engines_of_our_own_nothing_is_shown() -> None:
    out = Terminal(is_terminal=True)
    async with showing_progress([], out, period_s=0.001):
        await asyncio.sleep(0)
    assert out.getvalue() == ""
