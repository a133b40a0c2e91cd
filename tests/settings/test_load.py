"""Settings come from file, environment and command line, and errors name the field and its source."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from autellix_backend.core.config import SchedulerConfig
from autellix_backend.settings import (
    PRESETS,
    GatewaySettings,
    RawValue,
    Settings,
    SettingsError,
    StoreSettings,
    build_settings,
    child_environment,
    client_environment,
    default_cache_dir,
    load_settings,
    merged_layer,
    settings_to_mapping,
)


def load(
    environ: dict[str, str] | None = None,
    file: Path | None = None,
    command_line: dict[str, RawValue] | None = None,
) -> Settings:
    return load_settings(file=file, environ=environ or {}, command_line=command_line)


def write(folder: Path, text: str) -> Path:
    path = folder / "autellix.toml"
    path.write_text(text)
    return path


def test_defaults_are_those_of_the_dataclasses() -> None:
    """With nothing given every field has its default."""
    assert load() == Settings()


def test_later_sources_win(tmp_path: Path) -> None:
    """The environment beats the file, and the command line beats both."""
    file = write(
        tmp_path, "[gateway]\nport = 1\nprogram_idle_s = 2\n[scheduler]\npolicy = 'plas'\nbounds = [1, 2.5]\n"
    )
    environ = {"AUTELLIX_GATEWAY_PORT": "3", "AUTELLIX_SCHEDULER_POLICY": "fcfs"}

    settings = load(environ, file, {"gateway.port": RawValue("4", "--port")})

    assert settings.gateway.port == 4
    assert settings.gateway.program_idle_s == 2.0
    assert settings.scheduler == SchedulerConfig(policy="fcfs", bounds=(1.0, 2.5))


def test_the_preset_of_the_paper_is_atlas_preemption_always_and_algorithm_2() -> None:
    """Its programs are not held back by working set."""
    settings = build_settings(merged_layer(preset="paper", environ={}))

    assert settings.scheduler == SchedulerConfig(policy="atlas", preemption="always")
    assert settings.balancer.name == "locality"
    assert not settings.scheduler.has_admission


def test_any_source_overrides_a_preset(tmp_path: Path) -> None:
    layer = merged_layer(
        preset="paper",
        file=write(tmp_path, "[balancer]\nname = 'least_used'\n"),
        environ={"AUTELLIX_SCHEDULER_POLICY": "plas"},
        command_line={"scheduler.preemption": RawValue("never", "--preemption")},
    )
    settings = build_settings(layer)

    assert settings.scheduler == SchedulerConfig(policy="plas", preemption="never")
    assert settings.balancer.name == "least_used"


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_changes_each_default_that_it_names(preset: str) -> None:
    """A value that is the default already would not be the preset's any more once the default changes."""
    defaults = settings_to_mapping(Settings())
    for name, value in PRESETS[preset].items():
        section, _, key = name.partition(".")
        assert defaults[section][key] != value, name


def test_the_spelling_of_0_2_is_accepted() -> None:
    environ = {"AUTELLIX_SCHEDULER_POLICY": "atlas-dag", "AUTELLIX_BALANCER_NAME": "locality-bounded"}
    settings = load(environ)
    assert (settings.scheduler.policy, settings.balancer.name) == ("atlas_dag", "locality_bounded")


def test_text_is_converted_to_the_fields_type() -> None:
    """Lists, paths, infinity and quoted words are read from text."""
    settings = load(
        {
            "AUTELLIX_SCHEDULER_BOUNDS": "0.5, 1 2",
            "AUTELLIX_SCHEDULER_BETA": "inf",
            "AUTELLIX_SCHEDULER_PERIOD_STEPS": "8",
            "AUTELLIX_ENGINE_MAX_NUM_SEQS": "4",
            "AUTELLIX_ENGINE_EXTRA_ARGS": "--dtype float32 --name 'a b'",
        }
    )

    assert settings.scheduler.bounds == (0.5, 1.0, 2.0)
    assert settings.scheduler.beta == math.inf
    assert settings.scheduler.period_steps == 8
    assert settings.engine.max_num_seqs == 4
    assert settings.engine.extra_args == ("--dtype", "float32", "--name", "a b")


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        (
            "AUTELLIX_GATEWAY_PORT",
            "x",
            "port (from AUTELLIX_GATEWAY_PORT): is 'x'; expected a valid integer",
        ),
        ("AUTELLIX_GATEWAY_HOST", "", "gateway.host (from AUTELLIX_GATEWAY_HOST): is empty"),
        ("AUTELLIX_GATEWAY_PROGRAM_IDLE_S", "nan", "is 'nan'; expected a finite number"),
        ("AUTELLIX_ENGINE_URLS", "http://a host:80", "is 'host:80'; expected an http:// or https:// address"),
        ("AUTELLIX_ENGINE_EXTRA_ARGS", "'", "expected a list of words"),
        ("AUTELLIX_SCHEDULER_BOUNDS", "a", "is 'a'; expected a valid number"),
        (
            "AUTELLIX_SCHEDULER_PERIOD_STEPS",
            "65",
            "scheduler.period_steps (from AUTELLIX_SCHEDULER_PERIOD_STEPS): is '65'; expected less than",
        ),
        (
            "AUTELLIX_SCHEDULER_PERIOD_STEPS",
            "0",
            "scheduler.period_steps (from AUTELLIX_SCHEDULER_PERIOD_STEPS): is '0'; expected greater than",
        ),
        (
            "AUTELLIX_SCHEDULER_SPEED",
            "1",
            "speed (from AUTELLIX_SCHEDULER_SPEED): is unknown; expected one",
        ),
    ],
)
def test_a_bad_value_names_field_source_and_expectation(variable: str, value: str, message: str) -> None:
    """The message is one line with all that is needed to repair the setting."""
    with pytest.raises(SettingsError) as caught:
        load({variable: value})

    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("port = ", "is not TOML"),
        ("port = 1", "port"),
        ("[door]\nport = 1", "door"),
        ("[gateway]\nport = true", "gateway.port"),
        ("[scheduler]\nbeta = [1]", "scheduler.beta"),
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    """Broken TOML, unknown tables and wrong types are named."""
    with pytest.raises(SettingsError, match=message):
        load(file=write(tmp_path, text))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    """A settings file that was named must exist."""
    with pytest.raises(SettingsError, match="cannot read"):
        load(file=tmp_path / "none.toml")


def test_a_section_checks_itself() -> None:
    """Settings built in code are checked as well."""
    with pytest.raises(SettingsError, match=r"gateway\.port: is -1"):
        GatewaySettings(port=-1)


def test_the_tree_is_plain_json() -> None:
    """The mapping for `GET config` survives JSON."""
    mapping = settings_to_mapping(Settings(scheduler=SchedulerConfig(beta=math.inf)))

    assert json.loads(json.dumps(mapping, allow_nan=False)) == mapping


def test_the_cache_folder_follows_the_environment() -> None:
    """AUTELLIX_CACHE_DIR beats XDG_CACHE_HOME."""
    both = {"AUTELLIX_CACHE_DIR": "/a", "XDG_CACHE_HOME": "/b"}

    assert default_cache_dir(both) == Path("/a")
    assert default_cache_dir({"XDG_CACHE_HOME": "/b"}) == Path("/b/autellix")
    assert default_cache_dir({}) == Path.home() / ".cache/autellix"


def test_the_users_environment_wins_in_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Defaults for a child do not replace what the user has set."""
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "7")

    environment = child_environment({"VLLM_CPU_KVCACHE_SPACE": "1", "ONLY_DEFAULT": "x"})

    assert environment["VLLM_CPU_KVCACHE_SPACE"] == "7"
    assert environment["ONLY_DEFAULT"] == "x"


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("urls", "http://a:8000 http://b http://A:8000/v1", "each address once"),
        ("urls", "http://a:8000/v1?x=1", "without ? or #"),
        ("urls", "http://a:8000/#x", "without ? or #"),
        ("replicas", "1000000", "less than or equal to 1024"),
    ],
)
def test_engines_that_cannot_work_are_refused(field: str, value: str, expected: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(environ={f"AUTELLIX_ENGINE_{field.upper()}": value})
    assert f"engine.{field} " in caught.value.line and expected in caught.value.line


def test_a_policy_for_the_simulator_alone_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"scheduler.policy .*: is 'srpt'; expected one of"):
        load_settings(environ={"AUTELLIX_SCHEDULER_POLICY": "srpt"})


def test_a_field_for_studies_is_no_setting() -> None:
    with pytest.raises(SettingsError, match=r"scheduler\.demotes .*: is unknown; expected one of policy, "):
        load_settings(environ={"AUTELLIX_SCHEDULER_DEMOTES": "false"})


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("memory://", "memory://"),
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("redis://:secret@host/0", "redis://:***@host/0"),
        ("rediss://user:secret@host/0?password=secret&db=1", "rediss://user:***@host/0?password=***&db=1"),
        ("unix:///run/redis.sock", "unix:///run/redis.sock"),
    ],
)
def test_the_password_of_a_store_is_never_shown(url: str, shown: str) -> None:
    settings = Settings(store=StoreSettings(url=url))
    assert settings_to_mapping(settings)["store"]["url"] == shown


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"url": "http://secret@host"}, "store.url"),
        ({"url": "redis://secret@host/abc"}, "store.url"),
        ({"url": "rediss://secret@host/0/1"}, "store.url"),
        ({"key_prefix": "{a}"}, "store.key_prefix"),
    ],
)
def test_a_store_that_cannot_work_is_refused(values: dict[str, Any], field: str) -> None:
    with pytest.raises(SettingsError, match=field) as caught:
        StoreSettings(**values)
    assert "secret" not in str(caught.value)


def test_all_problems_are_found_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        load(
            {
                "AUTELLIX_GATEWAY_PORT": "x",
                "AUTELLIX_LIMITS_MAX_CALLS": "0",
                "AUTELLIX_STORE_URLL": "redis://h",
            }
        )

    assert [problem.field for problem in caught.value.all] == [
        "store.urll",
        "gateway.port",
        "limits.max_calls",
    ]
    assert "did you mean store.url?" in str(caught.value)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, ("http://127.0.0.1:8000", None)),
        ({"AUTELLIX_BASE_URL": "http://one/v1", "AUTELLIX_API_KEY": "k"}, ("http://one/v1", "k")),
        ({"AUTELLIX_BASE_URL": " http://one, http://two", "AUTELLIX_API_KEY": ""}, ("http://one", None)),
        ({"AUTELLIX_BASE_URL": " ,"}, ("http://127.0.0.1:8000", None)),
    ],
)
def test_commands_ask_the_first_gateway_of_the_environment(
    environ: dict[str, str], expected: tuple[str, str | None]
) -> None:
    assert client_environment(environ) == expected
