"""`autellix sim`: run, sweep, presets and calibrate, with one clear line for bad input."""

from __future__ import annotations

import asyncio
import json
import math
import tempfile
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.engine import FakeBehaviour, FakeEngine
from tests.serving import listening

from autellix_backend.assembly import create_app
from autellix_backend.cli.main import main
from autellix_backend.core.config import SchedulerConfig
from autellix_backend.engines.base import Engine
from autellix_backend.settings import EngineSettings, GatewaySettings, Settings
from autellix_lab.bench.mixes import Mix, usual_mixes
from autellix_lab.sim.baselines import BASELINE_NAMES
from autellix_lab.sim.presets import PRESETS, read_engine
from autellix_lab.workload.generate import generate_programs
from autellix_lab.workload.trace_files import write_traces

FAST = ["--length-scale", "0.1", "--max-num-seqs", "4", "-n", "12"]
"""A few short programs on a small batch."""


def report(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """Run with --json and return what it printed."""
    assert main(["sim", *arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


# run


def test_run_prints_latencies_and_what_was_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    """Every figure has its line, and the fit is stated."""
    assert main(["sim", "run", "chat", *FAST, "--policy", "plas", "--rho", "2"]) == 0

    out = capsys.readouterr().out
    assert "chat under plas" in out
    for title in ("program token latency", "preemptions", "cached share", "Jain", "steps", "time of the sim"):
        assert title in out
    assert "12 programs" in out
    assert "rho 2" in out
    assert "lengths x 0.1, context at most 131072 tokens, gaps as recorded" in out


def test_run_is_reproducible(capsys: pytest.CaptureFixture[str]) -> None:
    """One seed gives one result, another seed another."""
    first, again, other = (
        report(capsys, "run", "chat", *FAST, "--seed", seed)["metrics"] for seed in ("1", "1", "2")
    )

    assert first == again
    assert first != other


def test_rho_and_rate_state_the_same_load(capsys: pytest.CaptureFixture[str]) -> None:
    """Either is computed from the other."""
    by_rho = report(capsys, "run", "react", *FAST, "--rho", "0.7")
    by_rate = report(capsys, "run", "react", *FAST, "--rate", repr(by_rho["rate_per_s"]))

    assert by_rate["rho"] == pytest.approx(0.7)
    assert by_rate["metrics"]["latency_s.mean"] == pytest.approx(by_rho["metrics"]["latency_s.mean"])


def test_a_closed_loop_reports_calls_and_programs_a_minute(capsys: pytest.CaptureFixture[str]) -> None:
    """Three programs are always present; there is no rate and no load."""
    found = report(capsys, "run", "react", *FAST, "--present", "3")

    assert (found["present"], found["rho"], found["rate_per_s"]) == (3, None, None)
    assert found["setting"]["arrivals"] == "closed"
    assert found["metrics"]["peak_programs"] == 3
    assert found["metrics"]["calls_per_min"] > found["metrics"]["programs_per_min"] > 0

    assert main(["sim", "run", "react", *FAST, "--present", "3"]) == 0
    out = capsys.readouterr().out
    assert "calls, 3 always present" in out
    assert "while all are present" in out


def test_run_takes_the_engine_s_and_the_scheduler_s_options(capsys: pytest.CaptureFixture[str]) -> None:
    """They are in the report, and so in the simulation."""
    setting = report(
        capsys,
        *("run", "chat", "-n", "5", "--model", "demo", "--max-num-seqs", "3", "--kv-blocks", "5000"),
        *("--resume", "swap", "--swap", "per_block", "--engines", "2", "--balancer", "locality"),
        *("--bounds", "0.2,0.9", "--beta", "4", "--period-steps", "2", "--no-demotion", "--policy", "plas"),
        *("--hints", "0.5", "--preemption", "never", "--private-prefixes"),
    )["setting"]

    assert (setting["model"]["name"], setting["model"]["max_num_seqs"]) == ("demo", 3)
    assert (setting["model"]["kv_blocks"], setting["model"]["resume"]) == (5000, "swap")
    assert (setting["model"]["swap"], setting["engines"]) == ("per_block", 2)
    assert (setting["balancer"], setting["hints"]) == ("locality", 0.5)
    scheduler = setting["scheduler"]
    assert (scheduler["policy"], scheduler["bounds"], scheduler["beta"]) == ("plas", [0.2, 0.9], 4.0)
    assert (scheduler["period_steps"], scheduler["demotes"]) == (2, False)
    assert scheduler["preemption"] == "never"
    assert setting["shares_prefixes"] is False


def test_the_paper_s_preset_is_simulated_as_it_is_served(capsys: pytest.CaptureFixture[str]) -> None:
    """A single setting overrides it."""
    paper = report(capsys, "run", "chat", *FAST, "--preset", "paper")["setting"]
    changed = report(
        capsys, "run", "chat", *FAST, "--preset", "paper", "--policy", "plas", "--balancer", "least_used"
    )["setting"]

    names = ("policy", "preemption")
    assert [paper["scheduler"][name] for name in names] == ["atlas", "always"]
    assert paper["balancer"] == "locality"
    assert [changed["scheduler"][name] for name in names] == ["plas", "always"]
    assert changed["balancer"] == "least_used"


def test_host_memory_is_given_in_gigabytes(capsys: pytest.CaptureFixture[str]) -> None:
    """A block of Llama 3.1 8B has 2 MiB."""
    options = ("--host-memory", "10", "--resume", "host")
    models = [report(capsys, "run", "chat", *FAST, *options[:end])["setting"]["model"] for end in (2, 4)]

    assert [(model["resume"], model["host_blocks"]) for model in models] == [("host", 4768)] * 2


def test_engines_may_differ_in_speed(capsys: pytest.CaptureFixture[str]) -> None:
    """The speeds say how many engines there are."""
    options = ("--engine-speeds", "1,1,2", "--balancer", "locality_bounded")
    setting = report(capsys, "run", "chat", *FAST, *options)["setting"]
    assert (setting["engines"], setting["engine_speeds"]) == (3, [1.0, 1.0, 2.0])

    assert main(["sim", "run", "chat", *FAST, *options]) == 0
    assert "3 x llama3.1-8b-a100, locality_bounded, speeds 1, 1, 2;" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            ["--engines", "3", "--engine-speeds", "1,2"],
            "engine_speeds must be one for each of 3 engines, not 2",
        ),
        (
            ["--engine-speeds", "1,fast"],
            "'1,fast'; expected comma-separated numbers above zero such as 1,1,2,2",
        ),
        (["--engine-speeds", "1,0"], "'1,0'; expected comma-separated numbers above zero such as 1,1,2,2"),
    ],
)
def test_speeds_that_cannot_be_used_are_named(
    options: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line that says what was expected."""
    try:
        code = main(["sim", "run", "chat", *FAST, *options])
    except SystemExit as exit_:
        code = int(str(exit_.code))
    assert code == 2
    assert expected in capsys.readouterr().err


def test_bounds_can_follow_the_engine(capsys: pytest.CaptureFixture[str]) -> None:
    """An engine that is slower has wider levels."""
    fast, slow = (
        report(capsys, "run", "chat", *FAST, "--auto-bounds", "--model", name)["setting"]["scheduler"][
            "bounds"
        ]
        for name in ("llama3.1-8b-h100", "llama3.1-8b-a100")
    )

    assert slow[0] > fast[0]
    assert slow[1] == pytest.approx(2 * slow[0], rel=0.01)


def test_run_picks_from_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All of it by default, in its order; some, drawn by the seed, with --programs."""
    trace = tmp_path / "trace.jsonl"
    write_traces(trace, generate_programs("react", 8, 3))

    whole = report(capsys, "run", str(trace), "--arrivals", "at_once")
    some = report(capsys, "run", str(trace), "-n", "3", "--arrivals", "bursty")

    assert (whole["programs"], whole["rate_per_s"], whole["rho"]) == (8, None, None)
    assert (some["programs"], some["rho"]) == (3, 1.0)


def test_a_clairvoyant_is_named_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    """In the text, since no engine can run it."""
    assert main(["sim", "run", "chat", *FAST, "--policy", "srpt"]) == 0

    assert "srpt knows what each program still needs, which no engine can" in capsys.readouterr().out


@pytest.mark.parametrize("baseline", BASELINE_NAMES)
def test_a_baseline_is_named_as_simulated_only(baseline: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Schedulers of other systems are chosen like policies."""
    assert main(["sim", "run", "chat", *FAST, "--policy", baseline]) == 0

    out = capsys.readouterr().out
    assert f"chat under {baseline}" in out
    assert f"{baseline} is another system's scheduler by its published rules, simulated only" in out


def test_a_baseline_has_one_engine(capsys: pytest.CaptureFixture[str]) -> None:
    """Its rules for several engines are not simulated."""
    for arguments in (["run", "chat", *FAST, "--policy", "llm-d"], [*SWEEP, "--policies", "fcfs,llm-d"]):
        assert main(["sim", *arguments, "--engines", "2"]) == 2
        assert "llm-d is simulated for one engine, not 2" in capsys.readouterr().err


# sweep

SWEEP = ["sweep", "chat", *FAST, "--seeds", "2", "--workers", "1", "--loads", "0.5,3"]


def test_sweep_prints_ratios_and_throughput_at_equal_latency(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And writes a picture and every number."""
    pytest.importorskip("matplotlib")
    out = tmp_path / "results"

    assert main(["sim", *SWEEP, "--policies", "fcfs,plas,srpt,continuum", "--out", str(out)]) == 0

    shown = capsys.readouterr().out
    assert "ratios to fcfs" in shown
    assert "load at which the mean token latency is that of fcfs at load 0.5" in shown
    assert "srpt knows what" in shown
    assert "continuum is another system's" in shown
    assert (out / "sweep.png").read_bytes().startswith(b"\x89PNG")
    written = json.loads((out / "sweep.json").read_text())
    assert len(written["runs"]) == 2 * 2 * 4
    assert {row["case"] for row in written["ratios"]} == {"plas", "srpt", "continuum"}
    assert written["equal_latency"][0]["load"] == {"mean": 0.5, "half_width": 0.0}


def test_a_latency_that_no_policy_reaches_is_outside_the_range(capsys: pytest.CaptureFixture[str]) -> None:
    """It is said for each policy."""
    assert main(["sim", *SWEEP, "--policies", "fcfs,plas", "--at-latency", "100"]) == 0

    assert capsys.readouterr().out.count("outside the measured range") == 2


def test_a_sweep_without_waiting_calls_prints_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    """A batch that is never full compares nothing."""
    arguments = ["sweep", "chat", "-n", "5", "--seeds", "1", "--loads", "0.1", "--policies", "fcfs,plas"]
    found = report(capsys, *arguments, "--workers", "1")

    assert "calls hardly waited even at load 0.1" in found["notes"][0]
    assert found["equal_latency"] == []
    assert found["summary"][0]["jain"]["half_width"] is None


def test_all_at_once_has_no_loads(capsys: pytest.CaptureFixture[str]) -> None:
    """One point for each policy and seed."""
    arguments = ["sweep", "chat", *FAST, "--seeds", "2", "--policies", "fcfs", "--workers", "1"]
    assert len(report(capsys, *arguments, "--arrivals", "at_once")["runs"]) == 2


# presets


def test_presets_are_listed_with_their_sources(capsys: pytest.CaptureFixture[str]) -> None:
    """As a table and as JSON."""
    assert main(["sim", "presets"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown and engine.source in shown for name, engine in PRESETS.items())

    found = report(capsys, "presets")
    assert found["unit"] == PRESETS["unit"].to_mapping()


# bad input


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "poem"], "poem cannot be read"),
        (["run", "IN/empty.json"], "empty.json holds no program"),
        (["run", "chat", "--model", "gpt"], "model is 'gpt'; expected llama3.1-8b-a100"),
        (["run", "chat", "--model", "IN/empty.json"], "empty.json is not a JSON object"),
        (["run", "chat", "--max-num-seqs", "5000"], "token_budget must be at least max_num_seqs"),
        (["run", "chat", "--host-memory", "1", "--model", "demo"], "demo has no block_bytes"),
        (["run", "chat", "--host-memory", "1", "--resume", "swap"], "no meaning with --resume swap"),
        (["run", "chat", "--hints", "-1"], "hint_sigma must be 0 or more"),
        (["run", "chat", "--kv-blocks", "2", "-n", "3"], "kv_blocks is 2: call"),
        (["run", "chat", "--max-context", "1"], "--length-scale, --max-context"),
        (["run", "chat", "--arrivals", "at_once", "--rho", "1"], "no meaning with --arrivals at_once"),
        (["run", "chat", "--arrivals", "bursty", "--present", "1"], "--arrivals has no meaning"),
        (["run", "chat", "-n", "3", "--present", "3"], "--present is 3: a run needs more programs"),
        (["sweep", "chat", "--arrivals", "at_once", "--loads", "1"], "no meaning with --arrivals at_once"),
        (["sweep", "chat", "--kv-blocks", "2", "-n", "3", "--workers", "1"], "kv_blocks is 2: call"),
        (["calibrate", "http://127.0.0.1:9", "--model", "m"], "does not report its settings"),
    ],
)
def test_bad_input_gives_a_one_line_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    """The exit code is 2, and the line says what is wrong."""
    (tmp_path / "empty.json").write_text("[]")

    assert main(["sim", *(argument.replace("IN", str(tmp_path)) for argument in arguments)]) == 2

    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert line.startswith("autellix: error: ")
    assert message in line
    assert captured.out == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "chat", "--policy", "lottery"],
        ["run", "chat", "--rho", "1", "--rate", "1"],
        ["run", "chat", "--present", "1", "--rate", "1"],
        ["sweep", "chat", "--policies", "fcfs,lottery"],
        ["sweep", "chat", "--loads", "0.5,x"],
    ],
)
def test_bad_options_end_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """As argparse does."""
    with pytest.raises(SystemExit, match="2"):
        main(["sim", *arguments])

    assert arguments[2] in capsys.readouterr().err


def test_bad_scheduler_settings_name_their_option(capsys: pytest.CaptureFixture[str]) -> None:
    """They are read as those of the server."""
    assert main(["sim", "run", "chat", "--beta", "0"]) == 2

    assert "beta" in capsys.readouterr().err


# calibrate


def gateway(engine: Engine) -> AbstractAsyncContextManager[str]:
    """Serve a gateway in front of an engine."""
    settings = Settings(
        gateway=GatewaySettings(report_wait_s=5.0),
        engine=EngineSettings(max_num_seqs=4),
        scheduler=SchedulerConfig(policy="plas"),
    )
    return listening(create_app(settings, engine))


def behind_gateway(engine: Engine, use: Callable[[str], int]) -> int:
    """Run `use` in a thread with the address of a gateway in front of the engine."""

    async def run() -> int:
        async with gateway(engine) as url:
            return await asyncio.to_thread(use, url)

    return asyncio.run(run())


def three_mixes(slots: int, **lengths: int) -> list[Mix]:
    """Return the mixes without which a step's time is not determined; each takes two processes' starts."""
    return usual_mixes(slots, **lengths)[:3]


def test_calibrate_finds_the_fake_engine_s_step_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It charges 10 ms a step whatever is in it; the file is an engine that simulations read."""
    monkeypatch.setattr("autellix_lab.cli.sim_calibrate.usual_mixes", three_mixes)
    out = tmp_path / "engine.json"
    options = ["--seconds", "0.5", "--answer-tokens", "20", "--prompt-tokens", "64", "--out", str(out)]

    async def run() -> int:
        with tempfile.TemporaryDirectory() as folder:
            # With a delay, so that calls overlap.
            behaviour = FakeBehaviour(output_tokens=1000, service_s_per_token=0.01, token_delay_s=0.002)
            engine = FakeEngine(behaviour, report_address=f"ipc://{folder}/reports")
            await engine.start()
            try:
                async with gateway(engine) as url:
                    return await asyncio.to_thread(main, ["sim", "calibrate", url, *options])
            finally:
                await engine.stop()

    assert asyncio.run(run()) == 0

    found = read_engine(out)
    assert found.max_num_seqs == 4
    assert found.step_s == pytest.approx(0.01)
    assert (found.decode_s, found.prefill_s) == pytest.approx((0, 0), abs=1e-6)
    assert "full batch" in capsys.readouterr().out
    assert main(["sim", "run", "chat", "-n", "3", "--model", str(out)]) == 0


@pytest.mark.vllm
@pytest.mark.timeout(600)
def test_a_live_engine_can_be_calibrated(
    live_engine: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The fit gives back the time of every mix, and the file simulates."""
    out = tmp_path / "engine.json"
    options = [
        "--seconds",
        "9",
        "--answer-tokens",
        "48",
        "--prompt-tokens",
        "512",
        "--out",
        str(out),
        "--json",
    ]

    assert behind_gateway(live_engine, lambda url: main(["sim", "calibrate", url, *options])) == 0

    found = json.loads(capsys.readouterr().out)
    engine = read_engine(out)
    assert engine.to_mapping() == found["engine"]
    assert found["errors"].keys() == {"one lane", "full batch", "prompts", "short", "both"}
    assert found["calls"] >= 2 + 4 * 2 + 2 * 2
    # How large they are depends on what else the machine does.
    assert all(map(math.isfinite, found["errors"].values()))


def test_bursts_are_part_of_the_setting(capsys: pytest.CaptureFixture[str]) -> None:
    """A steady load has none."""
    options = ("run", "chat", "-n", "12", "--rho", "3", "--model", "demo")
    steady = report(capsys, *options)
    bursts = report(capsys, *options, "--arrivals", "burst_idle", "--burst", "4")
    assert (steady["setting"]["burst"], bursts["setting"]["burst"]) == (None, 4)
    assert bursts["metrics"]["makespan_s"] > steady["metrics"]["makespan_s"]
