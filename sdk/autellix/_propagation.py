"""Owns the switch of propagation: whether spawned threads, tasks and processes inherit a program."""

from __future__ import annotations

import threading


class Propagation:
    """The switch of the process."""

    is_on = False
    """A patch that another library has wrapped stays in place when the client is switched off."""


class Suppression(threading.local):
    """The switch of each operating system thread."""

    is_on = False
    """Whether threads and processes that the current thread starts inherit nothing."""


propagation = Propagation()
suppression = Suppression()


class Suppressed:
    """A `with` block whose new threads and processes inherit nothing."""

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before = suppression.is_on
        suppression.is_on = True

    def __exit__(self, *_: object) -> None:
        suppression.is_on = self._before
