"""`AutellixChatCompletionClient`: what it assumes, and that it survives its configuration."""

from __future__ import annotations

import json

import pytest

from autellix.testing import RecordingBackend

pytest.importorskip("autogen_core")
pytest.importorskip("autogen_ext.models.openai")

from autogen_core import ComponentModel
from autogen_core.models import ChatCompletionClient, UserMessage
from autogen_ext.models.openai import OpenAIChatCompletionClient

from autellix_autogen import AutellixChatCompletionClient

PROVIDER = "autellix_autogen.AutellixChatCompletionClient"


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AUTELLIX_BASE_URL", "OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


def address(client: OpenAIChatCompletionClient) -> str:
    return str(client._client.base_url)


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        (None, "http://127.0.0.1:8000/v1/"),
        ("", "http://127.0.0.1:8000/v1/"),
        ("http://gateway:9000", "http://gateway:9000/v1/"),
        ("http://gateway:9000/v1/, http://other", "http://gateway:9000/v1/"),
    ],
)
def test_base_url_of_the_environment(
    setting: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if setting is not None:
        monkeypatch.setenv("AUTELLIX_BASE_URL", setting)
    assert address(AutellixChatCompletionClient(model="any")) == expected


def test_explicit_arguments_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTELLIX_BASE_URL", "http://gateway:9000")
    info = AutellixChatCompletionClient(model="any").model_info
    info["vision"] = True
    client = AutellixChatCompletionClient(
        model="any", base_url="http://here/v1", api_key="mine", model_info=info
    )
    assert address(client) == "http://here/v1/"
    assert client._client.api_key == "mine"
    assert client.model_info["vision"] is True


def test_model_info_of_unknown_models_only() -> None:
    assert AutellixChatCompletionClient(model="my-finetune").model_info["function_calling"] is True
    assert AutellixChatCompletionClient(model="my-finetune").model_info["vision"] is False
    assert AutellixChatCompletionClient(model="gpt-4o").model_info["vision"] is True


async def test_it_calls_the_backend(backend: RecordingBackend) -> None:
    client = AutellixChatCompletionClient(model="recording", base_url=backend.url)

    async def work() -> object:
        result = await client.create([UserMessage(content="hi", source="user")])
        await client.close()
        return result.content

    assert await work() == "hello"
    assert backend.recorded[0].program_id is not None


def test_component_round_trip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also through JSON; what was assumed is assumed anew."""
    client = AutellixChatCompletionClient(model="any", temperature=0.5, max_tokens=7)
    dumped = client.dump_component()
    assert dumped.provider == PROVIDER
    assert dumped.config == {"model": "any", "temperature": 0.5, "max_tokens": 7}
    monkeypatch.setenv("AUTELLIX_BASE_URL", "http://gateway:9000")
    text = dumped.model_dump_json()
    loaded = ChatCompletionClient.load_component(ComponentModel(**json.loads(text)))
    assert type(loaded) is AutellixChatCompletionClient
    assert address(loaded) == "http://gateway:9000/v1/"
    assert loaded.dump_component() == dumped


def test_a_component_keeps_its_explicit_arguments() -> None:
    client = AutellixChatCompletionClient(model="any", base_url="http://here/v1", api_key="mine")
    loaded = AutellixChatCompletionClient.load_component(client.dump_component())
    assert address(loaded) == "http://here/v1/"
    assert loaded._client.api_key == "mine"


def test_a_model_is_required() -> None:
    with pytest.raises(ValueError, match="model is required"):
        AutellixChatCompletionClient()
