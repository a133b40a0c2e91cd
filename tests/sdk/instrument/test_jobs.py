"""Jobs of Celery and dramatiq are programs, and Dask is in none; tests need their library, or are skipped."""

from __future__ import annotations

import threading
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import autellix
from autellix._instrument import jobs
from autellix._instrument.patches import Patches
from autellix.integration import root_scope


def here() -> tuple[str | None, str]:
    identity = autellix.current()
    return identity.name, identity.program_id


@pytest.fixture
def task(sdk: None) -> Any:
    celery = pytest.importorskip("celery")
    app = celery.Celery("app", broker="memory://", backend="cache+memory://")
    app.conf.task_always_eager = True
    return app.task(name="app.answer")(here)


def test_each_task_of_celery_is_a_program(task: Any) -> None:
    (first_name, first_id), (second_name, second_id) = task.delay().get(), task.delay().get()
    assert first_name == second_name == "app.answer"
    assert first_id != second_id
    assert here()[0] is None


def test_task_that_runs_where_it_was_sent_stays_in_its_program(task: Any) -> None:
    with autellix.program("a"):
        assert task.delay().get()[0] == "a"


def test_framework_inside_a_task_has_a_program_of_its_own(task: Any) -> None:
    assert root_scope("graph") is not None

    def run() -> bool:
        return root_scope("graph") is not None

    found = task.app.task(name="app.run")(run)
    assert found.delay().get()


def test_task_above_the_bound_stays_outside(sdk: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing would close its program, and the worker's thread would stay in it."""
    monkeypatch.setattr(jobs, "MAX_OPEN", 0)
    jobs._CeleryJobs().begin("id", SimpleNamespace(name="app.answer"))
    assert here()[0] is None


def test_celery_is_left_as_it_was(task: Any) -> None:
    autellix.uninstrument()
    assert task.delay().get()[0] is None


def test_each_run_of_an_actor_is_a_program(sdk: None) -> None:
    dramatiq = pytest.importorskip("dramatiq")
    broker = pytest.importorskip("dramatiq.brokers.stub").StubBroker()
    seen: list[tuple[str | None, str]] = []
    actor = dramatiq.actor(lambda: seen.append(here()), actor_name="answer", broker=broker)
    worker = dramatiq.Worker(broker, worker_threads=1)
    worker.start()
    try:
        for _ in range(2):
            actor.send()
        broker.join("default", timeout=60_000)
        worker.join()
    finally:
        worker.stop()
    assert [name for name, _ in seen] == ["answer", "answer"]
    assert len({program_id for _, program_id in seen}) == 2


def test_the_threads_of_a_dask_client_are_in_no_program(sdk: None) -> None:
    """Its cluster in this process too; it is made with the client."""
    names: list[str | None] = []

    class Client:
        def __init__(self) -> None:
            self.thread = threading.Thread(target=lambda: names.append(autellix.current().name))
            self.thread.start()

    module: Any = ModuleType("distributed.client")
    module.Client = Client
    patches = Patches()
    jobs.instrument_dask(patches, module)
    outside = autellix.current().name
    with autellix.program("first"):
        client = Client()
        client.thread.join()
        assert autellix.current().name == "first"
    assert names == [outside]
    patches.revert()
