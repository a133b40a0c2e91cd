"""Explanations as data: why a program's open calls are where they are, in numbers and words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autellix_backend.core.priority import Priority
from autellix_backend.observe.states import EnginePhase, ProgramState


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramAhead:
    """Another program whose calls precede a waiting call."""

    program_id: str | None
    """None, like the service, for a program of another tenant."""
    level: int
    """The queue level of its first call."""
    service_s: float | None
    calls: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CallExplanation:
    """Where a call is and why; None where the engine has not reported it or it does not apply."""

    call_id: str
    thread_id: str
    thread_name: str | None = None
    engine: str
    state: ProgramState
    state_text: str
    """The state in words."""
    phase: EnginePhase | None = None
    text: str
    open_s: float
    """Time since its arrival at the gateway."""
    state_s: float
    """How long it has been in this state."""
    wait_s: float
    """All its waiting up to now."""
    level: int
    level_min_s: float | None = None
    """Attained service at which its queue level begins."""
    level_max_s: float | None = None
    """Attained service at which its queue level ends; None for the last."""
    priority: str = Priority.DEFAULT
    """How urgent it says that its program is."""
    expected_return_s: float | None = None
    """When its client expects the program's next call, in seconds from its end."""
    retain_s: float | None = None
    """The longest time (s) for which its client wants its context kept after it."""
    stated_by: Mapping[str, str] = field(default_factory=dict)
    """Its hints, and the header or the path in the body that states each."""
    inherited_service_s: float
    """Its program's attained service when it arrived, as the policy counts it."""
    service_s: float | None = None
    """Its own attained service."""
    position: int | None = None
    """Its position among all calls of the engine, running ones included; 1 is the first."""
    programs_ahead: tuple[ProgramAhead, ...] = ()
    more_programs_ahead: int = 0
    short_of: str | None = None
    """What a waiting call lacks: `slots`, `kv_blocks`, or `working_set` while its program is inactive."""
    promoted_in_s: float | None = None
    """Waiting left until anti-starvation promotes it to level 1."""
    quantum_left_s: float | None = None
    """Service left until it is demoted."""
    preempted_by_level: int | None = None
    """Waiting calls up to this level can take a running call's slot."""
    preempted_after_calls: int | None = None
    """How many more such calls must wait for that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramExplanation:
    """A program's state, and an explanation of each of its open calls."""

    program_id: str
    name: str | None
    flags: tuple[str, ...]
    state: ProgramState
    state_text: str
    state_s: float
    wait_s: float
    """All waiting of its calls, that of open calls up to now."""
    tools: tuple[str, ...]
    """Between calls: the tools that its last answer asked for."""
    policy: str
    text: str
    snapshot_age_s: float | None
    """The age of the oldest snapshot used."""
    calls: tuple[CallExplanation, ...]
