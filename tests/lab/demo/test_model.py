"""The demo model is generated whole, once, and the same each time."""

from __future__ import annotations

import filecmp
import importlib.util
import json
from pathlib import Path

import pytest

from autellix_lab.demo.model import build_demo_model, demo_model_directory

needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is not installed"
)


@needs_transformers
@pytest.mark.slow
def test_the_same_seed_gives_the_same_files(demo_model: Path, tmp_path: Path) -> None:
    """Two builds are equal, byte for byte, and leave no staging folder."""
    again = build_demo_model(tmp_path / "again")

    names = sorted(path.name for path in demo_model.iterdir())
    assert filecmp.cmpfiles(demo_model, again, names, shallow=False) == (names, [], [])
    assert [path.name for path in tmp_path.iterdir()] == ["again"]


@needs_transformers
def test_a_built_model_is_kept(demo_model: Path) -> None:
    """A second build touches nothing."""
    before = {path.name: path.stat().st_mtime_ns for path in demo_model.iterdir()}

    assert build_demo_model(demo_model) == demo_model
    assert {path.name: path.stat().st_mtime_ns for path in demo_model.iterdir()} == before


@needs_transformers
def test_it_is_a_llama_of_about_a_million_parameters(demo_model: Path) -> None:
    """The files are those of a real Llama with a long enough context."""
    config = json.loads((demo_model / "config.json").read_text())

    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["max_position_embeddings"] >= 4096
    assert 4_000_000 < (demo_model / "model.safetensors").stat().st_size < 5_000_000


@needs_transformers
@pytest.mark.slow
def test_the_chat_template_renders_every_role(demo_model: Path) -> None:
    """System, user parts, tool calls, tool results and tool definitions all appear."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(demo_model)
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    text = tokenizer.apply_chat_template(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Add."}]},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "2"},
        ],
        tools=[{"type": "function", "function": {"name": "add"}}],
        tokenize=False,
        add_generation_prompt=True,
    )

    assert text.splitlines()[2:] == [
        "<|message|>system",
        "Be brief.<|end|>",
        "<|message|>user",
        "Add.<|end|>",
        "<|message|>assistant",
        '<|tool_call|>[{"name": "add", "arguments": {"a": 1}}]<|end|>',
        "<|message|>tool c1",
        "2<|end|>",
        "<|message|>assistant",
    ]
    assert tokenizer.decode(tokenizer.encode("naïve ✓ 42")) == "naïve ✓ 42"


def test_the_default_folder_names_the_version(tmp_path: Path) -> None:
    """Another version of the model goes into another folder."""
    assert demo_model_directory(tmp_path).parent == tmp_path
    assert demo_model_directory(tmp_path).name.startswith("demo-model-")
