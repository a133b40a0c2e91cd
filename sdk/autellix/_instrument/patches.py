"""Makes reversible changes to other modules, at once or after their import."""

from __future__ import annotations

import functools
import sys
import threading
from types import FunctionType

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
        self._undo: list[Callable[[], object]] = []
        self.missing: list[str] = []
        """What these versions of the libraries lack."""

    def apply(self, module: Any, path: str, make: Make) -> bool:
        """Replace what is at a path in a module, such as `Client.send`, by `make(original)`.

        The replacement gets the original's name and signature.

        Returns:
            Whether it is there; what this version of the library lacks is noted and skipped.
        """
        holder, _, name = path.rpartition(".")
        owner = functools.reduce(_get, holder.split("."), module) if holder else module
        original = _get(owner, name)
        if not callable(original):
            self.note_missing(f"{getattr(module, '__name__', module)}.{path}")
            return False
        place, key = _place(owner, name)
        before = vars(owner).get(name, _INHERITED)
        if place is not owner:
            original = before = getattr(place, key)
        if any(
            entry[3] is original and entry[1] == name and (entry[0] is owner or place is not owner)
            for entry in self._applied
        ):
            # A module was loaded again, and what it had patched in another one is still in place. Or a
            # wrapper has been wrapped for a subclass.
            return True
        replacement: Any = make(original)
        function: Any = getattr(replacement, "__func__", replacement)
        functools.update_wrapper(function, original)
        # The raw attribute of the class, so that a class method is restored as one.
        self._applied.append((owner, name, before, replacement))
        setattr(place, key, replacement)
        return True

    def note_missing(self, what: str) -> None:
        """Note what this version of a library lacks."""
        log_debug("%s is missing: not instrumented", what)
        self.missing.append(what)

    def when_reverted(self, undo: Callable[[], object]) -> None:
        """Call this with the next `revert`, for a change that is no replaced method."""
        self._undo.append(undo)

    def revert(self) -> None:
        """Restore the originals, newest first; a patch that another library has wrapped stays, inert."""
        self.missing.clear()
        while self._undo:
            safely(self._undo.pop())
        while self._applied:
            owner, name, original, replacement = self._applied.pop()
            place, key = _place(owner, name)
            if (vars(owner).get(name) if place is owner else getattr(place, key)) is not replacement:
                continue
            if original is not _INHERITED:
                setattr(place, key, original)
            elif place is owner:
                delattr(owner, name)


def _place(owner: Any, name: str) -> tuple[Any, str]:
    """Return the object and attribute that hold a function, inside what wrapt has put around it.

    OpenTelemetry looks for its own wrapper there when it is switched off, and would not find one inside ours.
    """
    place, key = owner, name
    wrapt: Any = sys.modules.get("wrapt")
    # Of wrapt 2, else of wrapt 1.
    proxy: Any = getattr(wrapt, "BaseObjectProxy", None) or getattr(wrapt, "ObjectProxy", ())
    found = vars(owner).get(name)
    while isinstance(found, proxy):
        place, key, found = found, "__wrapped__", getattr(found, "__wrapped__", None)
    return (place, key) if type(found) is FunctionType else (owner, name)


def _get(owner: Any, name: str) -> Any:
    return getattr(owner, name, None)


def before(step: Callable[..., object]) -> Make:
    """Return a patch that runs a step of ours with the arguments of each call, and then the original."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            safely(step, *args, **kwargs)
            return original(*args, **kwargs)

        return run

    return make


def on_result(step: Callable[[Any], object]) -> Make:
    """Return a patch that runs a step of ours with the result of each call."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            safely(step, result)
            return result

        return run

    return make


def on_init(step: Callable[[Any], object]) -> Make:
    """Return a patch of `__init__` that runs a step of ours with each new object."""

    def make(original: Callable[..., None]) -> Callable[..., None]:
        def run(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            safely(step, self)

        return run

    return make


def around(begin: Callable[..., Any]) -> Make:
    """Return a patch that calls `begin` with the arguments of each call, and closes its result afterwards."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
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
        self._half_loaded: dict[str, ModuleType] = {}
        """Modules whose import had begun before they were waited for."""
        self._sought: set[tuple[int, str]] = set()
        """By thread: modules that are being looked for."""

    def when_imported(self, name: str, callback: OnImport) -> None:
        """Call back with the module, at once if it is loaded, and right after each import of it."""
        self._waiting[name] = callback
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)
        module = sys.modules.get(name)
        if module is None:
            return
        if _is_half_loaded(module):
            self._half_loaded[name] = module
        else:
            safely(callback, module)

    def remove(self) -> None:
        """Stop waiting, and leave `sys.meta_path`."""
        self._waiting.clear()
        self._half_loaded.clear()
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Let the other finders find the module, and watch its execution."""
        if self._half_loaded:
            safely(self._settle)
        sought = (threading.get_ident(), name)
        if name not in self._waiting or sought in self._sought:
            # Another hook asks all finders again and wraps what they find: that is watched further out.
            return None
        self._sought.add(sought)
        try:
            spec = self._ask_others(name, path, target)
        finally:
            self._sought.discard(sought)
        if spec is not None:
            safely(self._watch, spec)
        return spec

    def _ask_others(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None if finder is self or find is None else find(name, path, target)
            if spec is not None:
                return spec
        return None

    def _settle(self) -> None:
        for name, module in list(self._half_loaded.items()):
            if not _is_half_loaded(module) and self._half_loaded.pop(name, None) is not None:
                safely(self._waiting[name], module)

    def _watch(self, spec: ModuleSpec) -> None:
        loader: Any = spec.loader
        if loader is None or isinstance(loader, type):
            # A namespace package, or a loader class that many modules share, which cannot be patched.
            return
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            execute(module)
            callback = self._waiting.get(spec.name)
            if callback is not None:
                safely(callback, module)

        loader.exec_module = exec_module


def _is_half_loaded(module: ModuleType) -> bool:
    """Return whether a module is still being executed, further out on the stack or in another thread."""
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))
