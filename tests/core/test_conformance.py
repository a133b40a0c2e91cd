"""What each policy, admission rule and balancer must do; a new one joins by a line in one of the tables."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import ClassVar

import pytest
from tests.core.test_rules import LastComeFirstServed, OneAtATime

from autellix_backend.core.arrival import Arrival, Context
from autellix_backend.core.balance import BALANCER_NAMES, Balancer, make_balancer
from autellix_backend.core.balance.base import ArrivingCall, EngineLoad, FinishedCall
from autellix_backend.core.boost import ProgramBoost
from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.errors import NoEngineError
from autellix_backend.core.machine import Machine
from autellix_backend.core.names import ADMISSION_NAMES, POLICY_NAMES
from autellix_backend.core.place import Place
from autellix_backend.core.policies import Policy, make_policy
from autellix_backend.core.policies.base import QueueInputs
from autellix_backend.core.queues.base import Queue
from autellix_backend.core.queues.programs import ProgramQueue
from autellix_backend.core.table import Program

KV_TOKENS, SLOTS, PROGRAMS, IDLE_STEPS = 2000, 2, 16, 2
"""A step takes a second, and no engine with a waiting call idles for more than two."""

POLICIES: dict[str, Callable[[], Policy]] = {
    **{name: partial(make_policy, name) for name in POLICY_NAMES},
    "lcfs": LastComeFirstServed,
}
ADMISSIONS: dict[str, Callable[[], Machine]] = {
    **{
        name: partial(Machine, SchedulerConfig(admission=name), kv_tokens=KV_TOKENS)
        for name in ADMISSION_NAMES
    },
}
BALANCERS: dict[str, Callable[[], Balancer]] = {name: partial(make_balancer, name) for name in BALANCER_NAMES}


class Play:
    """Programs of seeded shapes in a machine: chains of calls, some of two at once, some given up."""

    def __init__(self, machine: Machine, seed: int) -> None:
        self.machine, self.log = machine, list[tuple[float, str, str]]()
        self._random = random.Random(seed)
        self._shapes = {
            f"p{number}": [
                (self._random.randint(1, 6), self._random.randint(100, 700))
                for _ in range(self._random.randint(1, 4))
            ]
            for number in range(PROGRAMS)
        }
        self._begins = {program: self._random.randint(0, 20) for program in self._shapes}
        self._left: dict[str, int] = {}
        self._context: dict[str, int] = {}
        self._next = dict.fromkeys(self._shapes, 0)
        self._idle = 0

    def run(self) -> list[tuple[float, str, str]]:
        """Play until every program has ended; return all decisions."""
        longest = 20 + 10 * sum(steps for calls in self._shapes.values() for steps, _ in calls)
        for step in range(longest):
            self._play(step)
            self.machine.check()
            if not self._shapes:
                break
        assert not self._shapes, "a call was never served"
        assert len(self.machine) == 0
        assert not list(self.machine.refused())
        return self.log

    def _play(self, step: int) -> None:
        now, machine = float(step), self.machine
        for call_id in [call_id for call_id, left in self._left.items() if not left]:
            machine.finish(call_id, now, work=10.0, context_tokens=self._context[call_id])
            self._close(call_id, now)
        for program, begin in sorted(self._begins.items()):
            if begin <= step:
                del self._begins[program]
                # Every third program has two calls at once.
                for _ in range(1 + (int(program[1:]) % 3 == 0)):
                    self._arrive(program, now)
        if step % 7 == 3 and self._left:
            call_id = self._random.choice(sorted(self._left))
            machine.abort(call_id, now)
            self._close(call_id, now)
        for call_id in machine.review(now, step, self._context.__getitem__):
            self.log.append((now, "review", call_id))
        for change in machine.tick(now):
            self.log.append((now, "level", change.call_id))
        self._check_places()
        chosen = machine.batch(SLOTS)
        assert len(chosen) <= SLOTS
        for call in [call for call in machine if call.is_running and call not in chosen]:
            machine.preempt(call.call_id, now)
            self.log.append((now, "preempt", call.call_id))
        for call in chosen:
            assert call.is_admitted
            if not call.is_running:
                machine.start(call.call_id, now)
                self.log.append((now, "start", call.call_id))
            self._left[call.call_id] -= 1
            machine.charge(call.call_id, 1.0, now + 1)
        self._idle = 0 if chosen or not self._left else self._idle + 1
        assert self._idle <= IDLE_STEPS, "calls wait, and nothing runs"

    def _check_places(self) -> None:
        """Assert that programs which move as one are queued, and activated, by their present place."""
        machine = self.machine
        for call in machine:
            first = machine.shares.first_of(call.tenant, call.program_id)
            if first is not None and first.group is not None:
                place = machine.policy.place(machine.table[call.program_id], machine.boost)
                assert first.group.place == place, (
                    "a program is not where `place` puts it: is that the place of the queue, "
                    "and does the policy say by `boosts` that it changes?"
                )

    def _arrive(self, program: str, now: float) -> None:
        number = self._next[program]
        if number == len(self._shapes[program]):
            return
        self._next[program] += 1
        steps, tokens = self._shapes[program][number]
        call_id = f"{program}.{number}"
        self._left[call_id], self._context[call_id] = steps, tokens
        needs = Context(tokens=tokens)
        self.machine.arrive(
            Arrival(call_id, program, tenant=f"t{len(program) % 2}", context=needs, expected_s=steps), now
        )

    def _close(self, call_id: str, now: float) -> None:
        program = call_id.split(".")[0]
        del self._left[call_id]
        if any(name.startswith(f"{program}.") for name in self._left):
            return
        if self._next[program] < len(self._shapes[program]):
            self._begins[program] = int(now) + self._random.randint(0, 3)
        else:
            del self._shapes[program]
            self.machine.end_program(program, now)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kv_tokens", [float("inf"), KV_TOKENS], ids=["ample", "scarce"])
@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_serves_every_call_and_decides_alike_each_time(
    name: str, kv_tokens: float, seed: int
) -> None:
    config = SchedulerConfig()
    logs = [Play(Machine(config, kv_tokens=kv_tokens, policy=POLICIES[name]()), seed).run() for _ in range(2)]
    assert logs[0] == logs[1]


class LeastWork(Policy):
    """The program with the least work so far goes first, of which the machine is not told that it changes."""

    name: ClassVar[str] = "least_work"

    def make_queue(self, inputs: QueueInputs) -> Queue:
        return ProgramQueue(partial(self.place, boost=inputs.boost), inputs.numbers)

    def place(self, program: Program, boost: ProgramBoost) -> Place:
        return Place(program.work)


def test_a_policy_whose_order_goes_stale_is_found() -> None:
    with pytest.raises(AssertionError, match="boosts"):
        Play(Machine(SchedulerConfig(), policy=LeastWork()), 0).run()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ADMISSIONS)
def test_an_admission_rule_starves_nobody_and_keeps_nothing(name: str, seed: int) -> None:
    machine = ADMISSIONS[name]()
    log = Play(machine, seed).run()
    assert log == Play(ADMISSIONS[name](), seed).run()
    # Programs that have ended, or were never known.
    for program in ("p0", "never seen"):
        machine.forget_program(program)
    machine.check()


def test_a_rule_under_which_an_engine_idles_while_calls_wait_is_found() -> None:
    with pytest.raises(AssertionError, match="nothing runs"):
        Play(Machine(SchedulerConfig(), admission=OneAtATime()), 0).run()


def loads_of(calls: Counter[str]) -> list[EngineLoad]:
    return [
        EngineLoad(
            name=name,
            running=min(calls[name], 4),
            waiting=max(calls[name] - 4, 0),
            slots=4,
            prefill_s_per_token=0.001,
            decode_s_per_token=0.02,
        )
        for name in "abc"
    ]


@pytest.mark.parametrize("name", BALANCERS)
def test_a_balancer_uses_all_engines_and_decides_alike_each_time(name: str) -> None:
    chosen = []
    for _ in range(2):
        balancer, calls = BALANCERS[name](), Counter[str]()
        picks = []
        for number in range(60):
            program = f"p{number % 20}"
            engine = balancer.assign(ArrivingCall(program, 4000), loads_of(calls))
            calls[engine] += 1
            picks.append(engine)
            if number % 3 == 2:
                ended = picks[number - 2]
                calls[ended] -= 1
                program = f"p{(number - 2) % 20}"
                balancer.finished(
                    FinishedCall(program_id=program, engine=ended, prompt_tokens=4000, output_tokens=9)
                )
        chosen.append(picks)
    assert chosen[0] == chosen[1]
    assert set(chosen[0]) == set("abc")


@pytest.mark.parametrize("name", BALANCERS)
def test_a_balancer_takes_only_engines_that_can(name: str) -> None:
    balancer, calls = BALANCERS[name](), Counter[str]()
    first = balancer.assign(ArrivingCall("p", 100), loads_of(calls))
    # The engine of a known program drains; then another has its model alone.
    draining = [replace(load, is_accepting=load.name != first) for load in loads_of(calls)]
    assert balancer.assign(ArrivingCall("p", 100), draining) != first
    for only in "abc":
        assert balancer.assign(ArrivingCall("p", 100, among={only}), loads_of(calls)) == only
    for call, loads in (
        (ArrivingCall("p", 100), []),
        (ArrivingCall("q", 100, among=()), loads_of(calls)),
        (ArrivingCall("q", 100), [replace(load, is_accepting=False) for load in loads_of(calls)]),
    ):
        with pytest.raises(NoEngineError):
            balancer.assign(call, loads)
    # Unknown by then, and twice.
    balancer.finished(FinishedCall(program_id="never seen", engine="z", prompt_tokens=1, output_tokens=1))
    for program in ("p", "p", "never seen"):
        balancer.forget(program)
    assert balancer.placement("p") is None
