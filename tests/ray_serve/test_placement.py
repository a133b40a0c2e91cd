"""Programs stay at their replica, and go elsewhere when it is full or gone."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from autellix_backend.core.balance import EngineLoad
from autellix_backend.core.errors import UnknownBalancerError
from autellix_backend.ray_serve import placement
from autellix_backend.ray_serve.placement import ServedCall, ServePlacement, read_call, replica_load


def replicas(**calls: int) -> list[EngineLoad]:
    return [replica_load(name, count, 4) for name, count in calls.items()]


def call(program: str | None, *, tokens: int = 5000, is_final: bool = False) -> ServedCall:
    return ServedCall(program_id=program, prompt_tokens=tokens, is_final=is_final)


def test_a_program_returns_to_its_replica_although_another_is_idle() -> None:
    placing = ServePlacement()
    assert placing.ranked(call("p"), replicas(b=1, a=2), 0.0) == ["b", "a"]
    assert placing.ranked(call("p"), replicas(a=0, b=4), 1.0) == ["b", "a"]
    assert placing.ranked(call("q"), replicas(a=0, b=4), 1.0) == ["a", "b"]


def test_short_calls_and_calls_without_a_program_go_to_the_least_used_replica() -> None:
    placing = ServePlacement()
    placing.ranked(call("p"), replicas(a=0, b=1), 0.0)
    assert placing.ranked(call("p", tokens=10), replicas(a=3, b=1), 0.0) == ["b", "a"]
    assert placing.ranked(call(None), replicas(a=3, b=1), 0.0) == ["b", "a"]
    assert set(placing._seen_s) == {"p"}


def test_a_replica_that_is_gone_loses_its_programs() -> None:
    placing = ServePlacement()
    placing.ranked(call("p"), replicas(a=0, b=1), 0.0)
    assert placing.ranked(call("p"), replicas(b=9), 1.0) == ["b"]
    assert placing.ranked(call("p"), replicas(a=0, b=9), 2.0)[0] == "b"


def test_programs_are_dropped_when_they_end_or_are_idle() -> None:
    placing = ServePlacement(program_idle_s=10.0)
    for program in ("ended", "idle", "busy"):
        placing.ranked(call(program), replicas(a=0, b=1), 0.0)
    placing.sent(call("ended", is_final=True))
    placing.sent(call("idle"))
    assert set(placing._seen_s) == {"idle", "busy"}
    placing.ranked(call("busy"), replicas(a=0, b=1), 9.0)
    placing.ranked(call(None), replicas(a=0, b=1), 11.0)
    assert set(placing._seen_s) == {"busy"}
    assert placing.ranked(call("busy"), replicas(a=9, b=1), 12.0)[0] == "a"


def test_of_too_many_programs_the_one_that_was_seen_first_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "MAX_PROGRAMS", 2)
    placing = ServePlacement()
    for program in ("a", "b", "a", "c"):
        placing.ranked(call(program), replicas(x=0, y=1), 0.0)
    assert set(placing._seen_s) == {"a", "c"}
    assert placing._balancer._pins.keys() == {"a", "c"}  # type: ignore[attr-defined]


def test_an_unknown_balancer_is_refused() -> None:
    with pytest.raises(UnknownBalancerError, match="locality_bounded"):
        ServePlacement("nearest")


def test_reads_the_arguments_of_an_llm_deployment() -> None:
    request = SimpleNamespace(messages=[{"role": "user", "content": "x" * 4000}])
    raw = SimpleNamespace(headers={"X-Autellix-Program-ID": "p", "X-Autellix-Final": "true"})
    found = read_call([request, raw])
    assert (found.program_id, found.is_final) == ("p", True)
    assert 1000 <= found.prompt_tokens <= 1020


def test_reads_an_http_request() -> None:
    scope = {"headers": [(b"X-Dynamo-Session-ID", b"d"), (b"content-length", b"400")]}
    assert read_call([SimpleNamespace(asgi_scope=scope)]) == ServedCall(program_id="d", prompt_tokens=100)


def test_ray_serves_own_session_is_a_program_where_nothing_else_is() -> None:
    assert read_call([], "s").program_id == "s"
    assert read_call([SimpleNamespace(headers={"X-Autellix-Program-ID": "p"})], "s").program_id == "p"
    assert read_call([]).program_id is None


def test_a_malformed_id_names_no_program() -> None:
    raw = SimpleNamespace(headers={"X-Autellix-Program-ID": "\x00"})
    assert read_call([raw], "s").program_id is None
