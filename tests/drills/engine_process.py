"""A fake engine in its own process, which records each call's cost before it answers."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from pathlib import Path

from autellix_backend.reports.report import EngineReport

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.fakes.engine import FakeBehaviour, FakeEngine


async def serve(port: int, ledger: Path, behaviour: FakeBehaviour) -> None:
    """Answer calls until SIGTERM."""
    # Unbuffered: written lines survive a kill.
    file = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(account: EngineReport) -> None:
        if not account.is_aborted:
            line = [account.program_id, account.prompt_tokens, account.output_tokens]
            os.write(file, json.dumps(line).encode() + b"\n")

    engine = FakeEngine(behaviour, port=port, on_report=note, keeps_requests=False)
    end = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end.set)
    await engine.start()
    await end.wait()
    await engine.stop()
    os.close(file)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    parser.add_argument("--ledger", type=Path)
    parser.add_argument("--token-delay-s", type=float)
    options = parser.parse_args()
    asyncio.run(serve(options.port, options.ledger, FakeBehaviour(token_delay_s=options.token_delay_s)))


if __name__ == "__main__":
    main()
