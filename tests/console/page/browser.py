"""One headless browser for all tests of a worker, in a thread with an event loop of its own."""

from __future__ import annotations

import asyncio
import importlib.util
import shutil
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from playwright.async_api import Browser, ConsoleMessage, Page, Request

PATIENCE_MS = 60_000
NAMES = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--force-color-profile=srgb")

Found = TypeVar("Found")


def missing() -> str | None:
    """Return what is missing for tests in a browser; None if all is there."""
    if importlib.util.find_spec("playwright") is None:
        return "playwright is not installed (scripts/setup installs it where there is a Chromium)"
    if program() is None:
        return "there is no Chromium on the PATH (Debian's package chromium)"
    return None


def program() -> str | None:
    """Return the browser's program."""
    return next(filter(None, map(shutil.which, NAMES)), None)


# Without slots: playwright leaves marks on the objects whose methods it calls.
@dataclass
class Seen:
    """What a page did besides what it shows: none of it may happen unseen."""

    hosts: tuple[str, ...]
    """Names and ports that it may ask."""
    problems: list[str] = field(default_factory=list)
    """Errors and warnings of its console, and exceptions."""
    foreign: list[str] = field(default_factory=list)
    """Requests to other hosts."""
    expected: tuple[str, ...] = ()
    """Parts of problems that the test brings about."""

    def on_console(self, message: ConsoleMessage) -> None:
        """Keep what is no mere remark."""
        if message.type in ("error", "warning"):
            self.on_problem(message.text)

    def on_problem(self, problem: object) -> None:
        """Keep a problem, unless it is expected."""
        text = str(problem)
        if not any(part in text for part in self.expected):
            self.problems.append(text)

    def on_request(self, request: Request) -> None:
        """Keep a request that leaves the gateway."""
        parts = urlsplit(request.url)
        if parts.scheme not in ("data", "file", "blob") and not {parts.netloc, parts.hostname} & set(
            self.hosts
        ):
            self.foreign.append(request.url)


class BrowserThread:
    """A browser, driven by coroutines that other threads hand in: its loop must not be the tests' own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="browser", daemon=True)
        self._driver: Any = None
        self._browser: Browser | None = None

    def start(self) -> None:
        """Start the browser."""
        self._thread.start()
        self.run(self._launch())

    def run(self, task: Awaitable[Found]) -> Found:
        """Run a coroutine in the browser's thread and return its result."""

        async def wait() -> Found:
            return await task

        return asyncio.run_coroutine_threadsafe(wait(), self._loop).result()

    def stop(self) -> None:
        """Stop the browser and the thread."""
        self.run(self._quit())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def visit(
        self,
        url: str,
        look: Callable[[Page], Awaitable[Found]],
        *,
        expected_problems: tuple[str, ...] = (),
        others: tuple[str, ...] = (),
        **context: Any,
    ) -> Found:
        """Open an address in a new session of the browser, and look at it.

        Args:
            url: The address.
            look: Looks at the page.
            expected_problems: Parts of those problems that the test brings about.
            others: Hosts that the test asks besides.
            context: Options of the session.
        """
        seen = Seen((urlsplit(url).netloc, *others), expected=expected_problems)
        return self.run(self._visit(url, look, seen, context))

    async def _visit(
        self,
        url: str,
        look: Callable[[Page], Awaitable[Found]],
        seen: Seen,
        context: dict[str, Any],
    ) -> Found:
        async with self._page(seen, context) as page:
            await page.goto(url)
            found = await look(page)
        assert (seen.problems, seen.foreign) == ([], [])
        return found

    @asynccontextmanager
    async def _page(self, seen: Seen, context: dict[str, Any]) -> AsyncIterator[Page]:
        assert self._browser is not None
        session = await self._browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **context})
        try:
            page = await session.new_page()
            page.set_default_timeout(PATIENCE_MS)
            page.on("console", seen.on_console)
            page.on("pageerror", seen.on_problem)
            session.on("request", seen.on_request)
            yield page
        finally:
            await session.close()

    async def _launch(self) -> None:
        from playwright.async_api import async_playwright

        self._driver = await async_playwright().start()
        self._browser = await self._driver.chromium.launch(
            executable_path=program(), args=list(ARGUMENTS), timeout=PATIENCE_MS
        )

    async def _quit(self) -> None:
        if self._browser is not None:
            await self._browser.close()
        await self._driver.stop()


@contextmanager
def running_browser() -> Iterator[BrowserThread]:
    """Yield a running browser."""
    browser = BrowserThread()
    browser.start()
    try:
        yield browser
    finally:
        browser.stop()


async def picture(page: Page, path: Path) -> None:
    """Take a picture of the whole page, without what moves."""
    await page.screenshot(path=path, full_page=True, animations="disabled", caret="hide")
