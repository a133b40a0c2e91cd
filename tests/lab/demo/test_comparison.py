"""The demo starts the engines that its parts ask for, a policy on each, and reports what they gave."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from autellix_backend.cli.main import main
from autellix_lab.bench.replay import ReplayJob
from autellix_lab.bench.results import CallResult
from autellix_lab.bench.step_clock import PREFILLED_TOKENS
from autellix_lab.cli import demo
from autellix_lab.demo import comparison as module
from autellix_lab.demo.comparison import comparison_report, run_parts
from autellix_lab.demo.parts import SCARCE, DemoOptions, demo_parts
from autellix_lab.demo.summary import verdict

STEP_S = 0.01
TOKEN_S = STEP_S / 400


class FakeBackend:
    """A backend that is ready at once, answers each token after a step, and prefills 400 in one."""

    alive: int = 0
    most_alive: int = 0
    settings: dict[str, dict[str, Any]]

    def __init__(self, name: str, _model: str, settings: dict[str, Any], out_dir: Path) -> None:
        type(self).settings[name] = settings
        self.name = name
        self.base_url = f"http://{name}"
        self.engine_url = f"http://{name}-engine"
        self.log_path = out_dir / "log"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        FakeBackend.alive -= 1

    def launch(self) -> None:
        FakeBackend.alive += 1
        FakeBackend.most_alive = max(FakeBackend.most_alive, FakeBackend.alive)

    def wait_ready(self) -> None:
        """Be ready."""

    def model(self) -> str:
        return "m"


class FakePlain(FakeBackend):
    """The same without our settings."""

    def __init__(self, name: str, model: str, engine: dict[str, Any], out_dir: Path) -> None:
        super().__init__(name, model, {"engine": engine}, out_dir)


def replay(job: ReplayJob, _watch: Callable[[CallResult], None]) -> list[CallResult]:
    results: list[CallResult] = []
    for program, arrival_s in zip(job.programs, job.arrivals_s, strict=True):
        now_s = arrival_s
        for call in program.calls:
            end_s = now_s + STEP_S * call.decode_tokens + TOKEN_S * call.new_tokens
            results.append(
                CallResult(
                    program=program.program_id,
                    call=call.id,
                    thread=call.thread,
                    submit_s=now_s,
                    finish_s=end_s,
                    prompt_tokens=call.prefill_tokens,
                    cached_tokens=call.shared_prefix_tokens,
                    output_tokens=call.decode_tokens,
                    submit_step=now_s / STEP_S,
                    finish_step=end_s / STEP_S,
                )
            )
            now_s = end_s
    return results


@pytest.fixture
def options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> DemoOptions:
    monkeypatch.setattr(FakeBackend, "alive", 0)
    monkeypatch.setattr(FakeBackend, "most_alive", 0)
    monkeypatch.setattr(FakeBackend, "settings", {}, raising=False)
    monkeypatch.setattr(module, "BackendProcess", FakeBackend)
    monkeypatch.setattr(module, "PlainBackend", FakePlain)
    monkeypatch.setattr("autellix_lab.bench.compare.replay", replay)
    parser = argparse.ArgumentParser()
    demo.add_arguments(parser)
    args = parser.parse_args(["--programs", "12", "--rounds", "1", "--out", str(tmp_path)])
    return demo.options_of(args)


def play(options: DemoOptions) -> list[module.PartComparison]:
    return run_parts(options, demo_parts(options), lambda _title, _total: lambda _: None, lambda _: None)


def test_each_part_has_engines_of_its_own(options: DemoOptions) -> None:
    """Two are alive at once; those of the first part have few KV blocks."""
    play(options)

    assert list(FakeBackend.settings) == ["memory-fcfs", "memory-boost", "slots-fcfs", "slots-boost"]
    assert (FakeBackend.alive, FakeBackend.most_alive) == (0, 2)
    for name, settings in FakeBackend.settings.items():
        arguments = " ".join(settings["engine"]["extra_args"])
        assert ("--num-gpu-blocks-override 180" in arguments) == name.startswith("memory")


@pytest.mark.parametrize("workload", SCARCE)
def test_engines_take_the_longest_context_of_their_part(options: DemoOptions, workload: str) -> None:
    """Prompts have their lengths within the tokenizer's rounding, so an engine takes some tokens more."""
    options = dataclasses.replace(options, kv_workload=workload)
    play(options)

    for part in demo_parts(options):
        longest = max(call.context_tokens for program in part.load.programs for call in program.calls)
        for policy in options.policies:
            arguments = FakeBackend.settings[f"{part.name}-{policy}"]["engine"]["extra_args"]
            assert int(arguments[arguments.index("--max-model-len") + 1]) >= longest + 64


def test_boost_comes_with_admission_and_no_levels(options: DemoOptions) -> None:
    found = play(options)

    assert FakeBackend.settings["slots-boost"]["scheduler"] == {"policy": "boost", "admission": "working_set"}
    assert all(item.bounds == () for item in found)


def test_policies_with_levels_get_bounds_and_beta(options: DemoOptions) -> None:
    found = play(dataclasses.replace(options, policies=("fcfs", "plas")))

    plas = FakeBackend.settings["slots-plas"]["scheduler"]
    assert plas == {"policy": "plas", "admission": "none", "beta": 16.0, "bounds": list(found[1].bounds)}
    assert plas["bounds"]


def test_fcfs_is_vllm_without_autellix(options: DemoOptions) -> None:
    """With the same batch size, memory and lengths as the others have."""
    play(options)

    for part in ("memory", "slots"):
        plain, ours = FakeBackend.settings[f"{part}-fcfs"], FakeBackend.settings[f"{part}-boost"]
        assert plain == {"engine": ours["engine"]}


def test_both_parts_are_measured_in_steps(options: DemoOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the count of each engine; the machine's speed is measured once, as nothing depends on it."""
    jobs: list[ReplayJob] = []

    def recording(job: ReplayJob, watch: Callable[[CallResult], None]) -> list[CallResult]:
        jobs.append(job)
        return replay(job, watch)

    monkeypatch.setattr("autellix_lab.bench.compare.replay", recording)
    found = play(dataclasses.replace(options, rounds=3))

    assert all(job.engine_url == f"{job.base_url}-engine" for job in jobs)
    rounds = [job for job in jobs if not job.salt.startswith("calibration")]
    assert [job.step_s for job in rounds] == pytest.approx([STEP_S] * 12)
    measured = [job for job in jobs if job.base_url == "http://slots-fcfs" and job not in rounds]
    salts = ("warm-up:1", "warm-up:2", "first:1", "first:2")
    assert [job.salt for job in measured] == [f"calibration:{salt}" for salt in salts]
    for item in found:
        for run in item.load.runs:
            steps, seconds = (run.summary.metrics[name]["mean"] for name in ("latency_steps", "latency_s"))
            assert steps == pytest.approx(seconds / STEP_S)


def on_the_clock(token_s: float, job: ReplayJob, _watch: Callable[[CallResult], None]) -> list[CallResult]:
    """Play a job on an engine whose cache `boost` fills, and which prefills a token in `token_s`."""
    results: list[CallResult] = []
    for program, arrival_s in zip(job.programs, job.arrivals_s, strict=True):
        now_s, now_steps = arrival_s, arrival_s / job.step_s
        for call in program.calls:
            is_cached = job.base_url.endswith("boost") and call.id > 0
            prefilled = 0 if is_cached else call.prefill_tokens
            end_s = now_s + STEP_S * call.decode_tokens + token_s * prefilled
            end_steps = now_steps + call.decode_tokens + prefilled / PREFILLED_TOKENS
            results.append(
                CallResult(
                    program=program.program_id,
                    call=call.id,
                    thread=call.thread,
                    submit_s=now_s,
                    finish_s=end_s,
                    prompt_tokens=call.prefill_tokens,
                    cached_tokens=call.prefill_tokens - prefilled,
                    output_tokens=call.decode_tokens,
                    submit_step=now_steps,
                    finish_step=end_steps,
                )
            )
            now_s, now_steps = end_s, end_steps
    return results


@pytest.mark.parametrize(
    ("step_tokens", "favoured"), [(PREFILLED_TOKENS, ""), (160, "fcfs"), (2 * PREFILLED_TOKENS, "boost")]
)
def test_steps_agree_with_seconds_where_prefill_takes_what_it_counts(
    options: DemoOptions, monkeypatch: pytest.MonkeyPatch, step_tokens: float, favoured: str
) -> None:
    """Also for a policy that prefills less; on other machines, the screen says whom steps favour."""
    play_job = functools.partial(on_the_clock, STEP_S / step_tokens)
    monkeypatch.setattr("autellix_lab.bench.compare.replay", play_job)
    found = play(dataclasses.replace(options, rounds=2))

    for item in found:
        for ratios in item.load.ratios_by_round("boost"):
            seconds, steps = ratios["latency_s"]["mean"], ratios["latency_steps"]["mean"]
            assert steps < 1
            assert (steps == pytest.approx(seconds, rel=0.01)) is (not favoured), item.part.name
    text = verdict([item.load for item in found], "boost")
    assert (f"steps favour {favoured}. Compare seconds there, too." in text) is bool(favoured)
    assert ("With scarce KV memory, a step took" in text) is bool(favoured)


def test_the_report_has_both_parts(options: DemoOptions) -> None:
    report = comparison_report(options, play(options))

    assert [part["name"] for part in report["setting"]["parts"]] == ["memory", "slots"]
    assert [load["name"] for load in report["loads"]] == ["scarce KV memory", "scarce slots"]


def test_the_report_has_losses_and_targets(options: DemoOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    def slower_boost(job: ReplayJob, watch: Callable[[CallResult], None]) -> list[CallResult]:
        found = replay(job, watch)
        if not job.base_url.endswith("boost"):
            return found
        return [
            dataclasses.replace(
                item, finish_s=item.finish_s + 1.0, finish_step=(item.finish_s + 1.0) / STEP_S
            )
            for item in found
        ]

    monkeypatch.setattr("autellix_lab.bench.compare.replay", slower_boost)
    report = comparison_report(options, play(options))

    assert any(line.startswith("scarce slots: boost is slower than fcfs") for line in report["losses"])
    assert any(line.endswith("in every round: 0 of 1") for line in report["targets"])


def test_progress_names_each_part_and_a_page(options: DemoOptions) -> None:
    lines: list[str] = []
    titles: list[str] = []

    def follow(title: str, _calls: int) -> Callable[[CallResult], None]:
        titles.append(title)
        return lambda _: None

    run_parts(options, demo_parts(options), follow, lines.append)

    assert lines[:2] == [
        "scarce KV memory: starting an engine for each policy",
        "scarce KV memory: watch boost at http://memory-boost/autellix/",
    ]
    assert len(lines) == 4
    assert titles == [
        f"{part}, round 1 of 1, {policy}"
        for part in ("scarce KV memory", "scarce slots")
        for policy in ("fcfs", "boost")
    ]


def losing(job: ReplayJob, watch: Callable[[CallResult], None]) -> list[CallResult]:
    """Play a job, but lose the first call of a run."""
    found = replay(job, watch)
    if job.salt.startswith("calibration"):
        return found
    return [dataclasses.replace(found[0], error="gone"), *found[1:]]


def test_lost_calls_leave_no_losses(options: DemoOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autellix_lab.bench.compare.replay", losing)
    report = comparison_report(options, play(options))

    assert (report["losses"], report["targets"], report["errors"]) == ([], [], ["gone"])
    assert report["lost_calls"] > 0


def test_the_command_prints_four_lines_of_progress_and_a_short_last_screen(
    options: DemoOptions, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the output is no terminal; the run titles of a terminal's moving line are left out."""
    assert main(["demo", "--programs", "12", "--rounds", "2", "--out", str(options.out)]) == 0
    shown = capsys.readouterr()

    lines = shown.out.splitlines()
    assert sum("starting an engine" in line or "watch boost at" in line for line in lines) == 4
    assert len(lines) <= 4 + 36, shown.out
    assert "round 1 of 2" not in shown.out
    assert "None of 4 rounds was slower." in " ".join(shown.out.split())
    assert shown.err == ""
    names = {path.name for path in options.out.iterdir()}
    assert {"comparison.png", "comparison.json", "report.txt"} <= names


def test_the_command_fails_where_calls_are_lost(
    options: DemoOptions, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("autellix_lab.bench.compare.replay", losing)

    assert main(["demo", "--programs", "12", "--rounds", "1", "--json", "--out", str(options.out)]) == 1
    shown = capsys.readouterr()
    assert "4 calls were lost, so times are not compared. Errors: gone" in shown.err
    assert json.loads(shown.out)["lost_calls"] == 4
    assert not (options.out / "comparison.png").exists()
