"""Every public trace and arrival file loads."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from tests.lab.workload.public_data import arrival_files, public_traces

from autellix_lab.workload.loaders import detect_format, load
from autellix_lab.workload.request_log import read_request_log
from autellix_lab.workload.trace_files import read_traces


def name_of(path: Path) -> str:
    return path.name


@pytest.mark.parametrize("path", public_traces(), ids=name_of)
def test_every_public_trace_loads(path: Path) -> None:
    """Each line is a program, and the loader of recorded traces changes nothing in complete lines."""
    programs = read_traces(path)

    assert len(gzip.decompress(path.read_bytes()).splitlines()) == len(programs)
    assert detect_format(path) == "recorded"
    assert programs == load(path)


@pytest.mark.parametrize("path", arrival_files(), ids=name_of)
def test_every_arrival_file_loads(path: Path) -> None:
    """Arrivals begin at zero, and as programs each row is one call."""
    times = [request.arrival_s for request in read_request_log(path)]

    assert min(times) == 0.0
    assert times == [program.arrival_s for program in load(path)]
