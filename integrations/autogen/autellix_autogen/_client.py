"""A model client for AutoGen that knows where the backend is, and what a model served there can do."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

try:
    from autogen_core.models import ModelFamily, ModelInfo
    from autogen_ext.models.openai import OpenAIChatCompletionClient
    from autogen_ext.models.openai._model_info import get_info
    from autogen_ext.models.openai.config import OpenAIClientConfigurationConfigModel
except ImportError as error:
    raise ImportError("AutellixChatCompletionClient needs: pip install 'autogen-ext[openai]'") from error

if TYPE_CHECKING:
    from typing import Any, Unpack

    from autogen_ext.models.openai.config import OpenAIClientConfiguration

BASE_URL_VARIABLE = "AUTELLIX_BASE_URL"
DEFAULT_BASE_URL = "http://127.0.0.1:8000/v1"
KEY_VARIABLE = "OPENAI_API_KEY"
NO_KEY = "unused"


class AutellixChatCompletionClient(OpenAIChatCompletionClient):
    """An OpenAI client for models behind an Autellix backend.

    It takes what `OpenAIChatCompletionClient` takes. Where it is told nothing it assumes:

    - `base_url`: the first address of `AUTELLIX_BASE_URL`, else the port of `autellix serve` on this machine;
    - `api_key`: `OPENAI_API_KEY`, else a placeholder, for backends that ask for none;
    - `model_info`: for a name that is none of OpenAI's: text in and out, tools, JSON and structured output.

    A dumped component leaves out what was assumed, so that it is found out anew where it is loaded.

    Raises:
        ValueError: if `model` is missing.
    """

    component_provider_override = "autellix_autogen.AutellixChatCompletionClient"
    component_config_schema = OpenAIClientConfigurationConfigModel

    def __init__(self, **kwargs: Unpack[OpenAIClientConfiguration]) -> None:
        given: dict[str, Any] = dict(kwargs)
        assumed = {name: value for name, value in _assumptions(given).items() if name not in given}
        self._assumed = frozenset(assumed)
        super().__init__(**given, **assumed)

    def _to_config(self) -> OpenAIClientConfigurationConfigModel:
        config = {name: value for name, value in self._raw_config.items() if name not in self._assumed}
        return OpenAIClientConfigurationConfigModel(**config)


def _assumptions(given: dict[str, Any]) -> dict[str, Any]:
    assumed: dict[str, Any] = {
        "base_url": _base_url(os.environ.get(BASE_URL_VARIABLE, "")),
        "api_key": os.environ.get(KEY_VARIABLE) or NO_KEY,
    }
    if "model_capabilities" not in given and not _is_known(given.get("model", "")):
        assumed["model_info"] = _model_info()
    return assumed


def _base_url(setting: str) -> str:
    address = setting.split(",")[0].strip().rstrip("/")
    if not address:
        return DEFAULT_BASE_URL
    return address if address.endswith("/v1") else f"{address}/v1"


def _is_known(model: str) -> bool:
    try:
        get_info(model)
    except ValueError:
        return False
    return True


def _model_info() -> ModelInfo:
    return ModelInfo(
        vision=False,
        function_calling=True,
        json_output=True,
        structured_output=True,
        family=ModelFamily.UNKNOWN,
        multiple_system_messages=True,
    )
