"""Makes reversible changes to other modules, at once or after their import."""

from __future__ import annotations

import functools
import sys

from autellix._faults import log_debug, safely

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

    Make = Callable[[Any], Any]
    OnImport = Callable[[ModuleType], None]

_INHERITED = object()


class Patches:
    """The methods replaced so far."""

    def __init__(self) -> None:
        self._applied: list[tuple[Any, str, Any, Any]] = []

    def apply(self, owner: Any, name: str, make: Make) -> None:
        """Replace `owner.name` by `make(original)`; log and skip if there is no such method."""
        original = getattr(owner, name, None)
        if not callable(original):
            log_debug("%r has no method %s: not instrumented", owner, name)
            return
        replacement = make(original)
        # The raw attribute of the class, so that a class method is restored as one.
        self._applied.append((owner, name, vars(owner).get(name, _INHERITED), replacement))
        setattr(owner, name, replacement)

    def revert(self) -> None:
        """Restore the originals, newest first; a patch that another library has wrapped stays, inert."""
        while self._applied:
            owner, name, original, replacement = self._applied.pop()
            if vars(owner).get(name) is not replacement:
                continue
            if original is _INHERITED:
                delattr(owner, name)
            else:
                setattr(owner, name, original)


def around(begin: Callable[..., Any]) -> Make:
    """Return a patch that calls `begin` with the arguments of each call, and closes its result afterwards."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            begun = safely(begin, self, *args, **kwargs)
            try:
                return original(self, *args, **kwargs)
            finally:
                if begun is not None:
                    safely(begun.close)

        return run

    return make


def around_async(begin: Callable[..., Any]) -> Make:
    """Return the patch that `around` returns, for a coroutine function."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        async def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            begun = safely(begin, self, *args, **kwargs)
            try:
                return await original(self, *args, **kwargs)
            finally:
                if begun is not None:
                    safely(begun.close)

        return run

    return make


class ImportHook:
    """A finder that finds no modules itself: it calls back after the import of a module it waits for."""

    def __init__(self) -> None:
        self._waiting: dict[str, OnImport] = {}

    def when_imported(self, name: str, callback: OnImport) -> None:
        """Call back with the module, at once if it is loaded, else right after its import."""
        module = sys.modules.get(name)
        if module is not None:
            safely(callback, module)
            return
        self._waiting[name] = callback
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Stop waiting, and leave `sys.meta_path`."""
        self._waiting.clear()
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Let the other finders find the module, and watch its execution."""
        if name not in self._waiting:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None if finder is self or find is None else find(name, path, target)
            if spec is not None:
                safely(self._watch, spec)
                return spec
        return None

    def _watch(self, spec: ModuleSpec) -> None:
        loader: Any = spec.loader
        if loader is None or isinstance(loader, type):
            # A namespace package, or a loader class that many modules share, which cannot be patched.
            return
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            execute(module)
            callback = self._waiting.pop(spec.name, None)
            if callback is not None:
                safely(callback, module)

        loader.exec_module = exec_module
