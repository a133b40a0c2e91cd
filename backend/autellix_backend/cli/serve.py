"""`autellix serve`: start the engines and the gateway, and run until a signal."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import signal
import socket
import sys
from dataclasses import replace

import uvloop

from autellix_backend.assembly import create_app
from autellix_backend.cli.announcements import (
    note_change,
    note_host_memory,
    note_noise,
    note_tool_parser,
    ready_line,
    root_url,
)
from autellix_backend.cli.config_check import ignored, start_checks
from autellix_backend.cli.notes import note
from autellix_backend.cli.options import add_preset_option, add_setting_options, settings_from_args
from autellix_backend.cli.running_engines import running_engines
from autellix_backend.cli.server import (
    GatewayServer,
    answering_meanwhile,
    bind,
    connection_limit,
    freeze_heap,
)
from autellix_backend.cli.signals import EXIT_FAILURE, EXIT_INTERRUPTED, on_signals
from autellix_backend.cli.token_secret import with_token_secret
from autellix_backend.console.http.page import PAGE_PATH, has_page, starting_page
from autellix_backend.engines.host_memory import with_host_memory
from autellix_backend.engines.replica import default_model
from autellix_backend.gateway.engines.pool import EnginePool
from autellix_backend.gateway.http.guard import is_loopback
from autellix_backend.gateway.tenancy.file import load_tenants
from autellix_backend.gateway.tenancy.tenants import Tenants
from autellix_backend.observe.operator_log import configure_log
from autellix_backend.settings import RawValue, Settings, SettingsError, unknown_variables

logger = logging.getLogger(__name__)

SWITCH_INTERVAL_S = 0.0005
"""With Python's own 5 ms a thread that encodes a long answer would hold up the event loop."""
ENDS = (signal.SIGINT, signal.SIGTERM)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the model and every setting that has an option."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        help="folder or Hugging Face id of the model; `smollm2` for a small one for CPUs",
    )
    add_preset_option(parser)
    add_setting_options(parser)


def run(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM."""
    model = {"engine.model": RawValue(args.model, "MODEL")} if args.model is not None else {}
    settings = settings_from_args(args, model)
    for sentence in unknown_variables():
        note(f"{sentence}; it is ignored")
    if not (settings.engine.model or settings.engine.urls or settings.ray.address) and default_model():
        note(f"no model is given: serving {default_model()}")
        settings = replace(settings, engine=replace(settings.engine, model=default_model()))
    configure_log(is_json=settings.observe.log_format == "json")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(serve(settings))


async def serve(settings: Settings) -> int:
    """Start the engines, serve the gateway, and stop them in every case; return the exit code.

    Raises:
        SettingsError: if the address cannot be bound, other machines would need no key, the log of calls
            cannot be written, the tenants' file is malformed, the extra for traces is not installed, or no
            engine is described.
        EngineError: if an engine cannot be started.
    """
    with contextlib.closing(bind(settings.gateway)) as listener:
        for check in start_checks(settings):
            check()
        for sentence in ignored(settings):
            note(sentence)
        asked, settings = settings.engine, with_host_memory(settings)
        note_host_memory(asked, settings.engine.kv_host_gib)
        return await serve_on(settings, listener)


async def serve_on(settings: Settings, listener: socket.socket) -> int:
    """Start the engines, serve the gateway on a socket, and stop the engines; raises as serve() does."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    tenants = load_tenants(settings)
    # Without a tenants file SIGHUP ends the process, as it does when a terminal closes.
    reloads = (signal.SIGHUP,) if tenants.has_keys else ()
    page_is_there = has_page(
        settings.gateway, has_keys=tenants.has_keys, is_loopback=is_loopback(settings.gateway.host)
    )
    start = answering_meanwhile(listener, starting_page if page_is_there else None)
    with on_signals(lambda: _reload(tenants), *reloads):
        try:
            async with running_engines(settings, start, ENDS) as engines:
                connections = connection_limit()
                app = create_app(
                    with_token_secret(settings),
                    *engines,
                    tenants=tenants,
                    max_requests=connections,
                )
                pool: EnginePool = app.state.gateway.pool
                pool.subscribe(note_change)

                def on_ready() -> None:
                    freeze_heap()
                    print(ready_line(settings, pool, listener), flush=True)
                    note_noise(settings.engine)
                    note_tool_parser(settings.engine, (handle.engine for handle in pool))
                    if page_is_there:
                        note(f"engines and programs are shown at {root_url(listener)}{PAGE_PATH}")

                server = GatewayServer(
                    app, settings.gateway, connections, on_ready, has_others=settings.store.is_shared
                )
                try:
                    with on_signals(server.end, *ENDS):
                        await server.serve(sockets=[listener])
                finally:
                    # A server that was forced to exit has not closed it.
                    await pool.close()
        except asyncio.CancelledError:
            return EXIT_INTERRUPTED
    if server.is_cut_short:
        return EXIT_INTERRUPTED
    return 0 if server.started else EXIT_FAILURE


def _reload(tenants: Tenants) -> None:
    """Reload the tenants file; a faulty one changes nothing."""
    try:
        tenants.reload()
    except SettingsError as error:
        logger.error("audit: %s; the tenants stay as they were", error)
    else:
        logger.info("audit: read the tenants file again")
