"""`autellix serve`: start the engines and the gateway, and run until a signal."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import secrets
import signal
import socket
import sys
import webbrowser
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal, cast

import uvicorn
import uvloop
from fastapi import FastAPI
from starlette.types import ASGIApp

from autellix_backend.cli.config_check import NO_SHARED_SECRET
from autellix_backend.cli.options import add_setting_options, settings_from_args
from autellix_backend.cli.start_progress import showing_progress
from autellix_backend.cli.workers import Workers, check_workers
from autellix_backend.engines.base import Engine, EngineUnreachableError
from autellix_backend.engines.factory import make_engines
from autellix_backend.engines.ray_replica import RayReplica
from autellix_backend.engines.replica import VllmReplica, generated_model
from autellix_backend.engines.report_client import LinkState
from autellix_backend.engines.supervisor import EngineChange, EngineState
from autellix_backend.gateway.app import create_app
from autellix_backend.gateway.engines.handle import EngineHandle
from autellix_backend.gateway.engines.pool import EnginePool
from autellix_backend.gateway.heap import settle_heap
from autellix_backend.gateway.http.acceptor import Acceptor
from autellix_backend.gateway.http.origin import is_loopback
from autellix_backend.gateway.http.page import PAGE_PATH, has_page
from autellix_backend.gateway.http.protocol import KEEP_ALIVE_S, bounded_protocol, connection_limit
from autellix_backend.gateway.http.starting import starting_app
from autellix_backend.gateway.tenancy.file import load_tenants
from autellix_backend.gateway.tenancy.tenants import Tenants
from autellix_backend.gateway.workers.link import Link
from autellix_backend.observe import otlp
from autellix_backend.observe.line_writer import check_writable
from autellix_backend.settings import (
    EngineSettings,
    GatewaySettings,
    RawValue,
    Settings,
    SettingsError,
    unknown_variables,
)

EXIT_INTERRUPTED = 130
EXIT_FAILURE = 1
BACKLOG = 2048
FLUSH_TIMEOUT_S = 1
SWITCH_INTERVAL_S = 0.0005
"""After Python's own 5 ms a thread that makes a long answer would give the event loop its turn."""
ENDS = (signal.SIGINT, signal.SIGTERM)
SECRET_NAME = "token-secret"
SECRET_BYTES = 32
LINK_WAIT_S = 2.0
"""How long running engines have to show what they report, before the ready line."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the model and every setting that has an option."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        help="folder or Hugging Face id of the model; `demo` for the tiny generated one",
    )
    parser.add_argument(
        "--open", action="store_true", help="open the live page in a browser once the gateway is ready"
    )
    add_setting_options(parser)


def run(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM."""
    model = {"engine.model": RawValue(args.model, "MODEL")} if args.model is not None else {}
    settings = settings_from_args(args, model)
    for sentence in unknown_variables():
        print(f"autellix: {sentence}; it is ignored", file=sys.stderr)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(serve(settings, opens_page=args.open))


async def serve(settings: Settings, *, opens_page: bool = False) -> int:
    """Start the engines, serve the gateway, and stop them in every case; return the exit code.

    Args:
        settings: The settings.
        opens_page: Whether to open the live page in a browser; several workers have no page of their own.

    Raises:
        SettingsError: if the address cannot be bound, the recording or the log of calls cannot be written,
            the tenants' file is malformed, the extra for traces is not installed, or no engine is described.
        EngineError: if an engine cannot be started.
    """
    check_workers(settings)
    with contextlib.closing(bind(settings.gateway)) as listener:
        _check_outputs(settings)
        if settings.gateway.workers > 1:
            # The workers' tokens are one another's.
            return await Workers(_with_token_secret(settings), listener, serve_worker).run()
        return await serve_on(
            settings, [listener], partial(print, flush=True), show_page=partial(show_page, opens=opens_page)
        )


async def serve_worker(
    settings: Settings, listeners: list[socket.socket], announce: Callable[[str], None], parent: Link
) -> int:
    """Serve as one of several workers: the parent passes SIGINT on as SIGTERM."""
    return await serve_on(settings, listeners, announce, ends=(signal.SIGTERM,), parent=parent)


async def serve_on(
    settings: Settings,
    listeners: list[socket.socket],
    announce: Callable[[str], None],
    *,
    ends: Sequence[int] = ENDS,
    show_page: Callable[[str], None] | None = None,
    parent: Link | None = None,
) -> int:
    """Start the engines, serve one gateway, and stop the engines; raises as serve() does.

    Args:
        settings: The settings.
        listeners: The sockets; the ready line names the first.
        announce: Is called with the ready line.
        ends: The signals that end it.
        show_page: Is called with the address of the live page, where there is one.
        parent: The link to the parent of several workers.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    tenants = load_tenants(settings)
    # Without a tenants file SIGHUP ends the process, as it does when a terminal closes; with one it does not,
    # while the engines start either.
    reloads = (signal.SIGHUP,) if tenants.has_keys else ()
    engines: list[Engine] = []
    pool: EnginePool | None = None
    try:
        with _on_signals(lambda: _reload(tenants), *reloads):
            task = asyncio.current_task()
            assert task is not None
            with _on_signals(task.cancel, *ends):
                # Several workers have no page, and share their address.
                page_is_there = has_page(
                    settings.gateway,
                    has_keys=tenants.has_keys,
                    is_loopback=is_loopback(settings.gateway.host),
                )
                async with _answering_meanwhile(listeners if show_page else [], has_page=page_is_there):
                    # In a thread: it may have to generate the demo model.
                    engines = await asyncio.to_thread(make_engines, settings)
                    await _start(engines, must_answer=settings.engine.must_answer)
            connections = connection_limit()
            app = create_app(
                _with_token_secret(settings),
                *engines,
                tenants=tenants,
                max_connections=connections,
                parent=parent,
            )
            pool = app.state.pool
            pool.subscribe(_print_change)
            make_ready_line = partial(_ready_line, settings, pool, listeners[0])
            config = _server_config(app, connections)

            def on_ready() -> None:
                settle_heap()
                announce(make_ready_line())
                print_noise(settings.engine)
                if show_page is not None and page_is_there:
                    show_page(_root_url(listeners[0]) + PAGE_PATH)

            server = _Server(config, on_ready, app, settings.gateway)
            with _on_signals(server.end, *ends):
                await server.serve(sockets=listeners)
            if server.is_cut_short:
                return EXIT_INTERRUPTED
            return 0 if server.started else EXIT_FAILURE
    except asyncio.CancelledError:
        return EXIT_INTERRUPTED
    finally:
        if pool is not None:
            # A server that was forced to exit has not done so.
            await pool.close()
        await _stop(engines)


def _check_outputs(settings: Settings) -> None:
    """Check the outputs before the slow start of the engine."""
    if settings.gateway.record_path is not None:
        check_writable(settings.gateway.record_path, "gateway.record_path")
    if settings.observe.call_log is not None:
        check_writable(settings.observe.call_log, "observe.call_log")
    if otlp.sends_any(settings.observe.otlp_endpoint, os.environ):
        otlp.check_installed()


def bind(gateway: GatewaySettings) -> socket.socket:
    """Bind the address before the slow start of the engine, so that a taken port shows at once.

    Raises:
        SettingsError: if the host is unknown or the port is taken.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(gateway.host, gateway.port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror:
        raise SettingsError(
            "gateway.host", f"{gateway.host!r} is unknown", "an address of this host"
        ) from None
    try:
        return socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        problem = f"cannot listen on {gateway.host}:{gateway.port} ({os.strerror(error.errno or 0)})"
        raise SettingsError("gateway.port", problem, "a free port, or 0 for any") from error


class _Server(uvicorn.Server):
    """Uvicorn without its own signal handling, which ends the process before the engine is stopped."""

    def __init__(
        self, config: uvicorn.Config, on_ready: Callable[[], None], app: FastAPI, gateway: GatewaySettings
    ) -> None:
        super().__init__(config)
        self._on_ready = on_ready
        self._app = app
        self._grace_s = gateway.shutdown_grace_s
        self._has_siblings = gateway.workers > 1
        self._drain: asyncio.Task[None] | None = None
        self.is_cut_short = False
        """Whether a second signal ended it."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        # Uvicorn would have uvloop accept at them, one connection at a time.
        await super().startup(sockets=[])
        if self.started:
            make, is_shared = self._make_protocol, self._has_siblings
            acceptors = [Acceptor(listener, make, is_shared=is_shared) for listener in sockets or ()]
            self.servers = cast(list[asyncio.base_events.Server], acceptors)
            pool: EnginePool = self._app.state.pool
            await pool.links_settled(LINK_WAIT_S)
            for handle in pool:
                _print_reporting(handle)
            pool.subscribe_links(_print_reporting)
            self._on_ready()

    def _make_protocol(self) -> asyncio.Protocol:
        # The class is our factory, which takes what uvicorn's own code gives it.
        make: Callable[..., asyncio.Protocol] = self.config.http_protocol_class
        return make(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    def end(self) -> None:
        """Drain at the first signal, cut that short at the second, exit at once at the third."""
        if self._drain is None:
            self._drain = asyncio.create_task(self._drain_calls())
            return
        self.is_cut_short = True
        self.force_exit = self.should_exit
        self._exit()

    async def _drain_calls(self) -> None:
        """Refuse new calls, while still listening, until the running ones end or the grace is over."""
        state = self._app.state
        state.pool.shut_down()
        if len(state.registry):
            print(f"autellix: waiting for {len(state.registry)} calls to end", file=sys.stderr, flush=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._grace_s):
                await state.registry.idle()
        self._exit()

    def _exit(self) -> None:
        self.should_exit = True
        self._app.state.watches.release()


@contextlib.asynccontextmanager
async def _answering_meanwhile(listeners: Sequence[socket.socket], *, has_page: bool) -> AsyncIterator[None]:
    """Answer on copies of the listeners that the engines start; the listeners themselves stay open."""
    if not listeners:
        yield
        return
    config = _server_config(starting_app(has_page=has_page), connection_limit(), lifespan="off")
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    copies = [listener.dup() for listener in listeners]
    await server.startup(copies)
    try:
        yield
    finally:
        await server.shutdown(copies)


async def _start(engines: Sequence[Engine], *, must_answer: bool) -> None:
    """Start all engines at once; the first that fails ends the start of the others.

    A remote engine may be missing unless it must answer: its supervisor waits for it.
    """
    logs: list[tuple[str, Path]] = []
    for engine in engines:
        if isinstance(engine, VllmReplica):
            logs.append((engine.name, engine.log.claim()))
            print(f"Starting {engine.name} with {engine.model} (log: {engine.log.path}) ...", file=sys.stderr)
        elif isinstance(engine, RayReplica):
            print(f"Having Ray place {engine.name} with {engine.model} ...", file=sys.stderr)
    starts = [
        asyncio.ensure_future(engine.start() if engine.is_owned or must_answer else _start_if_there(engine))
        for engine in engines
    ]
    try:
        async with showing_progress(logs, sys.stderr):
            await asyncio.gather(*starts)
    finally:
        for start in starts:
            start.cancel()
        await asyncio.gather(*starts, return_exceptions=True)


async def _stop(engines: Sequence[Engine]) -> None:
    """Stop all engines at once; those that are ours may take as long as a server of vLLM takes to end."""
    if owned := [engine.name for engine in engines if engine.is_owned]:
        print(f"autellix: ending {', '.join(owned)}; this may take 20 s", file=sys.stderr, flush=True)
    await asyncio.gather(*(engine.stop() for engine in engines))


async def _start_if_there(engine: Engine) -> None:
    try:
        await engine.start()
    except EngineUnreachableError as error:
        print(f"autellix: {error.what}; it gets calls once it answers", file=sys.stderr, flush=True)


def _print_change(change: EngineChange) -> None:
    """Print an engine's change of state."""
    messages = {
        EngineState.UP: f"{change.engine} is up again",
        EngineState.DOWN: f"error: {change.reason}; calls wait",
        EngineState.RESTARTING: f"error: {change.reason}; restarting, calls wait",
        EngineState.FAILED: f"error: {change.reason}; calls get status 503",
    }
    print(f"autellix: {messages[change.state]}", file=sys.stderr, flush=True)


def _print_reporting(handle: EngineHandle) -> None:
    """Print what is active at an engine that others run, and what is not."""
    if not handle.engine.is_owned:
        print(f"autellix: {handle.name}: {handle.reporting.text}", file=sys.stderr, flush=True)


def _reload(tenants: Tenants) -> None:
    """Reload the tenants file; a faulty one changes nothing."""
    try:
        tenants.reload()
    except SettingsError as error:
        print(f"autellix: error: {error}; the tenants stay as they were", file=sys.stderr, flush=True)
    else:
        print("autellix: read the tenants file again", file=sys.stderr, flush=True)


def _with_token_secret(settings: Settings) -> Settings:
    """Return the settings with a token secret that survives restarts."""
    if settings.gateway.token_secret is not None:
        return settings
    path = settings.engine.state_dir / SECRET_NAME
    if settings.store.is_shared:
        print(f"autellix: {NO_SHARED_SECRET}; this one's is in {path}", file=sys.stderr, flush=True)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with (
            contextlib.suppress(FileExistsError),
            os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file,
        ):
            file.write(secrets.token_hex(SECRET_BYTES))
        gateway = replace(settings.gateway, token_secret=path.read_text(encoding="ascii"))
    except (OSError, UnicodeDecodeError, SettingsError) as error:
        print(f"autellix: session tokens will not outlive this process: {error}", file=sys.stderr)
        return settings
    return replace(settings, gateway=gateway)


def _server_config(
    app: ASGIApp, max_connections: int, lifespan: Literal["on", "off"] = "on"
) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        # A factory in place of a class: uvicorn only calls it.
        http=cast(type[asyncio.Protocol], bounded_protocol(max_connections)),
        timeout_keep_alive=KEEP_ALIVE_S,
        ws="none",
        lifespan=lifespan,
        # Its warnings are about what clients send, a line for each request: a flood would fill the disk.
        log_level="error",
        access_log=False,
        # The drain is over; what is left are answers on their way out.
        timeout_graceful_shutdown=FLUSH_TIMEOUT_S,
    )


def _root_url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def show_page(url: str, *, opens: bool) -> None:
    """Print the address of the live page, and open it in a browser if asked to."""
    print(f"autellix: engines and programs are shown at {url}", file=sys.stderr, flush=True)
    if opens and not webbrowser.open(url):
        print("autellix: there is no browser to open it in", file=sys.stderr, flush=True)


def _ready_line(settings: Settings, pool: EnginePool, listener: socket.socket) -> str:
    what = ", ".join(dict.fromkeys(_described(handle.engine) for handle in pool))
    if len(pool) > 1:
        what += f" on {len(pool)} engines, {settings.balancer.name}"
    policy = _policy_in_force(settings, pool)
    return f"Autellix is ready: {what} at {_root_url(listener)}/v1 (policy {policy}); Ctrl-C ends it"


def print_noise(engine: EngineSettings) -> None:
    """Print that a generated model answers noise, which would look like a fault."""
    if engine.model is not None and generated_model(engine.model) is not None:
        print(
            f"autellix: the weights of {engine.model} are random: its answers are noise, its timing is real",
            file=sys.stderr,
            flush=True,
        )


def _policy_in_force(settings: Settings, pool: EnginePool) -> str:
    if any(handle.sends_reports for handle in pool):
        return settings.scheduler.policy
    if any(handle.queue.has_policy for handle in pool):
        return f"{settings.scheduler.policy}, in the gateway"
    told = [handle.reporting for handle in pool]
    if any(each.problem or each.state == LinkState.CONNECTING for each in told):
        return "not known yet: no engine reports"
    return "none: the engine is not ours"


def _described(engine: Engine) -> str:
    if isinstance(engine, VllmReplica):
        return engine.served_model_name or engine.model
    if isinstance(engine, RayReplica):
        return engine.model
    return engine.base_url


@contextlib.contextmanager
def _on_signals(action: Callable[[], object], *numbers: int) -> Generator[None, None, None]:
    loop = asyncio.get_running_loop()
    for number in numbers:
        loop.add_signal_handler(number, action)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
