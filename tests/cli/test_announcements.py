"""What `autellix serve` prints beside its ready line."""

from __future__ import annotations

import pytest

from autellix_backend.cli.announcements import note_noise, show_page
from autellix_backend.settings import EngineSettings


@pytest.mark.parametrize("has_browser", [True, False])
def test_prints_the_address_of_the_page(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, has_browser: bool
) -> None:
    monkeypatch.setattr("webbrowser.open", lambda _url: has_browser)
    show_page("http://127.0.0.1:8000/autellix/", opens=True)
    printed = capsys.readouterr().err

    assert "shown at http://127.0.0.1:8000/autellix/" in printed
    assert ("no browser" in printed) is not has_browser


@pytest.mark.parametrize(("model", "is_noise"), [("demo", True), ("Qwen/Qwen3-8B", False), (None, False)])
def test_the_answers_of_a_generated_model_are_said_to_be_noise(
    capsys: pytest.CaptureFixture[str], model: str | None, is_noise: bool
) -> None:
    note_noise(EngineSettings(model=model))
    assert ("its answers are noise" in capsys.readouterr().err) is is_noise
