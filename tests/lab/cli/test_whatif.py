"""`autellix whatif`: an ended program under another policy."""

from __future__ import annotations

import argparse
import json
import math
from typing import Any

import pytest
from tests.lab.sim.test_window import call

from autellix_backend.cli.main import main
from autellix_backend.cli.remote import RemoteGateway
from autellix_lab.cli import whatif
from autellix_lab.cli.arguments import InputError

TOKEN_S = 0.01
LONG, SHORT = 1000, 10


def program(program_id: str, began_at_s: float, duration_s: float, tokens: int) -> dict[str, Any]:
    only = call("0", 0.0, duration_s, output_tokens=tokens, prompt_tokens=1, service_s=tokens * TOKEN_S)
    return {"program_id": program_id, "began_at_s": began_at_s, "duration_s": duration_s, "calls": [only]}


HISTORY = [
    # With one slot: two long ones, and a short one that came after both and yet was served early.
    program("long-0", 0.0, 10.2, LONG),
    program("long-1", 1.0, 19.2, LONG),
    program("short", 2.0, 0.2, SHORT),
    program("elsewhere", 500.0, 0.1, SHORT),
]
ENGINE = {"name": "replica-0", "slots": 1, "kv_total_blocks": 100_000, "kv_block_tokens": 16}
ENGINE |= {"max_in_flight": None, "kv_tokens": None}
SCHEDULER = {"policy": "plas", "preemption": "always", "bounds": [0.1, 1.0], "unknown_to_us": 1}


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The answers of a gateway by their paths."""
    found: dict[str, Any] = {f"/history/{each['program_id']}": each for each in HISTORY}
    found["/history?limit=1000"] = {"programs": HISTORY[::-1], "has_more": False}
    found["/engines"] = {"engines": [{**ENGINE, "slots": None}, ENGINE]}
    found["/config"] = {"scheduler": SCHEDULER}
    monkeypatch.setattr(RemoteGateway, "get", lambda _, path: found[path])
    return found


def run(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    parser = argparse.ArgumentParser()
    whatif.add_arguments(parser)
    assert whatif.run(parser.parse_args(options)) == 0
    return capsys.readouterr().out


def test_a_program_alone_in_its_busy_period_is_compared_to_no_others() -> None:
    row = {"program_id": "p", "measured_s": 2.0, "estimated_s": 1.5}
    answer = {
        "program_id": "p",
        "policy": "boost",
        "other_policy": "fcfs",
        "programs": [row],
        "simulated_over_measured": 0.86,
    }
    assert whatif.text(answer) == (
        "It took 2.0 s. Under fcfs it would have taken about 1.5 s, by simulation. "
        "Simulator error on the measured run (boost): -14 %."
    )
    # What the simulator gets this wrong it cannot judge.
    assert whatif.text({**answer, "simulated_over_measured": 0.48}) == (
        "It took 2.0 s. Simulator error on the measured run (boost): -52 %, above 15 %: no estimate. "
        "Programs that still run, or ended before the history begins, may have shared the engines."
    )


@pytest.mark.usefixtures("answers")
def test_a_short_program_would_have_waited_under_fcfs(capsys: pytest.CaptureFixture[str]) -> None:
    answer = json.loads(run(capsys, "short", "--json"))
    by_id = {each["program_id"]: each for each in answer["programs"]}

    assert (answer["policy"], answer["other_policy"], answer["left_out"]) == ("plas", "fcfs", 0)
    assert by_id.keys() == {"long-0", "long-1", "short"}
    # It came 2 s after the first of two that take 10 s each.
    assert by_id["short"]["estimated_s"] == pytest.approx(18.1, rel=0.1)
    assert by_id["long-0"]["estimated_s"] <= by_id["long-0"]["measured_s"]


def test_a_gateway_that_observes_asks_what_boost_would_do(
    answers: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    answers["/config"] = {"scheduler": {**SCHEDULER, "policy": "fcfs"}}
    answer = json.loads(run(capsys, "short", "--json"))
    assert (answer["policy"], answer["other_policy"]) == ("fcfs", "boost")


@pytest.mark.usefixtures("answers")
def test_the_estimate_is_said_to_be_one_with_its_error(capsys: pytest.CaptureFixture[str]) -> None:
    shown = " ".join(run(capsys, "short", "--policy", "fcfs").split())

    assert "It took 0.20 s. Under fcfs it would have taken about 17." in shown
    assert "by simulation. Of the 3 programs of its busy period, " in shown
    assert "Simulator error on the measured run (plas): " in shown


@pytest.mark.usefixtures("answers")
def test_the_policy_in_force_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    answer = json.loads(run(capsys, "short", "--policy", "plas", "--json"))
    assert all(each["estimated_s"] == pytest.approx(each["measured_s"]) for each in answer["programs"])


def test_a_threshold_that_is_never_reached_is_null(answers: dict[str, Any]) -> None:
    scheduler = {**SCHEDULER, "beta": None}
    settings = whatif.settings_of([ENGINE], scheduler, [answers["/history/short"]])

    assert settings.scheduler.beta == math.inf


def test_a_server_without_our_scheduler_is_known_by_what_the_gateway_learned(answers: dict[str, Any]) -> None:
    """With nothing installed in the engine the gateway observes, and tells what ordering would gain."""
    plain: dict[str, Any] = {
        "name": "remote-0",
        "slots": None,
        "kv_total_blocks": None,
        "kv_block_tokens": None,
    }
    learned = [
        {**plain, "max_in_flight": 6, "kv_tokens": 5728},
        {**plain, "max_in_flight": None, "kv_tokens": None},
    ]
    settings = whatif.settings_of(learned, SCHEDULER, [answers["/history/short"]])
    model = settings.model
    assert (model.max_num_seqs, model.kv_blocks, model.block_tokens, settings.engines) == (6, 358, 16, 1)
    unbounded = whatif.settings_of(
        [{**learned[0], "kv_tokens": None}], SCHEDULER, [answers["/history/short"]]
    )
    assert unbounded.model.kv_blocks is None


def test_what_the_history_cannot_tell_is_an_error(
    answers: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    answers["/history/short"] = {**answers["/history/short"], "calls": []}
    with pytest.raises(InputError, match="the history lacks the tokens of short's calls"):
        run(capsys, "short")
    answers["/engines"] = {"engines": []}
    with pytest.raises(InputError, match="no engine reports its slots"):
        run(capsys, "short")


def test_a_program_behind_those_that_are_listed_is_an_error(
    answers: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """A history may hold more than one answer of the gateway."""
    answers["/history?limit=1000"] = {"programs": HISTORY[:2], "has_more": True}
    with pytest.raises(InputError, match=r"short is not among the last 1,000 programs that ended"):
        run(capsys, "short")


def test_an_error_is_shown_without_a_traceback(
    answers: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    answers["/engines"] = {"engines": []}

    assert main(["whatif", "short"]) == 2
    assert "autellix: error: no engine reports its slots" in capsys.readouterr().err
