"""Owns the switch of propagation: whether spawned threads, tasks and processes inherit a program."""

from __future__ import annotations

import threading


class Propagation:
    """`is_on` holds for the process; suppression holds for one operating system thread."""

    def __init__(self) -> None:
        self.is_on = False
        """A patch that another library has wrapped stays in place when the client is switched off."""
        self._local = threading.local()

    @property
    def is_suppressed(self) -> bool:
        """Whether threads and processes that the current thread starts inherit nothing."""
        return getattr(self._local, "is_suppressed", False)

    @is_suppressed.setter
    def is_suppressed(self, value: bool) -> None:
        self._local.is_suppressed = value


propagation = Propagation()


class Suppressed:
    """A `with` block whose new threads and processes inherit nothing."""

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before = propagation.is_suppressed
        propagation.is_suppressed = True

    def __exit__(self, *_: object) -> None:
        propagation.is_suppressed = self._before
