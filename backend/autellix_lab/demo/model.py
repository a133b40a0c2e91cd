"""Makes `autellix.demo-model`: a Llama of about one million random parameters with its own tokenizer.

Its answers make no sense, but to an engine it is a real model: it loads in a moment, needs no download and no
GPU, and accepts chat messages and tools.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from autellix_backend.engines.base import EngineNotInstalledError
from autellix_backend.settings import default_cache_dir
from autellix_lab.demo.corpus import sentences
from autellix_lab.demo.model_folder import build_once

DEMO_MODEL_NAME = "autellix.demo-model"
VERSION = 3
"""Increased when the generated files change, so that old ones are not mistaken for new ones."""
MAX_POSITIONS = 8192
VOCABULARY_SIZE = 2048
PAD, EOS, MESSAGE_START, MESSAGE_END = SPECIAL_TOKENS = ("<|pad|>", "<|eos|>", "<|message|>", "<|end|>")

CHAT_TEMPLATE = """\
{%- if tools -%}
<|message|>tools, called by <|tool_call|> and a JSON list
{%- for tool in tools %}{{ '\\n' }}{{ tool | tojson }}{% endfor %}<|end|>{{ '\\n' }}
{%- endif -%}
{%- for message in messages -%}
<|message|>{{ message.role }}
{%- if message.tool_call_id %} {{ message.tool_call_id }}{% endif %}{{ '\\n' }}
{%- if message.content is string -%}{{ message.content }}
{%- elif message.content -%}{% for part in message.content %}{{ part.text }}{% endfor %}
{%- endif -%}
{%- if message.tool_calls -%}
{{ '\\n' if message.content }}<|tool_call|>[
{%- for call in message.tool_calls -%}
{%- set arguments = call.function.arguments -%}
{{ ', ' if not loop.first }}{"name": {{ call.function.name | tojson }}, "arguments": {{ '' }}
{{- arguments if arguments is string else arguments | tojson }}}
{%- endfor -%}
]
{%- endif -%}
<|end|>{{ '\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}<|message|>assistant{{ '\\n' }}{%- endif -%}
"""


def demo_model_directory(cache_dir: Path | None = None) -> Path:
    """Return the default folder of the demo model, below the cache folder."""
    return (cache_dir or default_cache_dir()) / f"demo-model-{VERSION}"


def demo_model(cache_dir: Path | None = None) -> tuple[Path, str]:
    """Return the folder of the demo model, written first if it is not there, and the name it is served by.

    Raises:
        ModelFolderError: if it cannot be written.
        EngineNotInstalledError: if the packages that make it are not installed.
    """
    return build_demo_model(demo_model_directory(cache_dir)), DEMO_MODEL_NAME


def build_demo_model(directory: Path, seed: int = 0) -> Path:
    """Write the model into `directory`, all files or none; one that is there already is kept.

    Raises:
        EngineNotInstalledError: if transformers or torch is missing.
        ModelFolderError: if the folder holds anything else.
    """
    identity = {"model": "demo-model", "version": VERSION, "seed": seed}
    return build_once(directory, identity, lambda staging: _write_model(staging, seed))


def _write_model(directory: Path, seed: int) -> None:
    try:
        import torch
        import transformers
    except ImportError as error:
        raise EngineNotInstalledError("transformers") from error
    tokenizer = _train_tokenizer(transformers)
    tokenizer.save_pretrained(directory)
    config = _model_config(transformers, tokenizer)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.LlamaForCausalLM(config)
    with _quiet(transformers):
        model.save_pretrained(directory)


@contextlib.contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Hide the library's progress bars: the model is written in a moment."""
    library_logging = transformers.utils.logging
    was_enabled = library_logging.is_progress_bar_enabled()
    library_logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            library_logging.enable_progress_bar()


def _train_tokenizer(transformers: Any) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sentences(), trainer)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        extra_special_tokens=[MESSAGE_START, MESSAGE_END],
        chat_template=CHAT_TEMPLATE,
        model_max_length=MAX_POSITIONS,
        clean_up_tokenization_spaces=False,
    )


def _model_config(transformers: Any, tokenizer: Any) -> Any:
    return transformers.LlamaConfig(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=128,
        intermediate_size=352,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=MAX_POSITIONS,
        # Wide enough that the best token stands out, as in a trained model; at the usual 0.02 all nearly tie.
        initializer_range=0.1,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
