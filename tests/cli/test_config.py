"""`autellix config`: the values in force and their sources."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from autellix_backend.cli.main import main
from autellix_backend.settings import Settings, settings_to_mapping

SECRET = "a secret of twenty characters"


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's own variables have no part in these tests."""
    for name in [name for name in os.environ if name.startswith("AUTELLIX_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "autellix.toml"
    path.write_text(f'[gateway]\nprogram_idle_s = 2\nport = 0\ntoken_secret = "{SECRET}"\n')
    return path


def test_every_setting_is_shown_with_its_source(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTELLIX_SCHEDULER_BETA", "inf")
    assert main(["config", "show", "--json", "--config", str(file), "--port", "9"]) == 0
    text = capsys.readouterr().out
    shown = json.loads(text)
    assert shown["gateway.port"] == {"value": 9, "source": "--port"}
    assert shown["gateway.program_idle_s"] == {"value": 2.0, "source": str(file)}
    assert shown["scheduler.beta"] == {"value": "inf", "source": "AUTELLIX_SCHEDULER_BETA"}
    assert shown["gateway.token_secret"] == {"value": "(hidden)", "source": str(file)}
    assert shown["gateway.host"] == {"value": "127.0.0.1", "source": "default"}
    assert SECRET not in text
    sections = settings_to_mapping(Settings())
    assert set(shown) == {f"{section}.{key}" for section, values in sections.items() for key in values}


def test_a_preset_is_shown_as_the_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "--json", "--preset", "paper", "--policy", "plas"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["scheduler.policy"] == {"value": "plas", "source": "--policy"}
    assert shown["scheduler.preemption"] == {"value": "always", "source": "--preset paper"}
    assert shown["balancer.name"] == {"value": "locality", "source": "--preset paper"}


def test_an_unknown_preset_is_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["config", "show", "--preset", "papers"])
    assert "'papers' (choose from" in capsys.readouterr().err


def test_the_table_shows_the_same_values(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "--config", str(file)]) == 0
    text = capsys.readouterr().out
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines()}
    assert rows["gateway.program_idle_s"] == ["2.0", str(file)]
    assert rows["gateway.host"] == ['"127.0.0.1"', "default"]
    assert SECRET not in text


def test_a_valid_file_passes_the_check(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "check", str(file)]) == 0
    assert "can be used" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("[gateway]\nport = 70000", "gateway.port"),
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
    assert field in capsys.readouterr().out


def test_the_check_reads_the_environment_as_serve_does(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTELLIX_GATEWAY_PROGRAM_IDLE_S", "x")
    assert main(["config", "check", str(file)]) == 2
    assert "AUTELLIX_GATEWAY_PROGRAM_IDLE_S" in capsys.readouterr().out


def test_a_misspelt_variable_is_a_problem(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would have no effect, and nobody would notice."""
    monkeypatch.setenv("AUTELLIX_QUITE_DIFFERENT", "1")
    assert main(["config", "check", str(file)]) == 2
    assert "problem: AUTELLIX_QUITE_DIFFERENT is not a variable of Autellix\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[gateway]\ntenants_file = '/nowhere/t.toml'", "gateway.tenants_file: cannot read /nowhere/t.toml"),
        (
            "[observe]\ncall_log = '/nowhere/r.jsonl'",
            "observe.call_log: cannot write /nowhere/r.jsonl (there is no folder /nowhere)",
        ),
        ("[gateway]\nopen = true\nhost = 'nowhere.invalid'", "gateway.host: 'nowhere.invalid' is unknown"),
        ("[engine]\nmodel = '/nowhere'\nextra_args = ['--port=1']", "engine.extra_args: --port is set by"),
        ("[engine]\nkv_host_gib = 1", "engine.kv_host_gib: is given without engine.model"),
    ],
)
def test_the_check_finds_what_serve_would_refuse(
    file: Path, capsys: pytest.CaptureFixture[str], text: str, problem: str
) -> None:
    file.write_text(text)
    assert main(["config", "check", str(file)]) == 2
    text = capsys.readouterr().out
    assert f"problem: {problem}" in text
    assert "problems: 1" in text


def test_all_problems_are_listed_at_once(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(
        "[gateway]\nhost = 'nowhere.invalid'\ntenants_file = '/nowhere/t'\n[observe]\ncall_log = '/'"
    )
    assert main(["config", "check", str(file)]) == 2
    assert capsys.readouterr().out.count("problem: ") == 3


def test_settings_that_cannot_be_used_hide_no_other_problem(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of tables, names, values, rules over several of them, variables, and of what `serve` would refuse."""
    file.write_text(
        "[engines]\nurl = 'x'\n[gateway]\nport = 99999\ntenants_file = '/nowhere/t'\n[scheduler]\n"
        "policy = 'bost'\nbets = 3\nbounds = '3,2'\n[limits]\nmax_calls = 0\n[observe]\ncall_log = '/'\n"
    )
    monkeypatch.setenv("AUTELLIX_GATEWY_PORT", "5")
    assert main(["config", "check", str(file)]) == 2
    lines = capsys.readouterr().out.splitlines()
    problems = [line.removeprefix("problem: ") for line in lines if line.startswith("problem: ")]
    assert sorted(line.partition(" ")[0].rstrip(":") for line in problems) == [
        "AUTELLIX_GATEWY_PORT",
        "engines",
        "gateway.port",
        "gateway.tenants_file",
        "limits.max_calls",
        "observe.call_log",
        "scheduler.bets",
        "scheduler.bounds",
        "scheduler.policy",
    ]
    assert lines[-1].endswith("problems: 9")


def test_an_unreadable_file_hides_no_problem_of_the_environment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTELLIX_GATEWAY_PORT", "x")
    assert main(["config", "check", str(tmp_path / "none.toml")]) == 2
    found = capsys.readouterr().out
    assert "problem: --config: cannot read" in found
    assert "problem: gateway.port (from AUTELLIX_GATEWAY_PORT): is 'x'" in found


@pytest.mark.parametrize(
    ("text", "ignored"),
    [
        ("urls = ['http://127.0.0.1:9']\nmax_num_seqs = 4\nreplicas = 2", ["max_num_seqs", "replicas"]),
        ("model = 'demo'\nmax_in_flight = 4\nmust_answer = false", ["max_in_flight", "must_answer"]),
        ("model = 'demo'\nurls = ['http://127.0.0.1:9']\nmax_num_seqs = 4\nmax_in_flight = 4", []),
    ],
)
def test_settings_of_other_engines_are_noted(
    file: Path, capsys: pytest.CaptureFixture[str], text: str, ignored: list[str]
) -> None:
    file.write_text(f"[engine]\n{text}")
    main(["config", "check", str(file)])
    lines = [line for line in capsys.readouterr().out.splitlines() if "has no effect" in line]
    assert [line.split()[1].removeprefix("engine.") for line in lines] == ignored
    assert all("engine.max_in_flight bounds the calls" in line for line in lines if "num_seqs" in line)


def test_the_check_makes_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "autellix.toml"
    path.write_text(f"[observe]\ncall_log = '{tmp_path}/calls'")
    assert main(["config", "check", str(path)]) == 0
    assert [entry.name for entry in tmp_path.iterdir()] == ["autellix.toml"]
    assert "note: no model and no engine is named" in capsys.readouterr().out


def test_the_check_notes_what_several_gateways_need(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One secret for their sessions, and none of the examples'."""
    file.write_text("[engine]\nurls = ['http://engine1:8000']")
    monkeypatch.setenv("AUTELLIX_STORE_URL", "redis://:change-me@127.0.0.1:1/0")
    assert main(["config", "check", str(file)]) == 0
    found = capsys.readouterr().out
    assert "note: gateway.token_secret is not set: other gateways of this table need the same" in found
    assert "note: store.url is the example's" in found
    monkeypatch.setenv("AUTELLIX_STORE_URL", "redis://127.0.0.1:1/0")
    monkeypatch.setenv("AUTELLIX_GATEWAY_TOKEN_SECRET", "0123456789abcdef")
    assert main(["config", "check", str(file)]) == 0
    assert "secret" not in capsys.readouterr().out


def test_the_check_notes_what_listens_already(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A gateway may run already with this file: no problem."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        file.write_text(f"[gateway]\nport = {taken.getsockname()[1]}")
        assert main(["config", "check", str(file)]) == 0
    assert "note: something listens on 127.0.0.1:" in capsys.readouterr().out
