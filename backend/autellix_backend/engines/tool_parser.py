"""Which of vLLM's parsers reads a model's calls of tools, by the form that its chat template gives them.

vLLM has a parser for each form and leaves the choice to its arguments; without one it refuses automatic tool
choice, which every agent asks for. The template shows the model its own calls, so it has the form that the
model was trained on. The architecture does not tell: one is trained on many forms.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

OWN_ARGUMENTS = (
    "--chat-template",
    "--config",
    "--enable-auto-tool-choice",
    "--no-enable-auto-tool-choice",
    "--tokenizer",
    "--tool-call-parser",
)
"""With one of these the user decides: on the parser, on automatic tool choice, or on another template."""
_TOKENIZER_FILE = "tokenizer_config.json"
_TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json", _TOKENIZER_FILE)
"""Newer first: a template of its own replaces that of the tokenizer."""
_CONFIG_FILE = "config.json"
_DEEPSEEK_CALLS = "<\uff5ctool\u2581calls\u2581begin\uff5c>"
"""Its bars and gaps are not those of ASCII."""


class _NamedTemplate(msgspec.Struct):
    template: str


class _TokenizerConfig(msgspec.Struct):
    chat_template: str | list[_NamedTemplate] | None = None


class _ModelConfig(msgspec.Struct):
    model_type: str | None = None


@dataclass(frozen=True, slots=True)
class CallForm:
    """A form of calls, and the parser that reads it."""

    parser: str
    marks: tuple[str, ...]
    """Texts that are all in the templates of this form."""
    model_type: str | None = None
    """The only type of model whose tokenizer has the tokens that the parser insists on."""


FORMS = (
    # Qwen3-Coder, Qwen3.5, Nemotron 3: XML for each argument, within the tags that hermes fills with JSON.
    CallForm("qwen3_coder", ("<tool_call>", "<function=", "<parameter=")),
    # GLM-4.5 and later: pairs of keys and values, within the same tags.
    CallForm("glm45", ("[gMASK]", "<tool_call>", "<arg_key>")),
    # Qwen2.5, Qwen3, Hermes, SmolLM3, Granite 4: one JSON object in each pair of tags.
    CallForm("hermes", ("<tool_call>", "</tool_call>", '"name": ', '"arguments": ')),
    # Llama 3.1 to 3.3: a bare JSON object. Its parser wants a token that other users of the headers may lack.
    CallForm("llama3_json", ("<|start_header_id|>", '"parameters": dictionary of argument name'), "llama"),
    # Granite 3 and the demo model: one JSON list for all calls.
    CallForm("granite", ("<|tool_call|>", "JSON list")),
    CallForm("mistral", ("[TOOL_CALLS]",)),
    CallForm("openai", ("<|start|>", "<|channel|>", "functions."), "gpt_oss"),
    CallForm("kimi_k2", ("<|tool_calls_section_begin|>",)),
    CallForm("minimax_m2", ("<minimax:tool_call>",)),
    CallForm("seed_oss", ("<seed:tool_call>",)),
    CallForm("gemma4", ("<|tool_call>", "<tool_call|>")),
    # V3 and R1 fence the arguments, V3.1 does not. Distilled models have the template without its tokens.
    CallForm("deepseek_v3", (_DEEPSEEK_CALLS, "```json"), "deepseek_v3"),
    CallForm("deepseek_v31", (_DEEPSEEK_CALLS,), "deepseek_v3"),
)
"""The first that fits is taken. Families whose templates have none of these marks get no parser."""


def is_decided(extra_args: Sequence[str]) -> bool:
    """Return whether the user's own arguments decide on automatic tool choice."""
    return any(argument.partition("=")[0].replace("_", "-") in OWN_ARGUMENTS for argument in extra_args)


def tool_arguments(parser: str | None) -> list[str]:
    """Return the arguments that enable automatic tool choice, where there is a parser for it."""
    return [] if parser is None else ["--enable-auto-tool-choice", "--tool-call-parser", parser]


def parser_of_model(model: str) -> str | None:
    """Return the parser for a folder or Hugging Face id, which may take a small download; None if none fits.

    A model that cannot be read has none either: the engine itself says what is wrong with it.
    """
    read = _reader_of_folder(Path(model)) if Path(model).exists() else _reader_of_hub(model)
    try:
        return parser_of_template(_template(read), _model_type(read))
    except (OSError, ValueError, msgspec.ValidationError):
        return None


def parser_of_template(template: str, model_type: str | None) -> str | None:
    """Return the parser for a chat template of a type of model, None if no known form fits."""
    # Jinja's strings escape the quotes of JSON.
    text = template.replace('\\"', '"')
    fitting = (
        form.parser
        for form in FORMS
        if form.model_type in (None, model_type) and all(mark in text for mark in form.marks)
    )
    return next(fitting, None)


def _template(read: Callable[[str], str | None]) -> str:
    for name in _TEMPLATE_FILES:
        if not (text := read(name)):
            continue
        if name.endswith(".jinja"):
            return text
        # One template, or several with names: any of them shows the form.
        if template := msgspec.convert(json.loads(text), _TokenizerConfig).chat_template:
            return template if isinstance(template, str) else "\n".join(one.template for one in template)
    return ""


def _model_type(read: Callable[[str], str | None]) -> str | None:
    return msgspec.convert(json.loads(read(_CONFIG_FILE) or "{}"), _ModelConfig).model_type


def _reader_of_folder(folder: Path) -> Callable[[str], str | None]:
    def read(name: str) -> str | None:
        path = folder / name
        return path.read_text(encoding="utf-8") if path.is_file() else None

    return read


def _reader_of_hub(model: str) -> Callable[[str], str | None]:
    # The engine needs the library and these files too: they go where it looks for them.
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    def read(name: str) -> str | None:
        try:
            return Path(hf_hub_download(model, name)).read_text(encoding="utf-8")
        except LocalEntryNotFoundError:
            # The hub does not answer: neither will it for the other files.
            raise
        except EntryNotFoundError:
            return None

    return read
