"""Links greenlets to the program thread that spawns them: patches of gevent.

The class of gevent's greenlets takes no patches, so the functions that spawn one are patched. A greenlet that
is made in another way, or by another library, is in no program until it opens one.
"""

from __future__ import annotations

from autellix._faults import safely
from autellix._instrument.patches import before, on_result
from autellix._programs.branches import BranchFunction, link, new_branch
from autellix._programs.running import state

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from autellix._instrument.patches import Patches


def instrument_greenlets(_patches: Patches, module: ModuleType) -> None:
    """Find the program thread by the greenlet that runs."""
    state.current_greenlet = module.getcurrent


def instrument_gevent(patches: Patches, module: ModuleType) -> None:
    """Link what gevent's functions spawn."""
    for name in ("spawn", "spawn_later"):
        # The greenlet starts later, when its spawner waits.
        patches.apply(module, name, on_result(link))


def instrument_gevent_pool(patches: Patches, module: ModuleType) -> None:
    """Link what gevent's groups and pools spawn."""
    patches.apply(module, "Group.add", before(lambda _group, greenlet: link(greenlet)))
    for name in ("map", "map_async", "imap", "imap_unordered", "apply_async"):
        patches.apply(module, f"GroupMappingMixin.{name}", _patch_map)


def _patch_map(original: Callable[..., Any]) -> Callable[..., Any]:
    """Patch a method that runs a function in greenlets, which another greenlet of gevent's spawns."""

    def call(self: Any, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        origin = None if isinstance(func, BranchFunction) else safely(new_branch)
        return original(self, func if origin is None else BranchFunction(origin, func), *args, **kwargs)

    return call
