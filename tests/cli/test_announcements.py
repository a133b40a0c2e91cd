"""What `autellix serve` prints beside its ready line."""

from __future__ import annotations

import pytest

from autellix_backend.cli.announcements import note_noise
from autellix_backend.settings import EngineSettings


@pytest.mark.parametrize(("model", "is_noise"), [("demo", True), ("Qwen/Qwen3-8B", False), (None, False)])
def test_the_answers_of_a_generated_model_are_said_to_be_noise(
    capsys: pytest.CaptureFixture[str], model: str | None, is_noise: bool
) -> None:
    note_noise(EngineSettings(model=model))
    assert ("its answers are noise" in capsys.readouterr().err) is is_noise
