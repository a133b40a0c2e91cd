"""Secrets in addresses and arguments are shown nowhere."""

from __future__ import annotations

import base64

import pytest

from autellix_backend.settings import (
    EngineSettings,
    ObserveSettings,
    Settings,
    SettingsError,
    settings_to_mapping,
)
from autellix_backend.settings.secrets import hidden_arguments, is_http_url, without_credentials


def test_passwords_in_addresses_are_hidden() -> None:
    settings = Settings(
        engine=EngineSettings(urls=("http://me:hush@one:8000", "https://you:hush@two/v1")),
        observe=ObserveSettings(otlp_endpoint="http://me:hush@otel:4318"),
    )
    shown = settings_to_mapping(settings)
    assert shown["engine"]["urls"] == ["http://me:***@one:8000", "https://you:***@two/v1"]
    assert shown["observe"]["otlp_endpoint"] == "http://me:***@otel:4318"
    assert "hush" not in str(shown)


@pytest.mark.parametrize(
    "url",
    [
        "htp://me:hush@one",
        "htp://one?password=hush",
        "http://me:hush@one:99999",
        "htp:/me:hush@one",
        "http://me:hush@[::1",
    ],
)
def test_a_bad_address_is_not_repeated(url: str) -> None:
    with pytest.raises(SettingsError, match=r"engine\.urls: cannot be used") as error:
        EngineSettings(urls=(url,))
    assert "hush" not in str(error.value)
    assert not is_http_url(url)


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["--api-key", "hush", "--dtype", "float32"], ["--api-key", "(hidden)", "--dtype", "float32"]),
        (["--api-key", "hush", "hush2", "-O3"], ["--api-key", "(hidden)", "(hidden)", "-O3"]),
        (["--api_key=hush"], ["--api_key=(hidden)"]),
        (["--api-k=hush"], ["--api-k=(hidden)"]),
        (["--hf-token", "hush"], ["--hf-token", "(hidden)"]),
        (["--max-num-batched-tokens", "8", "--tokenizer", "t"], None),
        (["--ssl-keyfile", "/k", "--served-model-name=x"], None),
    ],
)
def test_secret_arguments_are_hidden(arguments: list[str], shown: list[str] | None) -> None:
    assert hidden_arguments(arguments) == (arguments if shown is None else shown)
    engine = settings_to_mapping(Settings(engine=EngineSettings(extra_args=tuple(arguments))))["engine"]
    assert engine["extra_args"] == (arguments if shown is None else shown)


@pytest.mark.parametrize("url", ["http://", "http://[::1", "host:80"])
def test_a_bad_address_without_a_password_is_shown(url: str) -> None:
    with pytest.raises(SettingsError, match=r"engine\.urls: is '"):
        EngineSettings(urls=(url,))


def test_an_address_is_split_from_its_password() -> None:
    credentials = "Basic " + base64.b64encode(b"me:hu@sh").decode()
    assert without_credentials("http://me:hu%40sh@one:1/v1") == ("http://one:1/v1", credentials)
    assert without_credentials("http://one:1/v1") == ("http://one:1/v1", None)
