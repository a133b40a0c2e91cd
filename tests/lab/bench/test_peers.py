"""The comparison with routers of others: their commands, how calls name programs, and the table of runs."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import socket
import tempfile
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.engine import FakeEngine

from autellix_lab.bench.results import CallResult
from autellix_lab.demo.parts import DemoOptions
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


@pytest.mark.parametrize("is_fitted", [True, False])
def test_agentinfer_is_an_engine_of_its_own_environment(is_fitted: bool) -> None:
    found = load("peers").agentinfer(Path("env/bin/vllm"), ["--model", "m"], 9, is_fitted=is_fitted)
    assert found.name == ("AgentInfer" if is_fitted else "AgentInfer, its own constants")
    assert found.command[0] == "env/bin/python"
    config = json.loads(found.command[found.command.index("--additional-config") + 1])
    costs = config["agentcache"].get("progress_ttl", {})
    assert costs.get("decode_step_fixed_seconds") == (0.0028 if is_fitted else None)
    assert load("peers").lifecycle_socket(9) in found.environment.values()


def test_agentinfer_gets_the_costs_of_an_engine() -> None:
    prefill = {
        "intercept_seconds": 0.1,
        "linear_seconds_per_1k_tokens": 0.2,
        "quadratic_seconds_per_1k_tokens_squared": 0.3,
        "decode_throughput_alpha": 0.9,
    }
    decode = {
        "fixed_step_seconds": 0.4,
        "batch_step_seconds_per_request": 0.5,
        "context_step_seconds_per_token": 0.6,
    }
    assert load("peers").agentinfer_settings(prefill, decode, 7.0) == {
        "schedule_interval_seconds": 7.0,
        "progress_ttl": {
            "ttl_prefill_model_intercept_seconds": 0.1,
            "ttl_prefill_model_linear_seconds_per_1k_tokens": 0.2,
            "ttl_prefill_model_quadratic_seconds_per_1k_tokens_squared": 0.3,
            "decode_step_fixed_seconds": 0.4,
            "decode_step_seconds_per_request": 0.5,
            "decode_step_seconds_per_context_token": 0.6,
        },
    }


def test_agentinfer_learns_the_end_of_a_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as engine:
        engine.bind(load("peers").lifecycle_socket(9) + ".dp0")
        asyncio.run(load("peers_client").end("AgentInfer", "http://127.0.0.1:9/v1", "p"))
        assert json.loads(engine.recv(1000)) == {"program_id": "p", "lifecycle": "terminal"}
        # An engine without calls reads nothing, and its socket holds few messages.
        for _ in range(1000):
            load("peers_client").tell_end("http://127.0.0.1:9/v1", "p")


def test_each_peer_gets_the_program_in_its_own_way() -> None:
    names_of = load("peers_client").names_of
    assert names_of("ThunderAgent", "p", is_last=True) == {"program_id": "p"}
    context = names_of("vllm-router", "p", is_last=False)["vllm_xargs"]["agentic_context"]
    assert json.loads(context) == {"program_id": "p"}
    last = json.loads(names_of("vllm-router", "p", is_last=True)["vllm_xargs"]["agentic_context"])
    assert last["expected_resume"] is False
    assert names_of("LiteLLM", "p", is_last=False) == {"headers": {"x-litellm-session-id": "p"}}
    assert names_of("smg", "p", is_last=False) == {}


def test_clients_of_others_name_the_program_of_each_call() -> None:
    """In a process of their own, against a fake engine."""
    live = load("peers_live")
    calls = tuple(
        CallTrace(id=at, parents=(at - 1,) if at else (), thread="main", prefill_tokens=12, decode_tokens=2)
        for at in range(2)
    )
    programs = [ProgramTrace(source="test", program_id="p", calls=calls)]

    async def main() -> tuple[list[CallResult], FakeEngine]:
        engine = FakeEngine()
        await engine.start()
        try:
            system = live.System([engine.base_url], [engine.base_url])
            results = await asyncio.to_thread(live.play, "vllm-router", system, programs, [0.0], "salt", None)
            return results, engine
        finally:
            await engine.stop()

    results, engine = asyncio.run(main())
    assert [result.error for result in results] == [None, None]
    contexts = [
        json.loads(request.json["vllm_xargs"]["agentic_context"])
        for request in engine.calls
        if "vllm_xargs" in request.json
    ]
    assert [context["program_id"] for context in contexts] == ["salt:p"] * 2
    assert "expected_resume" not in contexts[0] and contexts[1]["expected_resume"] is False


def run(system: str, number: int, mean: float, **fields: Any) -> dict[str, Any]:
    own = {"engines": 1, "workload": "tools", "round": number, "system": system}
    figures = {"mean steps": mean, "p95 steps": 2.0, "mean s": mean, "cached": 0.5, "passes": 100.0}
    return own | figures | {"lost": 0, "other length": 0} | fields


def test_a_share_is_a_quotient_of_means_with_the_error_of_its_rounds() -> None:
    share_of = load("peers_live").share_of
    runs = [run("vLLM", number, mean) for number, mean in ((1, 10.0), (2, 30.0), (3, 20.0))]
    runs += [run("smg", number, mean) for number, mean in ((1, 5.0), (2, 15.0), (4, 99.0))]
    found = share_of(runs, "smg", "vLLM", "mean steps")
    assert (found.ratio, found.error) == (0.5, 0.0)
    # Residuals of -1/4 and +1/4 of the base's mean.
    noisy = [*runs[:2], run("smg", 1, 5.0), run("smg", 2, 25.0)]
    assert str(share_of(noisy, "smg", "vLLM", "mean steps")) == "0.75 ± 0.12"
    assert str(share_of(runs[:1] + runs[3:4], "smg", "vLLM", "mean steps")) == "0.50"
    assert share_of(runs, "smg", "vLLM", "last s") is None


def test_the_table_has_means_of_plain_vllm_and_shares_of_others() -> None:
    runs = [run("vLLM", 1, 400.0), run("vLLM", 2, 600.0)]
    runs += [run("smg", 1, 200.0, cached=0.75), run("smg", 2, 300.0, lost=1)]
    lines = load("peers_live").table(runs, ["vLLM", "smg", "LiteLLM"]).splitlines()
    assert lines[0] == "| | mean steps | p95 steps | mean s | passes | cached | errors, rounds |"
    assert lines[2:] == [
        "| vLLM | 500 ± 100 | 2 ± 0 | 500 ± 100 | 100 ± 0 | 0.50 | 0, 2 |",
        "| smg | 0.50 ± 0.00 | 1.00 ± 0.00 | 0.50 ± 0.00 | 1.00 ± 0.00 | 0.62 | 1, 2 |",
    ]


def test_a_table_may_have_other_figures() -> None:
    runs = [{"system": "vLLM", "round": 1, "p99 s": 4.0, "cached": 0.5}]
    lines = load("peers_live").table(runs, ["vLLM"], ("p99 s", "last s")).splitlines()
    assert lines == [
        "| | p99 s | cached | errors, rounds |",
        "|---|---|---|---|",
        "| vLLM | 4 | 0.50 | 0, 1 |",
    ]


def test_losses_are_where_others_are_ahead_the_farthest_first() -> None:
    runs = [run("autellix", 1, 4.0), run("smg", 1, 3.0, **{"p95 steps": 1.0}), run("autellix inside", 1, 1.0)]
    names = ["smg", "autellix", "autellix inside"]
    assert load("peers_live").losses(runs, names, "autellix") == [
        "p95 steps: smg 0.50 of autellix",
        "mean s: smg 0.75 of autellix",
        "mean steps: smg 0.75 of autellix",
    ]


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
    rows = load("peers_live").table([run("vLLM", 1, 1.0), run("smg", 1, 1.0) | found], ["smg"])
    assert rows.splitlines()[2].startswith("| smg | - | - | - | ")
    assert rows.endswith(" | 2, 1 |")


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
    monkeypatch.setattr(live, "work", lambda _: (0.0, 0.0))
    known = run("smg", 1, 5.0) | {
        "speed": {"tokens_per_s": 100.0, "window_s": 1.0, "calls": 9, "step_s": 0.01}
    }
    (tmp_path / "runs.jsonl").write_text(json.dumps(known) + "\n", encoding="utf-8")
    args = argparse.Namespace(rounds=1, engines=1, step_ms=None, out=tmp_path)
    runs = live.read_runs(tmp_path / "runs.jsonl")
    systems = {name: live.System(["u"], ["e"]) for name in ("vLLM", "smg")}
    options = {"tools": DemoOptions(kv_programs=4)}
    live.Measurement(args, systems, options, runs, float("inf")).play_rounds()
    assert played == ["vLLM"]
    assert [item["system"] for item in live.read_runs(tmp_path / "runs.jsonl")] == ["smg", "vLLM"]
    assert runs[1]["speed"]["step_s"] == 0.01
