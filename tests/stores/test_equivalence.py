"""Random histories: every store says of them what the memory of one process says."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.stores.tables import IDLE_S, SESSION_TTL_S, Table, all_programs, check, end, start

from autellix_backend.core.errors import DuplicateCallError, UnknownCallError
from autellix_backend.core.hints import NO_HINTS, Hints
from autellix_backend.core.policies import make_policy
from autellix_backend.core.priority import Priority
from autellix_backend.stores.base import (
    Adoption,
    CallEnd,
    CallStart,
    ProgramEnd,
    ProgramStore,
    ProgramView,
    Reaped,
    StoredCall,
)
from autellix_backend.stores.memory import MAX_FLAGS, MemoryStore

SECONDS = st.floats(min_value=0.0, max_value=50.0, allow_nan=False)
NAMES = st.sampled_from(["p", "q", "r"])
KEYS = st.sampled_from(["a", "b", "c", "d"])
SESSIONS = st.sampled_from(["s", "t"])
FLAGS = st.lists(st.sampled_from([f"flag{number}" for number in range(MAX_FLAGS + 2)]), max_size=4)

HINTS = Hints(
    priority=Priority.BATCH,
    group="g17",
    class_name="chat",
    return_s=90.0,
    retain_s=30.0,
    expected_calls=3.0,
    expected_tokens=70.0,
)
STARTS = st.builds(
    CallStart,
    key=KEYS,
    call_id=KEYS,
    program_id=NAMES,
    thread_id=st.sampled_from(["0", "1"]),
    parents=st.none() | st.lists(KEYS, max_size=2).map(tuple),
    session_id=st.none() | SESSIONS,
    name=st.none() | st.sampled_from(["chat", "tree"]),
    class_id=st.none() | st.sampled_from(["/chat", "/tree"]),
    hints=st.just(NO_HINTS)
    | st.builds(Hints, expected_calls=st.none() | SECONDS, expected_tokens=st.none() | SECONDS),
    flags=FLAGS.map(tuple),
    interceptions=st.lists(st.tuples(st.sampled_from(["search"]), SECONDS), max_size=2).map(tuple),
    adopts=st.none() | st.builds(Adoption, NAMES, KEYS),
    is_identified=st.booleans(),
)
ENDS = st.builds(
    CallEnd,
    key=KEYS,
    program_id=NAMES,
    outcome=st.sampled_from(["ok", "aborted"]),
    services_s=st.lists(SECONDS, max_size=2).map(tuple),
    wait_s=SECONDS,
    table_wait_s=SECONDS,
    inherited_service_s=SECONDS,
    is_estimated=st.booleans(),
    level=st.none() | st.just(2),
    prompt_tokens=st.none() | st.integers(0, 9),
    cached_tokens=st.none() | st.integers(0, 9),
    output_tokens=st.none() | st.integers(0, 9),
    is_final=st.sampled_from([False, False, False, True]),
)
STEPS: st.SearchStrategy[tuple[str, Any]] = st.one_of(
    STARTS.map(lambda call: ("begin", with_unique_key(call))),
    ENDS.map(lambda ending: ("settle", with_unique_key(ending))),
    SESSIONS.map(lambda name: ("open_session", name)),
    SESSIONS.map(lambda name: ("heartbeat", name)),
    SESSIONS.map(lambda name: ("close_session", name)),
    NAMES.map(lambda name: ("end_program", name)),
    st.just(("reap", None)),
)


def with_unique_key(call: Any) -> Any:
    """Keys are unique over all programs."""
    return replace(call, key=f"{call.program_id}-{call.key}")


async def take(store: ProgramStore, step: tuple[str, Any], now: float) -> object:
    """Do one step; return its answer, an error included."""
    method, argument = step
    try:
        answer = await getattr(store, method)(*([] if argument is None else [argument]), now)
        # The order of what is reaped in one round means nothing.
        return (sorted(answer.programs), sorted(answer.sessions)) if isinstance(answer, Reaped) else answer
    except (DuplicateCallError, UnknownCallError) as error:
        return type(error)


async def everything(store: ProgramStore) -> list[Any]:
    views = await all_programs(store)
    return [await store.counts(), views, [await store.program(view.program_id) for view in views]]


@pytest.mark.parametrize("policy", ["plas", "atlas", "atlas_dag"])
@settings(
    max_examples=15,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(steps=st.lists(st.tuples(STEPS, st.sampled_from([0.0, 0.5, 7.0, 40.0])), max_size=40))
async def test_a_history_reads_alike_in_every_store(table: Table, policy: str, steps: list[Any]) -> None:
    await table.renew()
    store = await table.open(policy)
    memory = MemoryStore(make_policy(policy), program_idle_s=IDLE_S, session_ttl_s=SESSION_TTL_S)
    left: list[ProgramEnd] = []
    expected: list[ProgramEnd] = []
    store.subscribe(left.append)
    memory.subscribe(expected.append)
    now = 0.0
    for step, pause_s in steps:
        now += pause_s
        assert await take(memory, step, now) == await take(store, step, now), step
    assert await everything(memory) == await everything(store)
    assert sorted(expected) == sorted(left)
    check(store)


async def test_every_field_of_a_view_is_restored(table: Table) -> None:
    """A field that a store does not keep shows here, new ones too."""
    store = await table.open("plas")
    memory = MemoryStore(make_policy("plas"), program_idle_s=IDLE_S, session_ttl_s=SESSION_TTL_S)
    full: dict[str, Any] = {"name": "chat", "thread_id": "2", "parents": ("x",), "flags": ("implicit",)}
    full |= {"thread_name": "planner", "hints": HINTS, "adopts": Adoption("q", "c")}
    tools = (("search", 0.5),)
    for one in (memory, store):
        sized = {**full, "class_id": "/chat", "owner": "me"}
        await one.begin(start("a", session="s", interceptions=tools, **sized), 1.0)
        await one.begin(start("b", **full), 2.0)
        tokens: dict[str, Any] = {"prompt_tokens": 7, "cached_tokens": 5, "output_tokens": 3}
        cost: dict[str, Any] = {
            "level": 2,
            "preemptions": 1,
            "inherited_service_s": 1.0,
            "is_estimated": True,
        }
        await one.settle(end("a", 1.0, is_final=True, **cost, **tokens), 3.0)
    expected, view = await memory.program("p"), await store.program("p")
    assert view == expected
    assert unused_fields(view, ProgramView) == set()
    assert unused_fields(view.calls[0], StoredCall) == set()
    assert unused_fields(view.calls[0].start, CallStart) == set()
    assert unused_fields(view.calls[0].start.hints, Hints) == set()
    assert unused_fields(view.calls[0].end, CallEnd) == set()


def unused_fields(view: object, kind: Any) -> set[str]:
    """Return the fields that are empty or zero, and so would not show if they were forgotten."""
    return {field.name for field in msgspec.structs.fields(kind) if not getattr(view, field.name)}
