"""The client switched on for one test, and a recording backend for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

import autellix
from autellix import _backends
from autellix.testing import RecordingBackend

# Tests of other packages share this process: they get it as it was.
autellix.uninstrument()


@pytest.fixture
def sdk() -> Iterator[None]:
    """The client, switched on for this test only."""
    before = set(threading.enumerate())
    autellix.configure()
    autellix.instrument()
    yield
    autellix.uninstrument()
    for thread in set(threading.enumerate()) - before:
        if thread.name == "autellix-control":
            thread.join(5)
            assert not thread.is_alive()
    _backends.backends.configure({})


@pytest.fixture
def backend(sdk: None) -> Iterator[RecordingBackend]:
    with RecordingBackend() as backend:
        # Named, so that no first call goes without headers because the answer to a probe is late.
        autellix.configure(backend.url)
        yield backend
