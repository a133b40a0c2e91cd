"""Pictures and a clip of the page for the documentation: a gateway under load, before a scripted engine.

    python -m tests.console.page.scene docs/guides/page

Agents make calls of seeded lengths; four run at once, two more fit into KV memory, the others wait for it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import itertools
import random
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec
from PIL import Image
from tests.console.page.browser import ARGUMENTS, PATIENCE_MS, program
from tests.drills.queueing_engine import Entry, QueueingEngine
from tests.fakes.engine import FakeBehaviour, FakeEngine
from tests.serving import listening

from autellix_backend.assembly import create_app
from autellix_backend.reports.snapshot import (
    AdmissionSnapshot,
    CallSnapshot,
    DemandSnapshot,
    EngineSnapshot,
)
from autellix_backend.settings import Settings
from autellix_wire.headers import FINAL, PROGRAM_ID, PROGRAM_NAME

if TYPE_CHECKING:
    from playwright.async_api import Page, ViewportSize

SLOTS, ACTIVE = 4, 6
BLOCK_TOKENS, BLOCKS, CALL_BLOCKS = 16, 512, 75
TOKEN_DELAY_S = 0.03
NAMES = ("coder", "research", "react")
AGENTS = 16
WARM_UP_S = 150.0
CLIP_S = 20
SIZE: ViewportSize = {"width": 960, "height": 540}
CLIP_COLORS = 128


class SceneEngine(QueueingEngine):
    """A queue with a KV memory that six calls fill."""

    def __init__(self, address: str) -> None:
        behaviour = FakeBehaviour(output_tokens=10**6, token_delay_s=TOKEN_DELAY_S)
        FakeEngine.__init__(self, behaviour, report_address=address, keeps_requests=False, policy="boost")
        self._slots, self._free = SLOTS, asyncio.Semaphore(SLOTS)
        self._entries: list[Entry] = []
        self._next_calls_s = 0.0

    def _snapshot(self) -> EngineSnapshot:
        calls, held = len(self._entries), self._running() * CALL_BLOCKS
        active, inactive = min(calls, ACTIVE), max(0, calls - ACTIVE)
        call_tokens = CALL_BLOCKS * BLOCK_TOKENS
        return msgspec.structs.replace(
            super()._snapshot(),
            mean_step_s=TOKEN_DELAY_S,
            kv_used_blocks=held,
            kv_total_blocks=BLOCKS,
            admission=AdmissionSnapshot(
                active, inactive, active * call_tokens, round(0.95 * BLOCKS * BLOCK_TOKENS)
            ),
            demand=DemandSnapshot(inactive * call_tokens, inactive, 2.0, ()),
        )

    def _calls(self, now: float) -> tuple[CallSnapshot, ...]:
        return tuple(
            msgspec.structs.replace(
                call,
                kv_blocks=CALL_BLOCKS * call.is_running,
                inactive_place=call.place - ACTIVE if call.place > ACTIVE else None,
            )
            for call in super()._calls(now)
        )


async def run_agent(client: aiohttp.ClientSession, url: str, chance: random.Random, number: int) -> None:
    """Run one program after the other."""
    await asyncio.sleep(2.5 * number)
    for task in itertools.count():
        name = NAMES[number % len(NAMES)]
        calls = chance.randint(2, 5)
        for call in range(calls):
            headers = {PROGRAM_ID: f"{name}-{number}-{task}", PROGRAM_NAME: name}
            if call == calls - 1:
                headers[FINAL] = "true"
            text = "word " * (200 + 150 * call)
            body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": text}]}
            body["max_tokens"] = chance.randint(20, 110)
            async with client.post(f"{url}/v1/chat/completions", json=body, headers=headers) as answer:
                await answer.read()
            await asyncio.sleep(chance.uniform(0.3, 3.0))


async def take_clip(page: Page, path: Path) -> None:
    """Write a clip of a frame a second, with the colours of its first frame."""
    frames: list[Image.Image] = []
    for _ in range(CLIP_S):
        due_s = time.monotonic() + 1.0
        with Image.open(io.BytesIO(await page.screenshot())) as picture:
            colors = picture.convert("RGB")
            frame = (
                colors.quantize(CLIP_COLORS)
                if not frames
                else colors.quantize(palette=frames[0], dither=Image.Dither.NONE)
            )
        frames.append(frame)
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=1000, loop=0, optimize=True)


async def take_all(url: str, folder: Path) -> None:
    """Take the pictures and the clip of the gateway at this address."""
    from playwright.async_api import async_playwright

    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=program(), args=list(ARGUMENTS))
        session = await browser.new_context(viewport=SIZE)
        page = await session.new_page()
        page.set_default_timeout(PATIENCE_MS)
        await page.goto(f"{url}/autellix/")
        await page.locator(".plot canvas").nth(2).wait_for()
        await page.screenshot(path=folder / "overview.png")
        await take_clip(page, folder / "waits.gif")
        await page.goto(f"{url}/autellix/#/programs")
        await page.locator("tbody tr:nth-child(3)").wait_for()
        await page.screenshot(
            path=folder / "programs.png", clip={"x": 0, "y": 0, "width": 960, "height": 290}
        )
        await browser.close()


async def main(folder: Path, warm_up_s: float) -> None:
    """Serve, load and look."""
    with tempfile.TemporaryDirectory() as state:
        engine = SceneEngine(f"ipc://{state}/reports")
        await engine.start()
        snapshots = asyncio.create_task(engine.send_snapshots())
        app = create_app(Settings(), engine)
        chance = random.Random(7)
        async with listening(app) as url, aiohttp.ClientSession() as client:
            agents = [asyncio.create_task(run_agent(client, url, chance, at)) for at in range(AGENTS)]
            await asyncio.sleep(warm_up_s)
            await take_all(url, folder)
            for task in (*agents, snapshots):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
            await app.state.gateway.registry.idle()
        await engine.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--warm-up-s", type=float, default=WARM_UP_S)
    options = parser.parse_args()
    asyncio.run(main(options.folder, options.warm_up_s))
