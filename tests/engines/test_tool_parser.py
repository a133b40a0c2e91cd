"""The parser of a model's tool calls is the one for the form that its chat template has."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from autellix_backend.engines.tool_parser import (
    FORMS,
    is_decided,
    parser_of_model,
    parser_of_template,
    tool_arguments,
)
from autellix_lab.demo.model import CHAT_TEMPLATE

DEEPSEEK = "<\uff5ctool\u2581calls\u2581begin\uff5c><\uff5ctool\u2581call\u2581begin\uff5c>"
HERMES = '{{ "<tool_call>\\n{\\"name\\": \\"" + name + "\\", \\"arguments\\": " }}{{ arguments }}</tool_call>'


@pytest.mark.parametrize(
    ("template", "model_type", "parser"),
    [
        (CHAT_TEMPLATE, "llama", "granite"),
        (HERMES, "qwen3", "hermes"),
        ("<tool_call>\n<function={{ name }}>\n<parameter={{ key }}>", "qwen3_moe", "qwen3_coder"),
        ("[gMASK]<sop><tool_call>{{ name }}\n<arg_key>{{ key }}</arg_key>", "glm4_moe", "glm45"),
        ("<tool_call>{{ name }}<arg_key>{{ key }}</arg_key></tool_call>", "another", None),
        (
            '<|start_header_id|>{"name": name, "parameters": dictionary of argument name and value}',
            "llama",
            "llama3_json",
        ),
        ("respond with <|tool_call|> followed by a JSON list of tools used", "granite", "granite"),
        ("<|tool_call|>{{ call | tojson }}<|/tool_call|>", "phi3", None),
        ('{{ "[TOOL_CALLS] [" }}', "mistral", "mistral"),
        ("<|start|>assistant to=functions.{{ name }}<|channel|>commentary json", "gpt_oss", "openai"),
        ("<|tool_calls_section_begin|>", "kimi_k2", "kimi_k2"),
        ("<minimax:tool_call>", "minimax_m2", "minimax_m2"),
        ("<seed:tool_call>", "seed_oss", "seed_oss"),
        ("<|tool_call>call:{{ name }}{}<tool_call|>", "gemma4", "gemma4"),
        (f"{DEEPSEEK}function\n```json\n", "deepseek_v3", "deepseek_v3"),
        (DEEPSEEK, "deepseek_v3", "deepseek_v31"),
        # A distilled model: its tokenizer lacks the tokens without which the parser ends the engine.
        (f"{DEEPSEEK}function\n```json\n", "qwen2", None),
        ("{% for message in messages %}{{ message.content }}{% endfor %}", "llama", None),
        ("", None, None),
    ],
)
def test_the_form_of_the_template_decides(template: str, model_type: str | None, parser: str | None) -> None:
    assert parser_of_template(template, model_type) == parser


@pytest.mark.parametrize(
    ("arguments", "is_theirs"),
    [
        ((), False),
        (("--dtype", "float32", "--max-model-len=4096"), False),
        (("--no-enable-auto-tool-choice",), True),
        (("--enable-auto-tool-choice", "--tool-call-parser", "pythonic"), True),
        (("--tool_call_parser=pythonic",), True),
        (("--chat-template=other.jinja",), True),
        (("--config", "vllm.yaml"), True),
    ],
)
def test_the_users_own_arguments_decide(arguments: tuple[str, ...], is_theirs: bool) -> None:
    """They name a parser, turn it off, or replace the template that we would read."""
    assert is_decided(arguments) is is_theirs


def test_a_parser_enables_automatic_tool_choice() -> None:
    assert tool_arguments("hermes") == ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    assert tool_arguments(None) == []


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("chat_template.jinja", HERMES),
        ("tokenizer_config.json", json.dumps({"chat_template": HERMES})),
        (
            "tokenizer_config.json",
            json.dumps(
                {
                    "chat_template": [
                        {"name": "default", "template": ""},
                        {"name": "tool_use", "template": HERMES},
                    ]
                }
            ),
        ),
    ],
)
def test_the_template_is_found_where_models_have_it(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    (tmp_path / name).write_text(content)
    assert parser_of_model(str(tmp_path)) == "hermes"


def test_a_template_of_its_own_replaces_that_of_the_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("[TOOL_CALLS]")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": HERMES}))
    assert parser_of_model(str(tmp_path)) == "mistral"


def test_a_folder_that_cannot_be_read_has_no_parser(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text("{")
    assert parser_of_model(str(tmp_path)) is None


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("chat_template.json", []),
        ("tokenizer_config.json", {"chat_template": 7}),
        ("tokenizer_config.json", {"chat_template": [{"name": "default"}]}),
        ("config.json", {"model_type": ["llama"]}),
        ("config.json", "llama"),
    ],
)
def test_files_of_another_shape_have_no_parser(tmp_path: Path, name: str, content: Any) -> None:
    """And end no start: what is wrong with them is for the engine to say."""
    if name == "config.json":
        (tmp_path / "chat_template.jinja").write_text("[TOOL_CALLS]")
    (tmp_path / name).write_text(json.dumps(content))
    assert parser_of_model(str(tmp_path)) is None


def test_a_model_of_the_hub_is_read_from_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that it lacks is not an error; a hub that does not answer is asked once."""
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": HERMES}))
    asked: list[str] = []
    is_down = False

    def download(_model: str, name: str) -> str:
        asked.append(name)
        if is_down:
            raise errors.LocalEntryNotFoundError
        if not (tmp_path / name).exists():
            raise errors.EntryNotFoundError
        return str(tmp_path / name)

    errors = _stand_in_for_the_hub(monkeypatch, download)
    assert parser_of_model("someone/model") == "hermes"
    asked.clear()
    is_down = True
    assert parser_of_model("someone/model") is None
    assert len(asked) == 1


def _stand_in_for_the_hub(monkeypatch: pytest.MonkeyPatch, download: Any) -> Any:
    hub, errors = ModuleType("huggingface_hub"), ModuleType("huggingface_hub.errors")

    class EntryNotFoundError(Exception):
        pass

    class LocalEntryNotFoundError(FileNotFoundError, EntryNotFoundError):
        pass

    vars(hub)["hf_hub_download"] = download
    vars(errors).update(
        EntryNotFoundError=EntryNotFoundError, LocalEntryNotFoundError=LocalEntryNotFoundError
    )
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    monkeypatch.setitem(sys.modules, "huggingface_hub.errors", errors)
    return errors


def test_the_installed_vllm_has_every_parser() -> None:
    """An unknown one would end the engine at its start. Read as text: its import takes seconds."""
    found = importlib.util.find_spec("vllm")
    if found is None or not found.submodule_search_locations:
        pytest.skip("vLLM is not installed")
    registry = Path(found.submodule_search_locations[0], "tool_parsers", "__init__.py").read_text()
    assert [form.parser for form in FORMS if f'"{form.parser}": (' not in registry] == []
