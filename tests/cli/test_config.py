"""`autellix config`: the values in force and their sources."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autellix_backend.cli.main import main
from autellix_backend.settings import Settings, settings_to_mapping

SECRET = "a secret of twenty characters"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "autellix.toml"
    path.write_text(f'[gateway]\nheartbeat_s = 2\nport = 1\ntoken_secret = "{SECRET}"\n')
    return path


def test_every_setting_is_shown_with_its_source(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTELLIX_SCHEDULER_BETA", "inf")
    assert main(["config", "show", "--json", "--config", str(file), "--port", "9"]) == 0
    text = capsys.readouterr().out
    shown = json.loads(text)
    assert shown["gateway.port"] == {"value": 9, "source": "--port"}
    assert shown["gateway.heartbeat_s"] == {"value": 2.0, "source": str(file)}
    assert shown["scheduler.beta"] == {"value": "inf", "source": "AUTELLIX_SCHEDULER_BETA"}
    assert shown["gateway.token_secret"] == {"value": "(hidden)", "source": str(file)}
    assert shown["gateway.host"] == {"value": "127.0.0.1", "source": "default"}
    assert SECRET not in text
    sections = settings_to_mapping(Settings())
    assert set(shown) == {f"{section}.{key}" for section, values in sections.items() for key in values}


def test_the_table_shows_the_same_values(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "--config", str(file)]) == 0
    text = capsys.readouterr().out
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines()}
    assert rows["gateway.heartbeat_s"] == ["2.0", str(file)]
    assert rows["gateway.host"] == ['"127.0.0.1"', "default"]
    assert SECRET not in text


def test_a_valid_file_passes_the_check(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "check", str(file)]) == 0
    assert "can be used" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("[gateway]\nport = 70000", "gateway.port"),
        ("[gateway]\nprot = 1", "gateway.prot"),
        ("[scheduler]\nbeta = 'x'", "scheduler.beta"),
        ("[engines]\nurl = 'x'", "engines"),
        ("gateway", "--config"),
    ],
)
def test_an_unusable_file_is_an_error_that_names_the_field(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, field: str
) -> None:
    path = tmp_path / "autellix.toml"
    path.write_text(text)
    assert main(["config", "check", str(path)]) == 2
    assert field in capsys.readouterr().err


def test_the_check_of_a_file_ignores_the_environment(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTELLIX_GATEWAY_PORT", "x")
    assert main(["config", "check", str(file)]) == 0
    assert main(["config", "show"]) == 2
    assert "AUTELLIX_GATEWAY_PORT" in capsys.readouterr().err
