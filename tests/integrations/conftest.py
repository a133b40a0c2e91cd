"""The client switched on for one test, and a recording backend for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.client import switched_on

import autellix
from autellix.testing import RecordingBackend


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Run async tests on asyncio, also where tests/conftest.py is not loaded."""
    return "asyncio"


@pytest.fixture
def sdk() -> Iterator[None]:
    """The client, switched on for this test only."""
    with switched_on():
        yield


@pytest.fixture
def backend(sdk: None) -> Iterator[RecordingBackend]:
    with RecordingBackend() as backend:
        # Named: its first call has headers too.
        autellix.configure(backend.url)
        yield backend
