"""Links greenlets to the program thread that spawns them: patches of gevent and eventlet.

The class of gevent's greenlets takes no patches, so the functions that spawn one are patched. A greenlet that
is made in another way is in no program until it opens one.
"""

from __future__ import annotations

import functools

from autellix._faults import safely
from autellix._programs.branches import link
from autellix._programs.running import watch_greenlets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from autellix._instrument.patches import Patches


def _patch_spawn(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def spawn(*args: Any, **kwargs: Any) -> Any:
        greenlet = original(*args, **kwargs)
        # It starts later, when its spawner waits.
        safely(link, greenlet)
        return greenlet

    return spawn


def _patch_add(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def add(self: Any, greenlet: Any) -> Any:
        safely(link, greenlet)
        return original(self, greenlet)

    return add


def _patch_init(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - it replaces one
        original(self, *args, **kwargs)
        safely(link, self)

    return __init__


def instrument_greenlets(_patches: Patches, module: ModuleType) -> None:
    """Look for the program thread on greenlets."""
    watch_greenlets(module)


def instrument_gevent(patches: Patches, module: ModuleType) -> None:
    """Link what gevent's functions spawn."""
    for name in ("spawn", "spawn_later"):
        patches.apply(module, name, _patch_spawn)


def instrument_gevent_pool(patches: Patches, module: ModuleType) -> None:
    """Link what gevent's groups and pools spawn."""
    patches.apply(module.Group, "add", _patch_add)


def instrument_eventlet(patches: Patches, module: ModuleType) -> None:
    """Link the green threads of eventlet, pools included."""
    patches.apply(module.GreenThread, "__init__", _patch_init)
