"""Named engines, derived from published numbers by one function; and engines read from a file.

`derive_engine` holds the whole derivation. It assumes that memory bandwidth bounds decode and arithmetic
bounds prefill, as for dense models at usual batch sizes:

    step_s             weight bytes / (BANDWIDTH_EFFICIENCY x bandwidth): each step reads all weights once
    decode_s           SEQUENCE_S: sampling, block tables and output of one sequence
    context_s          KV bytes of a token / (BANDWIDTH_EFFICIENCY x bandwidth): attention reads all of it
    prefill_s          2 x active parameters / (MODEL_FLOPS_UTILISATION x peak): a product and a sum each
    prefill_context_s  4 x layers x heads x head_dim / (MODEL_FLOPS_UTILISATION x peak): scores, their sum
    kv_blocks          (MEMORY_UTILISATION x memory - weight bytes) / block bytes
    swap_block_s       block bytes / (BANDWIDTH_EFFICIENCY x host link)
    swap_transfer_s    MEMCPY_LAUNCH_S

Several GPUs count as one with the sum of their bandwidth, arithmetic, memory and links. All-reduces of tensor
parallelism take no time, so the result is a little too fast.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import msgspec

from autellix_backend.errors import CommandError
from autellix_lab.sim.model import UNIT, EngineModel
from autellix_lab.workload.schema import check_known, to_record

BANDWIDTH_EFFICIENCY = 0.8
"""Assumed share of the peak bandwidth that kernels and copies reach."""
MODEL_FLOPS_UTILISATION = 0.5
"""Assumed share of the dense peak that prefill of long prompts reaches."""
MEMORY_UTILISATION = 0.92
"""Share of the memory for weights and KV blocks: vLLM's default, gpu_memory_utilization."""
BYTES_PER_VALUE = 2
"""bfloat16: the KV cache, and weights unless the model says otherwise."""
BLOCK_TOKENS = 16
"""vLLM's default block size."""
SEQUENCE_S = 2e-5
"""Assumed time of a step that grows with each sequence, whatever its context."""
MEMCPY_LAUNCH_S = 6e-6
"""One cudaMemcpyAsync of a small block: 5 to 7 us measured (arXiv 2602.21548, section 5.2)."""


class ModelError(CommandError, ValueError):
    """An engine model that cannot be used; names the file and the field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """One or several equal GPUs; the numbers are those of one."""

    name: str
    memory_bytes: float
    bandwidth_bytes_per_s: float
    """Of the device memory, peak."""
    flops: float
    """Dense bfloat16 operations per second, peak."""
    link_bytes_per_s: float
    """To the host, one direction, peak."""
    source: str
    gpus: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A transformer with full attention, dense or a mixture of experts."""

    name: str
    parameters: float
    layers: int
    heads: int
    """Query heads."""
    kv_heads: int
    head_dim: int
    source: str
    active_parameters: float | None = None
    """Those that one token uses; None for all. Steps read the weights of all experts."""
    parameter_bytes: float = BYTES_PER_VALUE

    @property
    def weight_bytes(self) -> float:
        """Bytes of all parameters."""
        return self.parameters * self.parameter_bytes

    @property
    def kv_token_bytes(self) -> int:
        """Bytes of one token's keys and values in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * BYTES_PER_VALUE


def derive_engine(
    name: str,
    hardware: Hardware,
    model: Model,
    *,
    max_num_seqs: int = 64,
    token_budget: int = 2048,
) -> EngineModel:
    """Return the engine that this model makes on this hardware, by the rules of the module's docstring.

    Args:
        name: of the engine.
        hardware: its GPUs.
        model: its transformer.
        max_num_seqs: most calls in one step, an operator's choice.
        token_budget: most tokens in one step, an operator's choice.

    Raises:
        ValueError: if the weights leave no memory for a KV block.
    """
    bandwidth = BANDWIDTH_EFFICIENCY * hardware.gpus * hardware.bandwidth_bytes_per_s
    flops = MODEL_FLOPS_UTILISATION * hardware.gpus * hardware.flops
    block_bytes = BLOCK_TOKENS * model.kv_token_bytes
    kv_bytes = MEMORY_UTILISATION * hardware.gpus * hardware.memory_bytes - model.weight_bytes
    if kv_bytes < block_bytes:
        raise ValueError(f"{model.name} leaves no memory for KV blocks on {hardware.gpus} x {hardware.name}")
    return EngineModel(
        name=name,
        max_num_seqs=max_num_seqs,
        token_budget=token_budget,
        step_s=model.weight_bytes / bandwidth,
        decode_s=SEQUENCE_S,
        context_s=model.kv_token_bytes / bandwidth,
        prefill_s=2 * (model.active_parameters or model.parameters) / flops,
        prefill_context_s=4 * model.layers * model.heads * model.head_dim / flops,
        block_tokens=BLOCK_TOKENS,
        block_bytes=block_bytes,
        kv_blocks=int(kv_bytes / block_bytes),
        swap_block_s=block_bytes / (BANDWIDTH_EFFICIENCY * hardware.gpus * hardware.link_bytes_per_s),
        swap_transfer_s=MEMCPY_LAUNCH_S,
        source=f"derived: {hardware.gpus} x {hardware.name} ({hardware.source}); "
        f"{model.name} ({model.source})",
    )


A100_80GB = Hardware(
    name="A100 SXM 80 GB",
    memory_bytes=80e9,
    bandwidth_bytes_per_s=2039e9,
    flops=312e12,
    link_bytes_per_s=32e9,
    source="NVIDIA A100 data sheet: 80 GB, 2,039 GB/s, 312 TFLOPS dense bf16, PCIe Gen4 64 GB/s both ways",
)
H100_80GB = Hardware(
    name="H100 SXM 80 GB",
    memory_bytes=80e9,
    bandwidth_bytes_per_s=3350e9,
    flops=989.5e12,
    link_bytes_per_s=64e9,
    source="NVIDIA H100 data sheet: 80 GB, 3.35 TB/s, 1,979 TFLOPS bf16 with sparsity and so 989.5 dense, "
    "PCIe Gen5 128 GB/s both ways",
)
LLAMA_31_8B = Model(
    name="Llama 3.1 8B",
    parameters=8.03e9,
    layers=32,
    heads=32,
    kv_heads=8,
    head_dim=128,
    source="model card and config.json: 8.03 billion parameters, 32 layers, 32 heads and 8 KV heads of 128",
)
LLAMA_31_70B = Model(
    name="Llama 3.1 70B",
    parameters=70.6e9,
    layers=80,
    heads=64,
    kv_heads=8,
    head_dim=128,
    source="model card and config.json: 70.6 billion parameters, 80 layers, 64 heads and 8 KV heads of 128",
)
FALCON_180B = Model(
    name="Falcon 180B",
    parameters=179.5e9,
    layers=80,
    heads=232,
    kv_heads=8,
    head_dim=64,
    source="model card and config.json: 179.5 billion parameters, 80 layers, 232 heads and 8 KV heads of 64",
)
QWEN3_30B_A3B = Model(
    name="Qwen3 30B-A3B-FP8",
    parameter_bytes=1,
    parameters=30.5e9,
    active_parameters=3.3e9,
    layers=48,
    heads=32,
    kv_heads=4,
    head_dim=128,
    source="model card and config.json: 30.5 billion parameters, 3.3 active, 48 layers, 32 heads and "
    "4 KV heads of 128; weights of one byte, as in the FP8 release (its faster arithmetic is left out)",
)
DEMO = EngineModel(
    name="demo",
    max_num_seqs=4,
    token_budget=2048,
    step_s=0.012,
    decode_s=0.0005,
    prefill_s=0.00008,
    source="an estimate: 255 tokens/s, measured once with a full batch of 4 on two CPU cores, are split over "
    "steps and prompts by guess; `autellix sim calibrate` measures",
)
"""The generated model of `autellix demo`."""

_ALL = (
    derive_engine("llama3.1-8b-a100", A100_80GB, LLAMA_31_8B),
    derive_engine("llama3.1-8b-h100", H100_80GB, LLAMA_31_8B, token_budget=8192),
    derive_engine("llama3.1-70b-4xa100", dataclasses.replace(A100_80GB, gpus=4), LLAMA_31_70B),
    derive_engine("falcon-180b-8xa100", dataclasses.replace(A100_80GB, gpus=8), FALCON_180B),
    derive_engine("qwen3-30b-a3b-h100", H100_80GB, QWEN3_30B_A3B, token_budget=8192),
    DEMO,
    UNIT,
)
PRESETS: dict[str, EngineModel] = {engine.name: engine for engine in _ALL}
"""Engines by name."""


def find_engine(name: str) -> EngineModel:
    """Return a preset, or the engine of a .json file.

    Raises:
        ModelError: if there is no such preset, or the file cannot be used.
    """
    if name in PRESETS:
        return PRESETS[name]
    if name.endswith(".json"):
        return read_engine(Path(name))
    raise ModelError(f"model is {name!r}; expected {', '.join(PRESETS)}, or a .json file")


def read_engine(path: Path) -> EngineModel:
    """Read an engine from a JSON object of `EngineModel`'s fields; those left out have their defaults.

    Raises:
        ModelError: if the file cannot be read, or a field is unknown or has a value it cannot have.
    """
    try:
        mapping = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not JSON: {error}") from error
    if not isinstance(mapping, dict):
        raise ModelError(f"{path} is not a JSON object; expected the fields of an engine")
    try:
        check_known(mapping, EngineModel)
        return to_record(mapping, EngineModel)
    except ValueError as error:
        raise ModelError(f"{path}: {error}") from error
