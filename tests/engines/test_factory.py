"""Which engines the settings make."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from autellix_backend.engines import factory
from autellix_backend.engines.factory import make_engines, make_remote
from autellix_backend.engines.ray_replica import RayReplica
from autellix_backend.engines.replica import VllmReplica
from autellix_backend.settings import EngineSettings, RaySettings, Settings, SettingsError

URLS = ("http://one:1", "http://two:2/v1")


def names(**engine: object) -> list[tuple[str, str]]:
    made = make_engines(Settings(engine=EngineSettings(**engine)))  # type: ignore[arg-type]
    return [(engine.name, "" if isinstance(engine, VllmReplica) else engine.base_url) for engine in made]


def test_one_model_or_one_url_is_one_engine(tmp_path: Path) -> None:
    assert names(model="m", state_dir=tmp_path) == [("replica-0", "")]
    assert names(urls=URLS[:1]) == [("remote-0", URLS[0])]


def test_replicas_and_running_engines_mix(tmp_path: Path) -> None:
    told = names(model="m", replicas=2, urls=URLS, state_dir=tmp_path)
    remotes = [("remote-0", "http://one:1"), ("remote-1", "http://two:2")]
    assert told == [("replica-0", ""), ("replica-1", ""), *remotes]


def test_replicas_share_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factory, "is_cpu_engine", lambda: True)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1, 2, 3})
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("VLLM_CPU_OMP_THREADS_BIND", raising=False)
    settings = EngineSettings(model="m", replicas=2, state_dir=tmp_path)
    bound = [
        engine.environment["VLLM_CPU_OMP_THREADS_BIND"]
        for engine in make_engines(Settings(engine=settings))
        if isinstance(engine, VllmReplica)
    ]
    assert bound == ["0,1", "2,3"]


def test_nothing_to_serve_is_an_error() -> None:
    with pytest.raises(SettingsError, match=r"engine.model: is not given"):
        make_engines(Settings())


def test_ray_places_the_replicas_of_a_model() -> None:
    settings = Settings(engine=EngineSettings(model="m", replicas=2), ray=RaySettings(address="auto"))
    engines = make_engines(settings)
    assert [engine.name for engine in engines] == ["replica-0", "replica-1"]
    assert all(isinstance(engine, RayReplica) for engine in engines)


def test_ray_without_a_model_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"ray\.address: is given without engine\.model"):
        make_engines(Settings(ray=RaySettings(address="auto")))


@pytest.mark.parametrize(
    ("url", "port"),
    [
        ("http://gpu1:8000", 9000),
        ("http://gpu1:8001/v1", 9001),
        ("http://gpu1", 1080),
        ("https://gpu1", 1443),
        ("http://gpu1:65000", None),
    ],
)
def test_the_report_port_follows_from_the_address(url: str, port: int | None) -> None:
    found = list(make_remote(EngineSettings(), url, name="e", kind="vllm").report_endpoints)
    assert found == ([] if port is None else [f"tcp://gpu1:{port}"])


def test_a_report_port_may_be_given() -> None:
    engine = make_remote(EngineSettings(), "http://gpu1:8000", name="e", kind="vllm", report_port=7000)
    assert list(engine.report_endpoints) == ["tcp://gpu1:7000"]
