"""What `autellix serve` prints beside its ready line."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fakes.engine import FakeBehaviour
from tests.gateway.engines.pools import serving_pool

from autellix_backend.cli.announcements import note_models, note_noise, note_tool_parser
from autellix_backend.engines.replica import VllmReplica
from autellix_backend.settings import EngineSettings, Settings


@pytest.mark.parametrize(("model", "is_noise"), [("demo", True), ("Qwen/Qwen3-8B", False), (None, False)])
def test_the_answers_of_a_generated_model_are_said_to_be_noise(
    capsys: pytest.CaptureFixture[str], model: str | None, is_noise: bool
) -> None:
    note_noise(EngineSettings(model=model))
    assert ("its answers are noise" in capsys.readouterr().err) is is_noise


@pytest.mark.parametrize(
    ("parser", "extra_args", "expected"),
    [
        ("hermes", (), "vLLM's parser hermes reads the tool calls of m, by its chat template"),
        (None, (), "no parser is known for the tool calls of m"),
        (None, ("--no-enable-auto-tool-choice",), ""),
    ],
)
def test_the_parser_of_tool_calls_is_named(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    parser: str | None,
    extra_args: tuple[str, ...],
    expected: str,
) -> None:
    """Unless the user has decided about it."""
    settings = EngineSettings(model="m", state_dir=tmp_path, extra_args=extra_args)
    replica = VllmReplica(Settings(engine=settings))
    replica.tool_parser = parser
    note_tool_parser(settings, [replica])
    said = capsys.readouterr().err
    assert expected in said
    assert bool(said) is bool(expected)


def test_a_running_server_has_its_own_parser(capsys: pytest.CaptureFixture[str]) -> None:
    note_tool_parser(EngineSettings(urls=("http://127.0.0.1:1",)), [])
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("models", "expected"),
    [
        (
            [("large",), ("small", "adapter"), ("large", "alias")],
            "autellix: large, alias at fake-0, fake-2\nautellix: small, adapter at fake-1\n",
        ),
        ([("large",), ("large", "adapter")], ""),
        ([("large",)], ""),
    ],
)
async def test_engines_of_several_models_are_named_with_their_models(
    capsys: pytest.CaptureFixture[str], models: list[tuple[str, ...]], expected: str
) -> None:
    async with serving_pool(*(FakeBehaviour(models=each) for each in models)) as rig:
        note_models(rig.app.state.gateway.pool)
    assert capsys.readouterr().err == expected
