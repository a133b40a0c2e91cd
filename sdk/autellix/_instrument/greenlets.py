"""Links greenlets to the program thread that spawns them: patches of gevent and eventlet.

The class of gevent's greenlets takes no patches, so the functions that spawn one are patched. A greenlet that
is made in another way is in no program until it opens one.
"""

from __future__ import annotations

from autellix._instrument.patches import before, on_init, on_result
from autellix._programs.branches import link
from autellix._programs.running import state

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

    from autellix._instrument.patches import Patches


def instrument_greenlets(_patches: Patches, module: ModuleType) -> None:
    """Find the program thread by the greenlet that runs."""
    state.greenlet, state.current_greenlet = module.greenlet, module.getcurrent


def instrument_gevent(patches: Patches, module: ModuleType) -> None:
    """Link what gevent's functions spawn."""
    for name in ("spawn", "spawn_later"):
        # The greenlet starts later, when its spawner waits.
        patches.apply(module, name, on_result(link))


def instrument_gevent_pool(patches: Patches, module: ModuleType) -> None:
    """Link what gevent's groups and pools spawn."""
    patches.apply(module, "Group.add", before(lambda _group, greenlet: link(greenlet)))


def instrument_eventlet(patches: Patches, module: ModuleType) -> None:
    """Link the green threads of eventlet, pools included."""
    patches.apply(module, "GreenThread.__init__", on_init(link))
