"""The scheduler's configuration: one frozen value, checked when it is built."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from autellix_backend.core.names import ADMISSION_NAMES, POLICY_NAMES, USUAL_ADMISSION, present_name


def spread_bounds(first_s: float, levels: int) -> tuple[float, ...]:
    """Return upper bounds (s) of all levels but the last: the first, and each twice the one before."""
    return tuple(first_s * 2.0**level for level in range(levels - 1))


def bounds_for(mean_call_s: float, *, first_calls: float = 0.5) -> tuple[float, ...]:
    """Return the bounds (s) for calls of this mean service.

    Args:
        mean_call_s: The mean service (s) of a call.
        first_calls: How many such calls the first level takes; the last bound is 256 times that.
    """
    return tuple(round(bound, 4) for bound in spread_bounds(mean_call_s * first_calls, CALL_LEVELS))


DEFAULT_BOUNDS = spread_bounds(0.25, 13)
CALL_LEVELS = 10
SERVICE_KINDS = ("measured", "tokens")
PREEMPTION_KINDS = ("priced", "always", "never")
ADMISSION_KINDS = ("auto", *ADMISSION_NAMES)
_KINDS = {
    "policy": POLICY_NAMES,
    "preemption": PREEMPTION_KINDS,
    "admission": ADMISSION_KINDS,
    "service": SERVICE_KINDS,
}
# Weights of the fair-serving literature: decoding a token costs about twice what prefilling one does.
PROMPT_WEIGHT = 1.0
OUTPUT_WEIGHT = 2.0
FALLBACK_SLICE_S = 1.0
# Steps of large models take up to 30 ms, and decisions should not be more than two seconds late.
MAX_PERIOD_STEPS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """The settings of one engine's scheduler; a bad value raises a ValueError that names the field."""

    policy: str = "boost"
    """Rule that turns a program's past into the priority of its next call."""
    bounds: tuple[float, ...] = DEFAULT_BOUNDS
    """Upper bounds of attained service (s) of all levels but the last, which has none. They should reach from
    a fraction of a call to a long program: where all programs are in the last level, nothing is ordered."""
    quanta: tuple[float, ...] | None = None
    """Time quantum (s) of each level; None means the width of each level."""
    beta: float = 8.0
    """Starvation threshold: a call is promoted once its wait/service ratio reaches it; inf = never."""
    period_steps: int = 1
    """Decide once every this many engine steps (at most 64), as in the paper's multi-step scheduling. Between
    two decisions free slots are filled in the order of the last one."""
    demotes: bool = True
    """Whether a running call sinks as it uses up its quantum (Alg. 1, lines 20-22); if not, calls keep the
    level of their program's service at their arrival."""
    preemption: str = "priced"
    """When a running call makes room for one that goes before it: where that gains more than bringing its
    context back costs ("priced"), at once as in the paper ("always"), or not before it ends ("never")."""
    admission: str = "auto"
    """Which programs may run at all: those whose contexts fit into KV memory together ("working_set"), or
    all ("none"). "auto" is the former with `boost`, and the latter with the other policies."""
    kv_share: float = 0.95
    """The share of KV memory that the contexts of active programs may fill; the rest is for what they grow by
    until they are measured again. With host memory they may fill all of it. Simulated, 0.9 costs coding
    agents at full length 2 to 4 % of the mean, and 1 costs tool agents with little memory 15 %."""
    idle_s: float = 120.0
    """The longest time (s) for which an active program without a call keeps its share of KV memory."""
    boost: float = 0.7
    """The strength of `boost` at full spread of sizes, as a share of the mean response time of programs; 0 is
    order of arrival. Higher values favour short programs more, at the expense of the last ones."""
    service: str = "measured"
    """What is charged to a call: "measured" executor time, or "tokens", its weighted tokens."""
    token_s: float = 0.005
    """Nominal seconds of service of one weighted token: a prompt token counts 1, an output token 2."""

    def __post_init__(self) -> None:
        self._check_levels()
        for name, kinds in _KINDS.items():
            value = present_name(getattr(self, name), kinds)
            object.__setattr__(self, name, value)
            if value not in kinds:
                raise ValueError(f"{name} must be one of {', '.join(kinds)}, not {value!r}")
        if not self.beta > 0:
            raise ValueError(f"beta must be positive, not {self.beta}")
        if not 1 <= self.period_steps <= MAX_PERIOD_STEPS:
            raise ValueError(f"period_steps must be from 1 to {MAX_PERIOD_STEPS}, not {self.period_steps}")
        if not 0 < self.kv_share <= 1:
            raise ValueError(f"kv_share must be above 0 and at most 1, not {self.kv_share}")
        if not 0 <= self.boost < math.inf:
            raise ValueError(f"boost must be finite and not negative, not {self.boost}")
        for name in ("token_s", "idle_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be positive and finite, not {getattr(self, name)}")

    def _check_levels(self) -> None:
        if any(not 0 < bound < math.inf for bound in self.bounds):
            raise ValueError(f"bounds must be positive and finite, not {self.bounds}")
        if any(low >= high for low, high in pairwise(self.bounds)):
            raise ValueError(f"bounds must increase, not {self.bounds}")
        if self.quanta is not None and len(self.quanta) != self.level_count:
            raise ValueError(f"quanta must name one quantum for each of the {self.level_count} levels")
        if self.quanta is not None and any(not quantum > 0 for quantum in self.quanta):
            raise ValueError(f"quanta must be positive, not {self.quanta}")

    @property
    def admission_rule(self) -> str:
        """The name of the admission rule: "auto" stands for that of the policy."""
        return USUAL_ADMISSION.get(self.policy, "none") if self.admission == "auto" else self.admission

    @property
    def has_admission(self) -> bool:
        """Whether programs may have to wait for KV memory."""
        return self.admission_rule != "none"

    @property
    def level_count(self) -> int:
        """K, the number of levels that the bounds make."""
        return len(self.bounds) + 1

    @property
    def first_quantum_s(self) -> float:
        """The quantum of the first level (s); without levels, that of every call."""
        if self.quanta is not None:
            return self.quanta[0]
        return self.bounds[0] if self.bounds else math.inf

    @property
    def share_slice_s(self) -> float:
        """The service (s) by which a tenant must be behind to take another's slot: a first quantum."""
        return self.first_quantum_s if self.first_quantum_s < math.inf else FALLBACK_SLICE_S

    def nominal_service_s(self, prompt_tokens: float, output_tokens: float) -> float:
        """Return the service (s) that weighted tokens stand for."""
        return self.token_s * (PROMPT_WEIGHT * prompt_tokens + OUTPUT_WEIGHT * output_tokens)
