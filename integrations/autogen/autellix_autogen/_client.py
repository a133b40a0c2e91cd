"""Defines a model client for AutoGen with defaults for an Autellix backend."""

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

    It accepts the arguments of `OpenAIChatCompletionClient`, with these defaults:

    - `base_url`: the first address of `AUTELLIX_BASE_URL`, else the port of `autellix serve` on this machine;
    - `api_key`: `OPENAI_API_KEY`, else a placeholder, for backends that need none;
    - `model_info`: for models that AutoGen does not know: text, tools, JSON and structured output.

    A dumped component leaves the defaults out, so they are derived again where it is loaded.

    Raises:
        ValueError: if `model` is missing.
    """

    component_provider_override = "autellix_autogen.AutellixChatCompletionClient"
    component_config_schema = OpenAIClientConfigurationConfigModel

    def __init__(self, **kwargs: Unpack[OpenAIClientConfiguration]) -> None:
        given: dict[str, Any] = dict(kwargs)
        defaults = {name: value for name, value in _defaults(given).items() if name not in given}
        self._defaulted = frozenset(defaults)
        super().__init__(**given, **defaults)

    def _to_config(self) -> OpenAIClientConfigurationConfigModel:
        config = {name: value for name, value in self._raw_config.items() if name not in self._defaulted}
        return OpenAIClientConfigurationConfigModel(**config)


def _defaults(given: dict[str, Any]) -> dict[str, Any]:
    defaults: dict[str, Any] = {
        "base_url": _base_url(os.environ.get(BASE_URL_VARIABLE, "")),
        "api_key": os.environ.get(KEY_VARIABLE) or NO_KEY,
    }
    if "model_capabilities" not in given and not _is_known(given.get("model", "")):
        defaults["model_info"] = _model_info()
    return defaults


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
