"""How the live page keeps up: many programs in the table, some that begin and end, and the length of frames.

    python benchmarks/page_frames.py [--programs 2000] [--changes 100] [--seconds 10] [--calls 10000]

A headless Chromium, driven by playwright, looks at a gateway in this process. While the page scrolls,
programs begin and end at the given rate per second, each with one call. A frame is the time between two
callbacks of requestAnimationFrame; where nothing is late it is 1/60 s. The work of a frame is the processor
time of the page's thread, whatever else the machine does.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.page.browser import running_browser
from tests.page.stage import Stage, staged, wide_program

if TYPE_CHECKING:
    from playwright.async_api import CDPSession, Page

SMOOTH_MS = 50.0
RECORD = """
() => {
  window.frames_ms = [];
  let last = performance.now();
  const view = document.querySelector('.scroll');
  let step = 40;
  const next = (now) => {
    window.frames_ms.push(now - last);
    last = now;
    if (view.scrollTop + view.clientHeight >= view.scrollHeight || view.scrollTop + step < 0) step = -step;
    view.scrollTop += step;
    requestAnimationFrame(next);
  };
  requestAnimationFrame(next);
}
"""


def main() -> None:
    """Measure, and print one line for each view."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--programs", type=int, default=2000)
    parser.add_argument("--changes", type=float, default=100.0, metavar="PER_S")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--calls", type=int, default=10_000)
    args = parser.parse_args()
    with staged() as stage, running_browser() as browser:
        stage.fill(args.programs)
        url = stage.url + "/autellix/"
        frames = browser.visit(url + "#/programs", lambda page: watch(page, stage, args))
        print(
            f"{args.programs} programs, scrolling, {args.changes:g} begin and end per second: {told(frames)}"
        )
        each = 2500
        stage.restore(*(wide_program(f"wide-{number}", each) for number in range(args.calls // each)))
        drawn = browser.visit(url, lambda page: draw(page, url))
        print(f"a program of {each} calls: shown {drawn:.0f} ms after its link was followed")


async def watch(page: Page, stage: Stage, args: argparse.Namespace) -> list[float]:
    """Return the lengths (ms) of the frames while the table scrolls and changes."""
    await page.locator("#programs-count", has_text=f"{args.programs:,} programs").wait_for()
    changes = asyncio.create_task(asyncio.to_thread(change, stage, args))
    meter = await page.context.new_cdp_session(page)
    await meter.send("Performance.enable", {"timeDomain": "threadTicks"})
    await page.evaluate(RECORD)
    before_s = await busy_s(meter)
    await changes
    frames: list[float] = await page.evaluate("window.frames_ms")
    work_ms = 1000 * (await busy_s(meter) - before_s) / len(frames)
    print(f"(a frame takes {work_ms:.1f} ms of the page's thread)")
    return frames


async def busy_s(meter: CDPSession) -> float:
    """Return the CPU time of the page's thread."""
    metrics = (await meter.send("Performance.getMetrics"))["metrics"]
    return next(float(metric["value"]) for metric in metrics if metric["name"] == "TaskDuration")


def change(stage: Stage, args: argparse.Namespace) -> None:
    """Let programs of one call each begin and end, at the rate asked for as far as the machine makes it."""
    end_s = time.monotonic() + args.seconds
    number = 0
    while (now := time.monotonic()) < end_s:
        stage.call(f"change-{number}", **{"x-autellix-final": "true"})
        number += 1
        time.sleep(max(0.0, 1.0 / args.changes - (time.monotonic() - now)))
    print(f"({number / args.seconds:.0f} programs per second were made)")


async def draw(page: Page, url: str) -> float:
    """Return how long a program takes from the following of its link to its picture, in ms."""
    started_s = time.monotonic()
    await page.goto(url + "#/program/wide-0")
    await page.locator(".gantt [data-call]").first.wait_for(state="attached")
    return 1000 * (time.monotonic() - started_s)


def told(frames: list[Any]) -> str:
    """Return the statistics of frames in words."""
    ordered = sorted(frames)
    late = sum(frame > SMOOTH_MS for frame in ordered) / len(ordered)
    p99_ms = ordered[int(0.99 * (len(ordered) - 1))]
    return (
        f"{len(ordered)} frames, median {statistics.median(ordered):.1f} ms, p99 {p99_ms:.1f} ms, "
        f"longest {ordered[-1]:.0f} ms, {late:.1%} above {SMOOTH_MS:.0f} ms"
    )


if __name__ == "__main__":
    main()
