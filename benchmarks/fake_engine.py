"""Serve the fake engine with reports: `python benchmarks/fake_engine.py PORT`. It has a token each 2 ms.

A process of its own, for benchmarks of what stands in front of it. Reports need the environment variable of
`engine.report_secret`, and go out where `autellix serve` looks for them.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path

import uvloop

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.fakes.engine import FakeBehaviour, FakeEngine

TOKEN_DELAY_S = 0.002
"""Without a pause between them the tokens of a stream would come in one piece."""
REPORT_PORT_OFFSET = 1000


async def serve(port: int) -> None:
    """Serve until the process is ended."""
    engine = FakeEngine(
        FakeBehaviour(output_tokens=1024, token_delay_s=TOKEN_DELAY_S),
        name="fake",
        port=port,
        keeps_requests=False,
        report_address=f"tcp://127.0.0.1:{port + REPORT_PORT_OFFSET}",
        report_secret=os.environ["AUTELLIX_ENGINE_REPORT_SECRET"],
    )
    await engine.start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(parser.parse_args().port))
