"""Owns the switch: what `import autellix` changes in the process, and how it is undone."""

from __future__ import annotations

import atexit
import os
import threading
from functools import partial

from autellix import _config, _httpx, _openai, _processes, _scope, _session, _spawn
from autellix._backends import backends
from autellix._patching import ImportHook, Patches
from autellix._programs import printable
from autellix._safely import note

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import ModuleType

    Instrument = Callable[[Patches, ModuleType], None]

INSTRUMENTORS: dict[str, Instrument] = {
    "anthropic._base_client": _openai.instrument_client,
    "anyio._backends._asyncio": _spawn.instrument_anyio,
    "asyncio.base_events": _spawn.instrument_asyncio,
    "concurrent.futures._base": _spawn.instrument_futures,
    "concurrent.futures.process": _processes.instrument_process_pool,
    "concurrent.futures.thread": _spawn.instrument_pool,
    "multiprocessing.pool": _processes.instrument_multiprocessing_pool,
    "multiprocessing.process": _processes.instrument_processes,
    "openai._base_client": _openai.instrument_client,
    "threading": _spawn.instrument_threading,
    "uvloop": _spawn.instrument_uvloop,
}
RAW_HTTP = {"httpx._client": _httpx.instrument_httpx, "httpx2._client": _httpx.instrument_httpx}
INTEGRATIONS = {
    "langchain_core.callbacks.base": "autellix_langchain",
    "autogen_agentchat.agents": "autellix_autogen",
    "autogen_agentchat.teams": "autellix_autogen",
    "autogen_core": "autellix_autogen",
    "autogen_ext.models.openai": "autellix_autogen",
}
"""Packages of ours that know a framework; each has `instrument(patches, module)`, called for each module."""


class _Switch:
    """Whether the process is instrumented, and by what; the lock orders calls of the switch only."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.is_on = False
        self.has_raw_http = False
        self.has_fork_hooks = False
        self.patches = Patches()
        self.hook = ImportHook()


_switch = _Switch()


def instrument(*, raw_http: bool = False) -> None:
    """Link threads, tasks and processes to their programs and annotate clients; again is no change.

    With `AUTELLIX_DISABLED=1` in the environment this does nothing.

    Args:
        raw_http: annotate also what the program sends to a backend with a bare `httpx` client.
    """
    with _switch.lock:
        if _config.is_disabled():
            return
        if not _switch.is_on:
            _switch.is_on = True
            _scope.switch(True)
            _switch.has_raw_http = False
            _watch(INSTRUMENTORS)
            _watch({name: partial(_integrate, package) for name, package in INTEGRATIONS.items()})
            atexit.register(_session.end_at_exit)
            _register_fork_hooks()
        if (raw_http or _config.wants_raw_http()) and not _switch.has_raw_http:
            _switch.has_raw_http = True
            _watch(RAW_HTTP)


def uninstrument() -> None:
    """Restore every original and end the session in the background; again is no change."""
    with _switch.lock:
        if not _switch.is_on:
            return
        _switch.is_on = False
        _scope.switch(False)
        _switch.hook.remove()
        _switch.patches.revert()
        atexit.unregister(_session.end_at_exit)
        _session.control().stop(is_final=True)


def when_imported(name: str, callback: Callable[[ModuleType], None]) -> None:
    """Call back with a module, at once or after its import, while the process is instrumented.

    For integrations, which patch several modules of their framework.
    """
    _switch.hook.when_imported(name, callback)


def configure(base_url: str | Iterable[str] | None = None) -> None:
    """Say which backends get headers, by their addresses; None returns to the rule for near hosts.

    Args:
        base_url: one or several addresses, such as "http://gateway:8000/v1".

    Raises:
        ValueError: if an address is malformed.
    """
    roots = _config.backends_of(base_url or ())
    left = backends.known()
    backends.configure(roots)
    _session.control().leave(left)


def start() -> None:
    """Do what `import autellix` does."""
    backends.configure(_config.backends_of_environment())
    name, program_id = _config.program_of_environment()
    _scope.name_process(None if name is None else printable(name), program_id)
    instrument()


def _watch(instruments: Mapping[str, Instrument]) -> None:
    for name, patch in instruments.items():
        _switch.hook.when_imported(name, partial(patch, _switch.patches))


def _integrate(package: str, patches: Patches, module: ModuleType) -> None:
    from importlib import import_module

    try:
        integration = import_module(package)
    except ImportError as error:
        # Installed apart, or made for another version of the framework.
        note("%s is not integrated: %s", module.__name__, error)
        return
    integration.instrument(patches, module)


def _register_fork_hooks() -> None:
    # Once: the interpreter offers no way to take them back. Without a session they cost microseconds.
    if not _switch.has_fork_hooks and hasattr(os, "register_at_fork"):
        _switch.has_fork_hooks = True
        os.register_at_fork(
            before=_session.before_fork,
            after_in_parent=_session.after_fork_in_parent,
            after_in_child=_after_fork_in_child,
        )


def _after_fork_in_child() -> None:
    _switch.lock = threading.Lock()
    _scope.after_fork_in_child()
    _session.after_fork_in_child()
