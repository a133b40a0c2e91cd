"""`autellix vllm serve`: vLLM's own command with two options more."""

from __future__ import annotations

import importlib

import pytest

from autellix_backend.cli.main import main, make_parser
from autellix_backend.cli.vllm import MIDDLEWARE, OURS, VllmCommandError, vllm_command


@pytest.mark.parametrize(("has_script", "start"), [(True, ["vllm", "serve", "M"]), (False, ["--model", "M"])])
def test_the_options_of_vllm_are_passed_on_as_they_are(has_script: bool, start: list[str]) -> None:
    options = ["--max-num-seqs", "8", "--additional-config={}", "-tp", "2", "--no-enable-prefix-caching"]
    words = make_parser(["vllm"]).parse_args(["vllm", "serve", "M", *options]).words
    command = vllm_command(words, has_script=has_script)
    assert command[-len(OURS) :] == [*OURS]
    assert command[: -len(OURS)][-len(start) - len(options) :] == [*start, *options]


@pytest.mark.parametrize(
    "words",
    [[], ["serve"], ["serve", "--model"], ["bench", "M"], ["serve", "M", "--scheduler-cls", "mine"]],
)
def test_other_command_lines_are_refused(words: list[str]) -> None:
    with pytest.raises(VllmCommandError, match="expected"):
        vllm_command(words, has_script=True)


def test_without_vllm_the_error_names_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert main(["vllm", "serve", "M"]) == 2
    assert "pip install 'autellix-backend[vllm]" in capsys.readouterr().err


def test_the_middleware_is_where_the_command_says() -> None:
    module, _, name = MIDDLEWARE.rpartition(".")
    assert isinstance(getattr(importlib.import_module(module), name), type)
