"""Host memory asks for huge pages on the right node, and serves without either."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from autellix_backend.vllm_plugin.offload.host_memory import HostMemory

PAGE_BYTES, BLOCKS = 1 << 16, 64


@pytest.fixture
def memory(request: pytest.FixtureRequest) -> Iterator[HostMemory]:
    """Yield memory on the node that the test names."""
    one = HostMemory([PAGE_BYTES] * 2, BLOCKS, getattr(request, "param", None))
    yield one
    one.close()


def _mapping(file: str, memory: HostMemory) -> list[str]:
    """Return what Linux says of the mapping, the first line on."""
    path = Path("/proc/self") / file
    if not path.exists():
        pytest.skip(f"no {path}")
    lines = path.read_text().splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith(f"{memory.base:x}"))
    return lines[first:]


def test_huge_pages_are_asked_for(memory: HostMemory) -> None:
    """Linux may use huge pages, and gives a forked child none of the memory."""
    lines = _mapping("smaps", memory)
    flags = next(line for line in lines if line.startswith("VmFlags:")).split()
    assert "dc" in flags
    if "hg" not in flags:
        pytest.skip("Linux without transparent huge pages")


@pytest.mark.parametrize("memory", [0], indirect=True)
def test_the_memory_prefers_its_node(memory: HostMemory) -> None:
    """Pages come from the node of the device, while it has some."""
    words = _mapping("numa_maps", memory)[0].split()
    if words[1] == "default":
        pytest.skip("the system call is not allowed here")
    assert words[1].startswith("prefer")
    assert words[1].endswith("0")


def test_a_node_that_does_not_exist_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The memory serves all the same."""
    with caplog.at_level(logging.INFO):
        memory = HostMemory([PAGE_BYTES], BLOCKS, 1000)
    ctypes.memset(memory.base, 7, memory.bytes)
    assert "not bound to NUMA node 1000" in caplog.text
    memory.close()
