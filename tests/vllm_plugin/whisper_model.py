"""A made-up Whisper, the smallest model with an encoder and a decoder, without weights."""

from __future__ import annotations

import json
from pathlib import Path

import transformers
from tokenizers import pre_tokenizers

_SPECIAL = ("<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>")


def write_whisper(folder: Path) -> Path:
    """Write its configuration and its processor; return the folder."""
    folder.mkdir(exist_ok=True)
    names = [*_SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = transformers.WhisperTokenizer(
        vocab={name: number for number, name in enumerate(names)}, merges=[]
    )
    sounds = transformers.WhisperFeatureExtractor(feature_size=80)
    transformers.WhisperProcessor(sounds, tokenizer).save_pretrained(folder)
    sides = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (("layers", 1), ("attention_heads", 1), ("ffn_dim", 64))
    }
    tokens = {
        f"{name}_token_id": number for number, name in enumerate(("pad", "bos", "eos", "decoder_start"))
    }
    config = transformers.WhisperConfig(vocab_size=1000, d_model=64, num_mel_bins=80, **sides, **tokens)
    architecture = {"architectures": ["WhisperForConditionalGeneration"], "torch_dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(config.to_dict() | architecture))
    return folder
