"""`autellix vllm serve`: vLLM's own command with two options more."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from autellix_backend.cli import vllm
from autellix_backend.cli.main import main, make_parser
from autellix_backend.cli.vllm import (
    MIDDLEWARE,
    OURS,
    VllmCommandError,
    cpu_environment,
    read_words,
    resolve_model,
    vllm_command,
)
from autellix_backend.engines.base import ModelNotFoundError
from autellix_backend.engines.vllm_command import NoGpuError


@pytest.mark.parametrize(("script", "start"), [("/bin/vllm", ["serve", "M"]), (None, ["--model", "M"])])
def test_the_options_of_vllm_are_passed_on_as_they_are(script: str | None, start: list[str]) -> None:
    options = ["--max-num-seqs", "8", "--additional-config={}", "-tp", "2", "--no-enable-prefix-caching"]
    words = make_parser(["vllm"]).parse_args(["vllm", "serve", "M", *options]).words
    command = vllm_command(*read_words(words), script=script, is_cpu=False)
    assert command[0] == (script or sys.executable)
    assert command[-len(OURS) :] == [*OURS]
    assert command[: -len(OURS)][-len(start) - len(options) :] == [*start, *options]


@pytest.mark.parametrize(
    "words",
    [[], ["serve"], ["serve", "--model"], ["bench", "M"], ["serve", "M", "--scheduler-cls", "mine"]],
)
def test_other_command_lines_are_refused(words: list[str]) -> None:
    with pytest.raises(VllmCommandError, match="expected"):
        read_words(words)


def test_a_server_without_middleware_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VLLM_USE_RUST_FRONTEND", "1")
    assert main(["vllm", "serve", "M"]) == 2
    assert "VLLM_USE_RUST_FRONTEND is set" in capsys.readouterr().err


def test_without_vllm_the_error_names_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert main(["vllm", "serve", "M"]) == 2
    assert "pip install 'autellix-backend[vllm]" in capsys.readouterr().err


def test_the_middleware_is_where_the_command_says() -> None:
    module, _, name = MIDDLEWARE.rpartition(".")
    assert isinstance(getattr(importlib.import_module(module), name), type)


def test_a_model_of_ours_is_made_and_keeps_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Made:
        def load(self) -> Any:
            return lambda _: (tmp_path, "small")

    monkeypatch.setattr(vllm, "generated_model", lambda model: Made() if model == "ours" else None)
    assert resolve_model("ours", ["-tp", "2"]) == (
        str(tmp_path),
        ["-tp", "2", "--served-model-name", "small"],
    )
    named = ["--served-model-name=mine"]
    assert resolve_model("ours", named) == (str(tmp_path), named)
    assert resolve_model("org/model", []) == ("org/model", [])
    with pytest.raises(ModelNotFoundError):
        resolve_model("/nothing", [])


def test_on_a_cpu_the_engine_gets_what_it_needs_there_but_for_the_user_s_own(tmp_path: Path) -> None:
    assert "--enforce-eager" in vllm_command("M", [], script=None, is_cpu=True)
    assert "--enforce-eager" not in vllm_command("M", ["--no-enforce-eager"], script=None, is_cpu=True)
    found = cpu_environment(str(tmp_path), [], {"VLLM_CPU_KVCACHE_SPACE": "8"})
    assert found["TORCH_COMPILE_DISABLE"] == "1"
    assert "VLLM_CPU_KVCACHE_SPACE" not in found


@pytest.mark.parametrize("is_cpu", [True, False])
def test_what_runs_is_what_is_printed(
    is_cpu: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[tuple[list[str], dict[str, str]]] = []

    def no_gpu() -> None:
        if not is_cpu:
            raise NoGpuError

    monkeypatch.setattr(vllm, "check_engine_installed", no_gpu)
    monkeypatch.setattr(vllm, "is_cpu_engine", lambda: is_cpu)
    monkeypatch.setattr(os, "execve", lambda _, command, environment: ran.append((command, environment)))
    main(["vllm", "serve", "org/model"])
    ((command, environment),) = ran
    printed = capsys.readouterr().err.splitlines()
    assert printed[-1].endswith(" ".join(command))
    assert ("VLLM_CPU_OMP_THREADS_BIND=nobind" in printed[-1]) == is_cpu
    assert ("no GPU is visible" in printed[0]) != is_cpu
    assert os.environ.items() <= environment.items()
