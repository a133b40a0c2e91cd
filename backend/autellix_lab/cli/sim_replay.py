"""`autellix sim replay`: replay the record of an engine's scheduler, and compare every decision."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from autellix_lab.cli.arguments import add_json, adder
from autellix_lab.sim.engine_record import Difference, RecordReplay, read_record, replay


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the action's arguments."""
    adder(parser)("record", "file that an engine wrote into its `record_dir`", Path, metavar="FILE")
    add_json(parser, "print JSON instead of text")


def run(args: argparse.Namespace) -> int:
    """Replay; 0 if all decisions are alike, 1 if not.

    Raises:
        RecordError: it is no record, or of another format.
        OSError: the file cannot be read.
    """
    found = replay(read_record(args.record))
    print(json.dumps(_as_mapping(found)) if args.json else "\n".join(_describe(found)))
    return int(found.difference is not None)


def _as_mapping(found: RecordReplay) -> dict[str, Any]:
    difference = found.difference
    fields = ("line", "event", "recorded", "replayed", "story", "calls")
    return {
        "about": found.about,
        "seconds": found.seconds,
        "events": dict(found.events),
        "difference": None if difference is None else {name: getattr(difference, name) for name in fields},
    }


def _describe(found: RecordReplay) -> list[str]:
    version, policy = found.about.get("autellix", "unknown"), found.about["config"]["policy"]
    lines = [
        f"{found.events.total():,} events in {found.seconds:.1f} s, policy {policy}, autellix {version}",
        ", ".join(f"{count:,} {name}" for name, count in found.events.most_common()),
    ]
    if found.difference is None:
        return [*lines, "every decision is the same"]
    return [*lines, *_describe_difference(found.difference)]


def _describe_difference(difference: Difference) -> list[str]:
    return [
        f"line {difference.line} differs: {json.dumps(difference.event)}",
        f"  recorded: {json.dumps(difference.recorded)}",
        f"  replayed: {json.dumps(difference.replayed)}",
        *("the calls in the replay:" for _ in difference.calls[:1]),
        *(f"  {call}" for call in difference.calls),
        *("what happened to them before:" for _ in difference.story[:1]),
        *(f"  {line}" for line in difference.story),
    ]
