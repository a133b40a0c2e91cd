"""A process that plays a small hybrid model, with attention and states, under vLLM's scheduler and ours.

Prints one JSON object: for each, the most calls that ran together, the largest share of blocks in use, and
the steps and preemptions that the calls took.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.vllm_plugin.vllm_features import ENVIRONMENT

os.environ.update(ENVIRONMENT)

from transformers import Lfm2Config
from vllm import SamplingParams
from vllm.distributed import cleanup_dist_env_and_memory
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.engine.llm_engine import LLMEngine

CALLS = 16
BLOCKS = 200
SIDES: dict[str, dict[str, Any] | None] = {
    "stock": None,
    "ours": {"policy": "boost", "admission": "working_set"},
    "ours, all of the memory": {"policy": "boost", "admission": "working_set", "kv_share": 1.0},
}


def write_model(folder: Path) -> None:
    """Write the configuration of a model with a layer of attention and three of short convolutions."""
    config = Lfm2Config(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=1,
        layer_types=["conv", "full_attention", "conv", "conv"],
        max_position_embeddings=4096,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=1,
        block_multiple_of=32,
        block_dim=64,
        conv_dim=64,
    )
    config.architectures = ["Lfm2ForCausalLM"]
    config.save_pretrained(folder)


def play(model: Path, settings: dict[str, Any] | None, prompt_tokens: int) -> dict[str, Any]:
    """Play calls of as many programs, all there from the beginning."""
    ours: dict[str, Any] = (
        {} if settings is None else {"additional_config": {"autellix": {"scheduler": settings}}}
    )
    if settings is not None:
        ours["scheduler_cls"] = "autellix_backend.vllm_plugin.scheduler.AutellixScheduler"
    arguments = EngineArgs(
        model=str(model),
        skip_tokenizer_init=True,
        load_format="dummy",
        dtype="float32",
        enforce_eager=True,
        max_model_len=2048,
        max_num_seqs=CALLS,
        max_num_batched_tokens=8192,
        num_gpu_blocks_override=BLOCKS,
        enable_prefix_caching=True,
        disable_log_stats=True,
        **ours,
    )
    engine = LLMEngine.from_engine_args(arguments)
    scheduler: Any = engine.engine_core.engine_core.scheduler
    generator = random.Random(1)
    for number in range(CALLS):
        parameters = SamplingParams(
            temperature=0.0,
            max_tokens=20,
            ignore_eos=True,
            detokenize=False,
            extra_args={"autellix_program": f"program-{number}", "autellix_last": 1},
        )
        prompt = [generator.randrange(2, 512) for _ in range(prompt_tokens)]
        engine.add_request(f"call-{number}", {"prompt_token_ids": prompt}, parameters)
    found: dict[str, Any] = {"running": 0, "usage": 0.0, "steps": 0, "preemptions": 0}
    while engine.has_unfinished_requests():
        engine.step()
        running = scheduler.running
        found["running"] = max(found["running"], len(running))
        found["usage"] = max(found["usage"], scheduler.kv_cache_manager.usage)
        found["steps"] += 1
        found["preemptions"] = max([found["preemptions"], *(r.num_preemptions for r in running)])
    if settings is not None:
        found["is_degraded"] = scheduler.is_degraded
        found["kv_tokens"] = scheduler.plugin.facts.kv_tokens
    engine.engine_core.shutdown()
    cleanup_dist_env_and_memory()
    return found


def main() -> None:
    """Print what was found, by the tokens of a prompt."""
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder))
        report = {
            prompt: {side: play(Path(folder), settings, prompt) for side, settings in SIDES.items()}
            for prompt in (600, 1900)
        }
    with os.fdopen(int(sys.argv[1]), "w") as reply:
        json.dump(report, reply)


if __name__ == "__main__":
    main()
