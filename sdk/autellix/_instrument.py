"""Owns the switch: what `import autellix` changes in the process, and how it is undone."""

from __future__ import annotations

import atexit
import os
import threading
from functools import partial

from autellix import _config, _openai, _scope, _session, _spawn
from autellix._backends import backends
from autellix._patching import ImportHook, Patches

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

INSTRUMENTORS = {
    "asyncio.base_events": _spawn.instrument_asyncio,
    "concurrent.futures.thread": _spawn.instrument_pool,
    "openai._base_client": _openai.instrument_openai,
    "threading": _spawn.instrument_threading,
    "uvloop": _spawn.instrument_uvloop,
}


class _Switch:
    """Whether the process is instrumented, and by what; the lock orders calls of the switch only."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.is_on = False
        self.has_fork_hooks = False
        self.patches = Patches()
        self.hook = ImportHook()


_switch = _Switch()


def instrument() -> None:
    """Link threads and tasks to their programs and annotate OpenAI clients; again is no change.

    With `AUTELLIX_DISABLED=1` in the environment this does nothing.
    """
    with _switch.lock:
        if _switch.is_on or _config.is_disabled():
            return
        _switch.is_on = True
        for name, patch in INSTRUMENTORS.items():
            _switch.hook.when_imported(name, partial(patch, _switch.patches))
        atexit.register(_session.end_at_exit)
        _register_fork_hooks()


def uninstrument() -> None:
    """Restore every original and end the session in the background; again is no change."""
    with _switch.lock:
        if not _switch.is_on:
            return
        _switch.is_on = False
        _switch.hook.remove()
        _switch.patches.revert()
        atexit.unregister(_session.end_at_exit)
        _session.current_session().stop(is_final=True)


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
    _session.current_session().leave(left)


def start() -> None:
    """Do what `import autellix` does."""
    backends.configure(_config.backends_of_environment())
    instrument()


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
