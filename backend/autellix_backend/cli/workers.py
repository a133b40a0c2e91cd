"""`autellix serve --workers N`: a parent process that holds the address, and N gateways that accept on it.

The parent listens, replaces workers that die, and forwards signals; it serves no requests itself. Each worker
is a gateway on the shared process table. The rest of what they share (limits, metrics, each one's part of a
program) goes through the parent, which has a link to each. Each worker also listens on its own port: the ones
after the common port, or any free ones if that was any free one.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from multiprocessing.context import SpawnProcess
from typing import Any

import uvloop

from autellix_backend.cli.announcements import note
from autellix_backend.cli.signals import EXIT_FAILURE, EXIT_INTERRUPTED, on_signals
from autellix_backend.gateway.workers.hub import Hub
from autellix_backend.gateway.workers.limits import LimitKeeper
from autellix_backend.gateway.workers.link import Link
from autellix_backend.settings import Settings, SettingsError

READY = "ready"
RESTART_DELAY_S = 1.0
"""The pause before a dead worker is replaced: one that dies at once must not take a core with its starts."""

Serve = Callable[[Settings, list[socket.socket], Callable[[str], None], Link], Awaitable[int]]
"""Serves one gateway on listening sockets, calls back with its ready line, and returns the exit code."""


def check_workers(settings: Settings) -> None:
    """Check that several workers can share the process table, the engines and the outputs.

    Raises:
        SettingsError: if they cannot.
    """
    count = settings.gateway.workers
    if count == 1:
        return
    if not settings.store.is_shared:
        raise SettingsError(
            "gateway.workers",
            f"{count} processes need one process table, and {settings.store.url} belongs to one process",
            "a Redis or Valkey in store.url (--store redis://HOST), or 1 worker",
        )
    if settings.engine.model is not None:
        raise SettingsError(
            "gateway.workers",
            "an engine that the gateway starts reports to one process only",
            "running engines in engine.urls (--engine URL) in place of engine.model, or 1 worker",
        )
    if settings.gateway.record_path is not None:
        raise SettingsError(
            "gateway.workers",
            "a recording holds the calls of one gateway only",
            "1 worker, or no gateway.record_path",
        )


@dataclass(slots=True)
class _Worker:
    number: int
    process: SpawnProcess
    served: asyncio.Task[None]
    """Serves its link; the worker ends when the parent closes its end."""


class Workers:
    """The workers of one address."""

    def __init__(self, settings: Settings, listener: socket.socket, serve: Serve) -> None:
        self._settings = settings
        self._listener = listener
        self._serve = serve
        self._workers: dict[int, _Worker] = {}
        self._is_ending = False
        self._codes: list[int] = []
        keeper = LimitKeeper(epoch_s=time.time() - time.monotonic(), clock=time.monotonic)
        self._hub = Hub(settings.gateway.workers, keeper)

    async def run(self) -> int:
        """Run the workers until SIGINT or SIGTERM; return the exit code."""
        count = self._settings.gateway.workers
        reloads = (signal.SIGHUP,) if self._settings.gateway.tenants_file is not None else ()
        with (
            on_signals(self._end, signal.SIGINT, signal.SIGTERM),
            on_signals(lambda: self._signal(signal.SIGHUP), *reloads),
        ):
            try:
                starts = await asyncio.gather(*(self._start(number) for number in range(1, count + 1)))
                ready = [start for start in starts if start is not None]
                if len(ready) < count:
                    self._end()
                else:
                    ports = ", ".join(str(port) for _, port in ready)
                    print(
                        f"{ready[0][0]}; {count} workers, each also at a port of its own: {ports}", flush=True
                    )
                await asyncio.gather(*(self._keep(number) for number in list(self._workers)))
            finally:
                for worker in self._workers.values():
                    worker.process.kill()
        if len(ready) < count:
            return EXIT_INTERRUPTED if EXIT_INTERRUPTED in self._codes else EXIT_FAILURE
        return next((code for code in self._codes if code), 0)

    async def _start(self, number: int) -> tuple[str, int] | None:
        """Start a worker; return its ready line and own port, None if it ends before it is ready."""
        context = multiprocessing.get_context("spawn")
        ours, theirs = socket.socketpair()
        arguments = (self._settings, self._listener, number, self._serve, theirs)
        process = context.Process(target=_work, args=arguments, name=f"autellix-worker-{number}")
        with theirs:
            process.start()
        link = Link(ours)
        await link.open()
        ready: asyncio.Future[tuple[str, int]] = asyncio.get_running_loop().create_future()
        link.handlers[READY] = lambda content: ready.set_result((content[0], content[1]))
        served = asyncio.create_task(self._hub.serve(number, link))
        self._workers[number] = _Worker(number, process, served)
        if self._is_ending:
            self._signal(signal.SIGTERM)
        await asyncio.wait((served, ready), return_when=asyncio.FIRST_COMPLETED)
        return ready.result() if ready.done() else None

    async def _keep(self, number: int) -> None:
        """Replace a worker whenever it ends, until the shutdown."""
        while True:
            worker = self._workers[number]
            await _readable(worker.process.sentinel)
            worker.process.join()
            await worker.served
            code = worker.process.exitcode or 0
            if self._is_ending:
                self._codes.append(code if code >= 0 else EXIT_FAILURE)
                return
            note(f"worker {number} ended with code {code}; starting another")
            await asyncio.sleep(RESTART_DELAY_S)
            start = await self._start(number)
            if start is not None:
                note(f"worker {number} is back, at port {start[1]}")

    def _end(self) -> None:
        """Make the workers drain their calls; a second time, make them end sooner."""
        self._is_ending = True
        self._signal(signal.SIGTERM)

    def _signal(self, number: int) -> None:
        for worker in self._workers.values():
            if worker.process.is_alive() and worker.process.pid is not None:
                os.kill(worker.process.pid, number)


def _work(settings: Settings, listener: socket.socket, number: int, serve: Serve, own: socket.socket) -> None:
    """Run one worker."""
    # A terminal sends Ctrl-C to all processes; the parent forwards it, once.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sys.exit(runner.run(_serve(settings, listener, number, serve, Link(own))))


async def _serve(settings: Settings, listener: socket.socket, number: int, serve: Serve, link: Link) -> int:
    host, port = listener.getsockname()[:2]
    address = (host, port + number if settings.gateway.port else 0)
    try:
        own = socket.create_server(address, family=listener.family)
    except OSError as error:
        note(f"worker {number} cannot listen at {address[1]}: {error.strerror}")
        return EXIT_FAILURE
    await link.open()
    served = asyncio.create_task(link.serve())

    def on_parent_gone(_served: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    # The parent's end closes when the parent ends, for whatever reason.
    served.add_done_callback(on_parent_gone)
    with contextlib.closing(own):
        own_port = own.getsockname()[1]
        code = await serve(settings, [listener, own], lambda line: link.tell(READY, (line, own_port)), link)
    served.remove_done_callback(on_parent_gone)
    link.close()
    await asyncio.wait((served,))
    return code


async def _readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
    loop.add_reader(descriptor, lambda: None if future.done() else future.set_result(None))
    try:
        await future
    finally:
        loop.remove_reader(descriptor)
