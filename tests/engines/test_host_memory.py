"""The host memory that engines get for KV blocks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autellix_backend.cli.announcements import note_host_memory
from autellix_backend.engines import host_memory
from autellix_backend.engines.factory import make_engines
from autellix_backend.engines.host_memory import with_host_memory
from autellix_backend.settings import EngineSettings, RaySettings, Settings, SettingsError

GIB = 1 << 30


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have 64 GiB, of which 40 are free, and no container's limit."""
    monkeypatch.setattr(host_memory, "_physical_bytes", lambda: 64 * GIB)
    memory = tmp_path / "meminfo"
    memory.write_text(f"MemTotal: {64 << 20} kB\nMemAvailable:   {40 << 20} kB\n", encoding="ascii")
    monkeypatch.setattr(host_memory, "_MEMORY", memory)
    monkeypatch.setattr(host_memory, "_CGROUPS", ((tmp_path / "max", tmp_path / "current"),))
    return tmp_path


def given(**engine: Any) -> Settings:
    return Settings(engine=EngineSettings(**{"model": "m"} | engine))


def gib_of(**engine: Any) -> float | str | None:
    return with_host_memory(given(**engine)).engine.kv_host_gib


def test_a_size_is_given_as_it_is_and_zero_is_none(machine: Path) -> None:
    assert gib_of(kv_host_gib="1.5") == 1.5
    assert gib_of(kv_host_gib=0) is None
    assert gib_of() is None
    engines = make_engines(given(state_dir=machine, kv_host_gib="auto"))
    assert "--kv-transfer-config" in engines[0].command(1)  # type: ignore[attr-defined]


def test_auto_shares_half_of_the_free_memory(machine: Path) -> None:
    assert gib_of(kv_host_gib="auto") == 20.0
    assert gib_of(kv_host_gib="auto", replicas=3) == 6.0
    assert gib_of(kv_host_gib="auto", replicas=30) is None


@pytest.mark.parametrize(("limit", "gib"), [("max", 20.0), (str(12 * GIB), 5.0), (str(GIB), None)])
def test_auto_stays_within_the_limit_of_a_container(machine: Path, limit: str, gib: float | None) -> None:
    (machine / "max").write_text(f"{limit}\n", encoding="ascii")
    (machine / "current").write_text(str(2 * GIB), encoding="ascii")

    assert gib_of(kv_host_gib="auto") == gib


def test_all_engines_together_leave_some_memory() -> None:
    assert gib_of(kv_host_gib=63.5) == 63.5
    with pytest.raises(SettingsError, match=r"engine.kv_host_gib: is 32 for each of 2 engines.*64\.0 GiB"):
        gib_of(kv_host_gib=32, replicas=2)


def test_only_engines_that_we_start_here_get_memory() -> None:
    """A running one's is not ours to give, and that of Ray's machines is not known here."""
    with pytest.raises(SettingsError, match=r"engine.kv_host_gib: is given without engine.model"):
        gib_of(model=None, kv_host_gib=1)
    ray = RaySettings(address="auto")
    with pytest.raises(SettingsError, match=r"engine.kv_host_gib: is auto with Ray.*expected a number"):
        with_host_memory(replace(given(kv_host_gib="auto"), ray=ray))
    assert with_host_memory(replace(given(kv_host_gib=500), ray=ray)).engine.kv_host_gib == 500.0


@pytest.mark.parametrize("value", ["much", "-1", "inf", "nan", True, ""])
def test_what_is_no_size_is_an_error(value: object) -> None:
    with pytest.raises(SettingsError, match=r"engine.kv_host_gib.*a number"):
        given(kv_host_gib=value)


@pytest.mark.parametrize(
    ("asked", "is_cpu", "told"),
    [
        ("auto", True, "20.0 GiB of host memory for the KV blocks of each engine"),
        (None, False, "--kv-host-gib auto would give each engine 20 GiB"),
        (None, True, ""),
        (0, False, ""),
        (5, False, ""),
    ],
)
def test_the_start_tells_of_host_memory(
    asked: object,
    is_cpu: bool,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("autellix_backend.cli.announcements.is_cpu_engine", lambda: is_cpu)
    settings = given(kv_host_gib=asked)
    note_host_memory(settings.engine, with_host_memory(settings).engine.kv_host_gib)

    printed = capsys.readouterr().err
    assert told in printed
    assert bool(printed) is bool(told)


def test_the_memory_of_this_machine_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert 0 < host_memory.free_bytes() <= host_memory._physical_bytes()


def test_nothing_is_offered_where_nothing_is_free(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("autellix_backend.cli.announcements.is_cpu_engine", lambda: False)
    note_host_memory(given(replicas=30).engine, None)

    assert capsys.readouterr().err == ""
