"""CrewAI's flows: a listener of several events runs in the task of the last one; skipped without it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.sdk.conftest import Recording

FLOW = """
import asyncio, sys, warnings
warnings.simplefilter("ignore")
import autellix, openai
from crewai.flow.flow import Flow, and_, listen, or_, start

client = openai.AsyncOpenAI(base_url=sys.argv[1], api_key="key", max_retries=0)
right_done = asyncio.Event()

async def ask(text):
    await client.chat.completions.create(model="m", messages=[{"role": "user", "content": text}])

class Halves(Flow):
    @start()
    async def begin(self):
        await ask("begin")

    @listen(begin)
    async def left(self):
        await right_done.wait()
        await ask("left")

    @listen(begin)
    async def right(self):
        await ask("right")
        right_done.set()

    @listen(left)
    async def after_left(self):
        await ask("after left")

    @listen(and_(left, right))
    async def join(self):
        await ask("join")

autellix.configure(sys.argv[1])
asyncio.run(Halves(suppress_flow_events=True).kickoff_async())
"""


def test_listener_of_all_events_follows_each(run_script: Callable[..., str], backend: Recording) -> None:
    pytest.importorskip("crewai.flow.flow")
    quiet = {
        "CREWAI_DISABLE_TELEMETRY": "true",
        "CREWAI_TRACING_ENABLED": "false",
        "OTEL_SDK_DISABLED": "true",
    }
    run_script(FLOW, backend.url, PYTHONWARNINGS="ignore", **quiet)
    assert backend.dag() == {
        "begin": (),
        "left": ("begin",),
        "right": ("begin",),
        "after left": ("left",),
        "join": ("left", "right"),
    }
