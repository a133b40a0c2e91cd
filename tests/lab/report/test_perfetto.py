"""Programs in Chrome's trace event format, as Perfetto wants it."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from typing import Any

import msgspec
from tests.console.page.stage import telling_program, wide_program
from tests.lab.report.traces import recorded_trace

from autellix_backend.console.http.timeline import timeline_of
from autellix_lab.report.perfetto import perfetto_trace, recorded_timeline


def telling() -> dict[str, Any]:
    timeline: dict[str, Any] = msgspec.to_builtins(timeline_of(telling_program(), "research-7"))
    return timeline


def check(trace: dict[str, Any]) -> None:
    """Check what the trace event format and Perfetto's importer of it want.

    Slices of one track nest, an outer one before those in it; times are whole microseconds; every track has
    a name; an arrow has one beginning and one end, in this order, each inside a slice of its track.
    """
    assert json.loads(json.dumps(trace, allow_nan=False)) == trace
    assert trace["displayTimeUnit"] in ("ms", "ns")
    slices: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    arrows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    named = set()
    for event in trace["traceEvents"]:
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert isinstance(event["name"], str)
        assert event["ph"] in ("M", "X", "s", "f")
        if event["ph"] == "M":
            named.add((event["name"], event["pid"], event["tid"]))
            continue
        assert isinstance(event["ts"], int)
        assert event["ts"] >= 0
        assert ("process_name", event["pid"], 0) in named
        assert ("thread_name", event["pid"], event["tid"]) in named
        if event["ph"] == "X":
            assert isinstance(event["dur"], int)
            assert event["dur"] >= 0
            slices[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
        else:
            arrows[event["id"]].append(event)
    for found in slices.values():
        check_nesting(found)
    for begin, end in arrows.values():
        assert (begin["ph"], end["ph"], end["bp"]) == ("s", "f", "e")
        assert (begin["cat"], begin["name"], begin["pid"]) == (end["cat"], end["name"], end["pid"])
        assert begin["ts"] <= end["ts"]
        for event in (begin, end):
            track = slices[event["pid"], event["tid"]]
            assert any(start <= event["ts"] <= finish for start, finish in track)


def check_nesting(slices: list[tuple[int, int]]) -> None:
    """Check the slices of a track, which the importer sorts by their starts; others keep their order."""
    open_ends: list[int] = []
    for start, end in sorted(slices, key=lambda each: each[0]):
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        assert not open_ends or end <= open_ends[-1], "two slices of one track overlap"
        open_ends.append(end)


def test_a_program_is_a_process_and_its_threads_are_tracks() -> None:
    trace = perfetto_trace([telling()])
    check(trace)
    names = {
        (event["name"], event["args"]["name"]) for event in trace["traceEvents"] if "_name" in event["name"]
    }

    assert names == {
        ("process_name", "research-7 (research)"),
        *(("thread_name", thread) for thread in ("0", "search-1", "search-2", "search-3")),
    }


def test_a_call_holds_what_it_did_and_its_tools_come_before() -> None:
    slices = {
        (event["cat"], event["name"], event["ts"], event["dur"])
        for event in perfetto_trace([telling()])["traceEvents"]
        if event["ph"] == "X"
    }

    assert slices > {
        ("call", "search-1", 12_000_000, 12_000_000),
        ("tool", "web_search", 9_000_000, 3_000_000),
        ("span", "preempted", 17_000_000, 3_000_000),
    }


def test_arrows_lead_from_a_call_to_those_that_depend_on_it() -> None:
    events = perfetto_trace([telling()])["traceEvents"]

    assert sum(event["ph"] == "s" for event in events) == 10
    assert {event["ts"] for event in events if event["ph"] == "f"} >= {12_000_000, 53_000_000}


def test_programs_keep_their_arrivals_and_order() -> None:
    trace = perfetto_trace(filter(None, map(recorded_timeline, recorded_trace(20))))
    check(trace)
    names = [event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "process_name"]

    assert [name.split(" ")[0] for name in names] == [f"program-{number}" for number in range(20)]


def test_a_program_without_times_has_no_timeline() -> None:
    [program] = recorded_trace(1)

    assert recorded_timeline(replace(program, calls=(replace(program.calls[0], start_s=None),))) is None


def test_calls_of_one_thread_that_overlap_get_tracks_of_their_own() -> None:
    timeline = telling()
    for call in timeline["calls"]:
        call["thread_id"] = "0"
    check(perfetto_trace([timeline]))


def test_an_open_call_lasts_until_now() -> None:
    timeline = telling()
    timeline["calls"][-1]["finish_s"] = None
    trace = perfetto_trace([timeline])
    check(trace)
    [write] = [event for event in trace["traceEvents"] if event["name"] == "write"]

    assert write["ts"] + write["dur"] == 84_000_000


def test_thousands_of_calls_keep_the_format() -> None:
    timeline: dict[str, Any] = msgspec.to_builtins(timeline_of(wide_program("batch", 3000), "batch"))
    trace = perfetto_trace([timeline, telling()])
    check(trace)

    assert sum(event.get("cat") == "call" for event in trace["traceEvents"]) == 3009


def test_nothing_is_an_empty_trace() -> None:
    assert perfetto_trace([])["traceEvents"] == []
