"""A record of a machine's events leads to the same decisions, and a changed rule to a difference."""

from __future__ import annotations

import argparse
import gzip
import json
import math
from pathlib import Path
from typing import Any

import pytest
from tests.core.test_conformance import KV_TOKENS, Play

from autellix_backend.core.admission import working_set
from autellix_backend.core.admission.contexts import fill_blocks
from autellix_backend.core.admission.memory import EngineMemory
from autellix_backend.core.arrival import Arrival, Context
from autellix_backend.core.boost import ProgramBoost
from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.errors import UnknownCallError
from autellix_backend.core.machine import Machine
from autellix_backend.core.names import POLICY_NAMES
from autellix_backend.core.policies.plas import Plas
from autellix_backend.core.recording import MachineRecorder
from autellix_backend.core.starvation import StarvationWatch
from autellix_lab.cli import sim_replay
from autellix_lab.sim.engine_record import RecordError, read_record, replay


def recorded(kv_tokens: float = KV_TOKENS, **config: Any) -> tuple[Machine, list[bytes]]:
    """Return a machine and the lines of its record so far."""
    lines: list[bytes] = []
    recorder = MachineRecorder(lines.append, b"secret", {"autellix": "1.0"})
    machine = recorder.make_machine(SchedulerConfig(**config), kv_tokens=kv_tokens, fill=fill_blocks(16))
    return machine, lines


def record_of(seed: int = 0, kv_tokens: float = KV_TOKENS, **config: Any) -> list[bytes]:
    """Return the record of a play with preemptions, aborts and, where memory is scarce, inactive programs."""
    machine, lines = recorded(kv_tokens, **config)
    Play(machine, seed).run()
    return lines


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kv_tokens", [math.inf, KV_TOKENS], ids=["ample", "scarce"])
@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_a_record_replays_to_the_same_decisions(policy: str, kv_tokens: float, seed: int) -> None:
    lines = record_of(seed, kv_tokens, policy=policy, admission="working_set")
    found = replay(lines)
    assert found.difference is None
    assert found.lines == len(lines)
    assert found.events["abort"] > 3
    assert found.seconds > 20


def test_host_memory_and_lost_contexts_replay() -> None:
    machine, lines = recorded()
    machine.admission.use_host_memory(lambda _, tokens: (0.5, tokens / 1000), 3000.0)
    for number in range(12):
        now, call = float(number), f"{number}.0"
        machine.arrive(Arrival(call, str(number % 5), context=Context(500)), now)
        machine.review(now, 16 * number, lambda _: 500)
        for waiting in [each for each in machine if not each.is_running]:
            machine.start(waiting.call_id, now)
            machine.finish(waiting.call_id, now + 0.1, context_tokens=510)
        machine.admission.take_stored()
        machine.admission.take_to_keep()
    machine.admission.lose_contexts()
    found = replay(lines)
    assert found.difference is None
    assert found.events["take_stored"] == 12
    assert any(b"[0.5," in line for line in lines), "no load was asked for"


def test_an_event_that_raised_raises_again() -> None:
    machine, lines = recorded()
    with pytest.raises(UnknownCallError):
        machine.start("nobody", 1.0)
    assert replay(lines).difference is None
    del lines[1:]
    machine.arrive(Arrival("a1", "a"), 1.0)
    machine.start("a1", 1.0)
    lines[-1] = lines[-1].replace(b"start", b"preempt")
    difference = replay(lines).difference
    assert difference is not None
    assert difference.replayed.startswith("raised IllegalMoveError")


@pytest.mark.parametrize(
    ("owner", "method", "value", "policy"),
    [
        (Plas, "inherit", lambda *_: 0.0, "plas"),
        (StarvationWatch, "is_starving", lambda *_: False, "plas"),
        (ProgramBoost, "of", lambda *_: 0.0, "boost"),
        (EngineMemory, "fits", lambda *_: True, "boost"),
    ],
)
def test_a_changed_rule_is_found(
    owner: Any, method: str, value: Any, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the lines before it about the same calls."""
    lines = record_of(policy=policy, beta=1.0)
    monkeypatch.setattr(owner, method, value)
    found = replay(lines)
    difference = found.difference
    assert difference is not None
    assert difference.line == found.lines < len(lines)
    assert difference.recorded != difference.replayed
    assert 0 < len(difference.story) <= 12
    assert json.loads(lines[difference.line - 1])[0] == difference.event[0]


def test_what_the_machine_asks_for_beyond_the_record_is_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = record_of()
    monkeypatch.setattr(working_set, "REVIEW_STEPS", 1)
    difference = replay(lines).difference
    assert difference is not None
    assert "asked for one answer more" in difference.replayed
    monkeypatch.setattr(working_set, "REVIEW_STEPS", 1000)
    difference = replay(lines).difference
    assert difference is not None
    assert "answers less" in difference.replayed


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ([], "no record"),
        ([b"text\n"], "no record"),
        ([b"[]\n"], "no record"),
        ([b'{"format":0}\n'], "format 0"),
        ([b'{"format":1,"config":{"no":1},"kv_tokens":1}\n'], "does not fit this version"),
    ],
)
def test_what_is_no_record_is_refused(lines: list[bytes], problem: str) -> None:
    with pytest.raises(RecordError, match=problem):
        replay(lines)


@pytest.mark.parametrize("line", [b"text\n", b"[]\n", b'["shutdown",[],{},[],null]\n', b'["tick",[1.0]]\n'])
def test_a_line_that_is_no_event_is_refused(line: bytes) -> None:
    first = record_of()[0]
    with pytest.raises(RecordError, match=r"line 2|no event"):
        replay([first, line])


def test_a_hint_of_another_version_is_refused() -> None:
    lines = [line.replace(b'"return_s"', b'"return_of_tomorrow_s"') for line in record_of()]
    with pytest.raises(RecordError, match="does not fit this version"):
        replay(lines)


def test_a_file_that_was_not_closed_is_read_to_its_last_whole_line(tmp_path: Path) -> None:
    path, lines = tmp_path / "engine.jsonl.gz", record_of()
    path.write_bytes(gzip.compress(b"".join(lines))[:-2000])
    read = list(read_record(path))
    assert read == lines[: len(read)]
    assert 0 < len(read) < len(lines)
    path.write_bytes(b"no gzip")
    with pytest.raises(RecordError, match=r"engine\.jsonl\.gz"):
        list(read_record(path))


@pytest.mark.parametrize("is_json", [False, True])
def test_the_command_prints_the_first_difference(
    is_json: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "engine.jsonl.gz"
    path.write_bytes(gzip.compress(b"".join(record_of(policy="plas"))))
    args = argparse.Namespace(record=path, json=is_json)
    assert sim_replay.run(args) == 0
    alike = capsys.readouterr().out
    monkeypatch.setattr(Plas, "inherit", lambda *_: 0.0)
    assert sim_replay.run(args) == 1
    different = capsys.readouterr().out
    if is_json:
        assert json.loads(alike)["difference"] is None
        assert json.loads(different)["difference"]["event"][0] == "arrive"
    else:
        assert "every decision is the same" in alike
        assert "differs" in different
        assert "what happened to them before" in different
