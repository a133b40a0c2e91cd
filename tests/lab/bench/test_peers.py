"""The comparison with routers of others: their commands, how calls name programs, and the table of runs."""

from __future__ import annotations

import argparse
import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from autellix_lab.bench.results import CallResult
from autellix_lab.workload.trace import CallTrace, ProgramTrace

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
URLS = ("http://127.0.0.1:1", "http://127.0.0.1:2")


@pytest.fixture(autouse=True)
def paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def load(name: str) -> Any:
    return importlib.import_module(name)


def made(program: Path, folder: Path, kv_tokens: int | None = None) -> Any:
    return load("peers").peer(program, URLS, 9, "m", folder, kv_tokens=kv_tokens)


@pytest.mark.parametrize("name", ["vllm-router", "sglang-router", "smg"])
def test_a_router_gets_every_engine_and_its_own_port(name: str, tmp_path: Path) -> None:
    command = made(Path("env/bin") / name, tmp_path).command
    at = command.index("--worker-urls")
    assert tuple(command[at + 1 : at + 3]) == URLS
    assert command[command.index("--port") + 1] == "9"
    assert "--program-scheduling-config-json" not in command


def test_vllms_router_schedules_programs_where_the_kv_memory_is_known(tmp_path: Path) -> None:
    command = made(Path("vllm-router"), tmp_path, kv_tokens=5728).command
    config = json.loads(command[command.index("--program-scheduling-config-json") + 1])
    assert config["token_capacity_per_target"] == 5728


def test_litellm_keeps_a_session_at_its_engine(tmp_path: Path) -> None:
    command = made(Path("litellm"), tmp_path).command
    config = json.loads(Path(command[command.index("--config") + 1]).read_text(encoding="utf-8"))
    assert [item["litellm_params"]["api_base"] for item in config["model_list"]] == [
        f"{url}/v1" for url in URLS
    ]
    assert config["router_settings"]["optional_pre_call_checks"] == ["session_affinity"]


def test_thunderagent_runs_from_a_checkout(tmp_path: Path) -> None:
    found = made(tmp_path, tmp_path)
    assert found.name == "ThunderAgent"
    assert found.environment == {"PYTHONPATH": str(tmp_path)}
    assert ",".join(URLS) in found.command


def test_each_peer_gets_the_program_in_its_own_way() -> None:
    names_of = load("peers_client").names_of
    assert names_of("ThunderAgent", "p", is_last=True) == {"program_id": "p"}
    context = names_of("vllm-router", "p", is_last=False)["vllm_xargs"]["agentic_context"]
    assert json.loads(context) == {"program_id": "p"}
    last = json.loads(names_of("vllm-router", "p", is_last=True)["vllm_xargs"]["agentic_context"])
    assert last["expected_resume"] is False
    assert names_of("LiteLLM", "p", is_last=False) == {"headers": {"x-litellm-session-id": "p"}}
    assert names_of("smg", "p", is_last=False) == {}


def run(system: str, number: int, mean_s: float, **fields: Any) -> dict[str, Any]:
    own = {"engines": 1, "workload": "tools", "round": number, "system": system, "rate": 2.0}
    figures = {"mean s": mean_s, "p50 s": 1.0, "p95 s": 2.0, "makespan s": 3.0, "cached": 0.5}
    return own | figures | {"lost": 0, "other length": 0} | fields


def test_the_table_has_medians_and_the_rounds_ahead_of_ours() -> None:
    runs = [run("smg", number, mean_s) for number, mean_s in ((1, 5.0), (2, 9.0), (3, 7.0))]
    runs += [run("autellix", 1, 6.0), run("autellix", 2, 6.0)]
    lines = load("peers_live").table(runs, ["smg", "autellix", "LiteLLM"]).splitlines()
    assert lines[2] == "| smg | 7 (1 of 2), 1, 2, 3, 0.5 | 0, 3 |"
    assert lines[3:] == ["| autellix | 6, 1, 2, 3, 0.5 | 0, 2 |"]


def test_lost_calls_and_those_of_another_length_are_errors() -> None:
    calls = tuple(
        CallTrace(id=at, parents=(), thread="main", prefill_tokens=4, decode_tokens=10) for at in range(3)
    )
    programs = [ProgramTrace(source="test", program_id="p", calls=calls)]
    results = [
        CallResult(
            program="p",
            call=at,
            thread="main",
            submit_s=0.0,
            finish_s=1.0,
            prompt_tokens=4,
            output_tokens=tokens,
            error=error,
        )
        for at, (tokens, error) in enumerate([(10, None), (7, None), (0, "refused")])
    ]
    found = load("peers_live").figures_of(programs, [0.0], results)
    assert (found["lost"], found["other length"], found["errors"]) == (1, 1, ("refused",))
    assert found["mean s"] is None
    rows = load("peers_live").table([run("smg", 1, 1.0) | found], ["smg"])
    assert rows.endswith("| smg | -, -, -, 1, 0 | 2, 1 |")


def test_systems_take_turns_in_a_seeded_order() -> None:
    order_of, names = load("peers_live").order_of, ["a", "b", "c", "d", "e"]
    assert order_of(names, "tools", 1) == order_of(names, "tools", 1)
    assert sorted(order_of(names, "tools", 1)) == names
    assert len({tuple(order_of(names, "tools", number)) for number in range(9)}) > 1


def test_an_interrupted_round_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    live, played = load("peers_live"), []

    def play(name: str, *_: object) -> list[CallResult]:
        played.append(name)
        return []

    monkeypatch.setattr(live, "play", play)
    (tmp_path / "runs.jsonl").write_text(json.dumps(run("smg", 1, 5.0)) + "\n", encoding="utf-8")
    part = argparse.Namespace(load=argparse.Namespace(programs=[], rho=1.0))
    args = argparse.Namespace(rounds=1, engines=1, out=tmp_path)
    runs = live.read_runs(tmp_path / "runs.jsonl")
    urls = {"vLLM": ["u"], "smg": ["v"]}
    live.Measurement(args, urls, {"tools": part}, runs, float("inf")).play_rounds()
    assert played == ["vLLM"]
    assert [item["system"] for item in live.read_runs(tmp_path / "runs.jsonl")] == ["smg", "vLLM"]
    assert runs[1]["rate"] == 2.0
