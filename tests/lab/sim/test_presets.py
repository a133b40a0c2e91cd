"""Presets: derived numbers, and engines read from files."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from autellix_lab.sim.model import EngineModel
from autellix_lab.sim.presets import (
    A100_80GB,
    FALCON_180B,
    LLAMA_31_8B,
    LLAMA_31_70B,
    PRESETS,
    Hardware,
    Model,
    ModelError,
    derive_engine,
    find_engine,
    read_engine,
)

BOX = Hardware(
    name="box", memory_bytes=1000, bandwidth_bytes_per_s=100, flops=50, link_bytes_per_s=10, source="test"
)
TINY = Model(name="tiny", parameters=60, layers=1, heads=3, kv_heads=1, head_dim=2, source="test")


def test_the_derivation_is_the_documented_one() -> None:
    """By hand: 120 bytes of weights, 8 bytes a token, 128 bytes a block."""
    engine = derive_engine("e", BOX, TINY)

    assert (engine.step_s, engine.context_s) == pytest.approx((120 / 80, 8 / 80))
    assert (engine.prefill_s, engine.prefill_context_s) == pytest.approx((120 / 25, 24 / 25))
    assert engine.kv_blocks == (920 - 120) // 128
    assert engine.block_bytes == 128
    assert engine.swap_block_s == pytest.approx(128 / 8)
    assert engine.swap_transfer_s == 6e-6


def test_gpus_add_up() -> None:
    """Four have four times the speed, and hold the weights once."""
    one, four = (derive_engine("e", replace(BOX, gpus=gpus), TINY) for gpus in (1, 4))

    for name in ("step_s", "context_s", "prefill_s", "prefill_context_s", "swap_block_s"):
        assert getattr(four, name) == pytest.approx(getattr(one, name) / 4)
    assert four.kv_blocks == (4 * 920 - 120) // 128


def test_a_model_that_does_not_fit_is_refused() -> None:
    """With its name and the hardware's."""
    with pytest.raises(ValueError, match=r"Llama 3\.1 70B leaves no memory for KV blocks on 1 x A100"):
        derive_engine("e", A100_80GB, LLAMA_31_70B)


def test_a_model_has_the_parameters_of_its_shape() -> None:
    """Weights of Llama 3.1 8B by its layers: embeddings and head, attention, feed-forward."""
    attention = 2 * 4096 * 4096 + 2 * 4096 * LLAMA_31_8B.kv_heads * LLAMA_31_8B.head_dim
    layers = LLAMA_31_8B.layers * (attention + 3 * 4096 * 14336)

    assert pytest.approx(2 * 128256 * 4096 + layers, rel=0.001) == LLAMA_31_8B.parameters


def test_the_parameters_of_falcon_180b_are_its_layers() -> None:
    """Its attention and feed-forward layer run in parallel, and the head is not the embedding."""
    hidden, vocabulary = FALCON_180B.heads * FALCON_180B.head_dim, 65_024
    attention = 2 * hidden**2 + 2 * hidden * FALCON_180B.kv_heads * FALCON_180B.head_dim
    layers = FALCON_180B.layers * (attention + 2 * hidden * 4 * hidden)

    assert pytest.approx(2 * vocabulary * hidden + layers, rel=0.001) == FALCON_180B.parameters


def test_every_preset_names_its_source() -> None:
    """And is found by its name."""
    assert set(PRESETS) == {
        "llama3.1-8b-a100",
        "llama3.1-8b-h100",
        "llama3.1-70b-4xa100",
        "falcon-180b-8xa100",
        "qwen3-30b-a3b-h100",
        "demo",
        "unit",
    }
    for name, engine in PRESETS.items():
        assert find_engine(name) is engine
        assert engine.source


def test_the_demo_engine_writes_what_was_measured() -> None:
    """255 tokens/s with the demo's mean call: 127 new tokens prefilled, 24 decoded."""
    assert PRESETS["demo"].tokens_per_s(127.4, 23.75) == pytest.approx(255, rel=0.05)


def test_a_written_engine_is_read_back(tmp_path: Path) -> None:
    """Every field, and whole numbers of seconds too."""
    path = tmp_path / "engine.json"
    path.write_text(json.dumps(PRESETS["llama3.1-8b-a100"].to_mapping()))
    assert read_engine(path) == PRESETS["llama3.1-8b-a100"]

    path.write_text('{"step_s": 1, "kv_blocks": null}')
    assert find_engine(str(path)) == EngineModel(step_s=1.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "engine.json cannot be read"),
        ("poem", "engine.json is not JSON"),
        ("[" * 100_000, "engine.json is not JSON"),
        ("[]", "engine.json is not a JSON object"),
        ('{"steps": 1}', "engine.json: steps is unknown; expected one of name, max_num_seqs"),
        ('{"step_s": "fast"}', "engine.json: step_s is 'fast'; expected float"),
        ('{"step_s": NaN}', "engine.json is not JSON"),
        ('{"max_num_seqs": true}', "engine.json: max_num_seqs is True; expected int"),
        ('{"kv_blocks": 1.5}', "engine.json: kv_blocks is 1.5; expected int | null"),
        ('{"kv_blocks": 0}', "engine.json: kv_blocks must be at least 1"),
    ],
)
def test_a_bad_file_is_one_clear_message(tmp_path: Path, text: str | None, message: str) -> None:
    """It names the file, the field and what was expected."""
    path = tmp_path / "engine.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ModelError, match=re.escape(message)):
        find_engine(str(path))


def test_an_unknown_preset_lists_those_that_exist() -> None:
    """And says that a file will do."""
    with pytest.raises(ModelError, match=r"'gpt'; expected llama3\.1-8b-a100, .*, or a \.json file"):
        find_engine("gpt")
