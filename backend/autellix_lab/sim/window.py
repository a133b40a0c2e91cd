"""A window of a gateway's history as a workload, to ask what another policy would have done with it.

The simulator has the calls, their dependencies and token counts, the pauses between them, and the arrivals.
It lacks the prompts, so a prompt counts as shared as far as the call found it in the cache.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from autellix_lab.workload.trace import CallTrace, ProgramTrace

LEAST_TOKEN_S = 1e-6
"""The least time of an output token: an engine model needs one above zero."""

Ended = Mapping[str, Any]
"""An ended program from `GET /autellix/v1/history`: a row, or with its calls."""


def busy_period(programs: Iterable[Ended], program_id: str) -> list[Ended]:
    """Return the programs that ran beside the one of an id, beside those, and so on; in order of arrival.

    Before the first of them nothing of the history ran, nor after the last one, so that no other program of
    it had a part in when they ended.

    Raises:
        KeyError: if no program has the id.
    """
    by_arrival = sorted(programs, key=lambda program: program["began_at_s"])
    period: list[Ended] = []
    end_s = 0.0
    for program in by_arrival:
        if period and program["began_at_s"] > end_s:
            if any(each["program_id"] == program_id for each in period):
                break
            period = []
        period.append(program)
        end_s = max(end_s, program["began_at_s"] + program["duration_s"])
    if not any(each["program_id"] == program_id for each in period):
        raise KeyError(program_id)
    return period


def program_trace(program: Ended) -> ProgramTrace | None:
    """Return an ended program with its calls as a trace; None if the tokens of none are known.

    A call depends on its parents that had ended before it came, else on the last call of its thread, or on
    the last of all. The time since then is its gap, a tool's or a person's.
    """
    calls: list[CallTrace] = []
    places: dict[str, int] = {}
    ends = _Ends()
    known = [call for call in program["calls"] if call["prompt_tokens"]]
    for call in sorted(known, key=lambda call: (call["start_s"], call["finish_s"])):
        parents = _parents(call, calls, places, ends)
        last = max((calls[parent] for parent in parents), key=_finish_s, default=None)
        shared = 0 if last is None else min(call["cached_tokens"] or 0, last.context_tokens)
        places[call["call_id"]] = len(calls)
        calls.append(
            CallTrace(
                id=len(calls),
                parents=parents,
                thread=call["thread_id"],
                prefill_tokens=call["prompt_tokens"],
                decode_tokens=call["output_tokens"] or 0,
                shared_prefix_tokens=min(shared, call["prompt_tokens"]),
                prefix_from=None if last is None else last.id,
                gap_before_s=call["start_s"] - (0.0 if last is None else _finish_s(last)),
                start_s=call["start_s"],
                latency_s=call["finish_s"] - call["start_s"],
            )
        )
        ends.add(calls[-1])
    if not calls:
        return None
    return ProgramTrace(
        source="history",
        program_id=program["program_id"],
        calls=tuple(calls),
        arrival_s=program["began_at_s"],
        system_prefix_tokens=min(calls[0].prefill_tokens, program["calls"][0]["cached_tokens"] or 0),
    )


class _Ends:
    """The ends of all calls, and of each thread's, in order: a look-up does not scan thousands of calls."""

    def __init__(self) -> None:
        self._all: list[tuple[float, int]] = []
        self._by_thread: dict[str, list[tuple[float, int]]] = {}

    def add(self, call: CallTrace) -> None:
        """Note a call."""
        # Of calls that ended at the same time, the first is the last in order.
        end = (_finish_s(call), -call.id)
        insort(self._all, end)
        insort(self._by_thread.setdefault(call.thread, []), end)

    def last_before(self, moment_s: float, thread: str) -> int | None:
        """Return the call that had ended last by a moment: of a thread, else of all; None without one."""
        for ends in (self._by_thread.get(thread, []), self._all):
            number = bisect_right(ends, (moment_s, 1))
            if number:
                return -ends[number - 1][1]
        return None


def _parents(
    call: Ended, calls: Sequence[CallTrace], places: Mapping[str, int], ends: _Ends
) -> tuple[int, ...]:
    last = ends.last_before(call["start_s"], call["thread_id"])
    if call["parents"] == [] or last is None:
        return ()
    known = {places[parent] for parent in call["parents"] or () if parent in places}
    named = sorted(place for place in known if _finish_s(calls[place]) <= call["start_s"])
    return tuple(named) or (last,)


def _finish_s(call: CallTrace) -> float:
    return (call.start_s or 0.0) + (call.latency_s or 0.0)


def token_times(programs: Iterable[Ended]) -> tuple[float, float]:
    """Return the seconds of a computed prompt token and of an output token, by the calls' service.

    They are the least squares over all calls, neither below zero; both hold for batches as full as they were.
    """
    rows = [
        (
            (call["prompt_tokens"] or 0) - (call["cached_tokens"] or 0),
            call["output_tokens"] or 0,
            call["service_s"],
        )
        for program in programs
        for call in program["calls"]
        if call["service_s"] > 0
    ]
    pp = sum(prompt * prompt for prompt, _, _ in rows)
    po = sum(prompt * output for prompt, output, _ in rows)
    oo = sum(output * output for _, output, _ in rows)
    ps = sum(prompt * service for prompt, _, service in rows)
    os = sum(output * service for _, output, service in rows)
    determinant = pp * oo - po * po
    if determinant > 1e-9 * pp * oo:
        prompt_s, output_s = (ps * oo - os * po) / determinant, (os * pp - ps * po) / determinant
        if prompt_s >= 0 and output_s > 0:
            return prompt_s, output_s
    # One of them alone: output tokens, whose steps most of a call's service goes to.
    return 0.0, max(LEAST_TOKEN_S, os / oo if oo else 0.0)
