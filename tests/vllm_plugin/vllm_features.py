"""vLLM's features under forced preemption: each must answer as it does under vLLM's own scheduler.

A case is a small engine with a feature turned on, and calls of a few programs that are more than its slots
and KV blocks hold. It is played twice, under vLLM's own order and under a policy that preempts as often as it
can: tokens, texts and finish reasons must be equal, log-probabilities close, and nothing may be left behind.

As a program it prints a table (`scripts/vllm-features`); a worker process plays the cases, so that one that
takes the process with it is only one row:

    scripts/vllm-features [--json FILE] [CASE ...]
"""

from __future__ import annotations

import argparse
import gc
import importlib
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

__all__ = ["CASES", "Case", "Verdict", "difference", "play"]

ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "TORCH_COMPILE_DISABLE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
SCHEDULER = {
    "policy": "atlas",
    # A look at the clock is a millisecond: a step costs a few of them.
    "bounds": [0.004, 0.008, 0.016, 0.03, 0.06, 0.12, 0.25],
    "beta": 1.0,
    "preemption": "always",
}
CALLS = 40
MIN_PREEMPTIONS = 20
MAX_STEPS = 20_000
LOGPROB_TOLERANCE = 2e-3
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "size": {"enum": [1, 2, 3]}},
    "required": ["name", "size"],
    "additionalProperties": False,
}
CHOICES = ["red, and then green, and then blue", "one that is not red, nor green", "neither of them, or both"]
IMAGE_PIXELS = 28
GRAMMAR = 'root ::= item ("," item){2,5}\nitem ::= [a-f] [0-9]'

Params = Callable[[int], Mapping[str, Any]]


def _plain(number: int) -> Mapping[str, Any]:
    return {}


def _structured(**constraint: Any) -> Params:
    return lambda _: {"structured_outputs": constraint, "ignore_eos": False}


@dataclass(frozen=True, slots=True)
class Case:
    """A feature: what it changes in a small engine with a small Llama and greedy calls of 4 to 40 tokens."""

    name: str
    engine: Mapping[str, Any] = field(default_factory=dict)
    params: Params = _plain
    scheduler: Mapping[str, Any] = field(default_factory=dict)
    model: str = "llama"
    kind: str = "generate"
    """`generate`, `embed`, `embeds`, `images`, `lora`, `some lora` or `beam`: how calls are made."""
    aborts: int = 0
    reset_steps: Sequence[int] = ()
    """The steps before which the prefix cache is reset, running requests included."""
    sleep_steps: Sequence[int] = ()
    """The steps before which the engine sleeps, and keeps its requests; a CPU's memory stays as it is."""
    min_preemptions: int = MIN_PREEMPTIONS
    is_core: bool = False
    """Whether it is among the tests."""
    control: Mapping[str, Any] | None = None
    """Where vLLM's answers are known to depend on the batch or on preemptions: changes to the engine under
    which vLLM's own scheduler is to show it too."""
    is_alone: bool = False
    """Whether each engine needs a process of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What came out of a case."""

    case: str
    vllm: str
    verdict: str
    """`equal`, `differs` or `fails`; `as vLLM` where vLLM alone does so too under the control; `not here`
    where vLLM fails on the very case."""
    preemptions: int = 0
    """Preemptions forced by our order, and vLLM's own."""
    stock_preemptions: int = 0
    seconds: float = 0.0
    note: str = ""


OFFLOAD_BYTES = 64 << 20
LORA = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 8}
CASES = (
    Case("plain"),
    Case("async scheduling", {"async_scheduling": True}),
    Case("prefix caching off", {"enable_prefix_caching": False}),
    Case("chunked prefill, 64 tokens", {"max_num_batched_tokens": 64}),
    Case("chunked prefill off", {"enable_chunked_prefill": False, "max_num_batched_tokens": 512}),
    Case("KV memory exhausted", {"num_gpu_blocks_override": 12}),
    Case("decisions every 8 steps", scheduler={"period_steps": 8}, min_preemptions=5),
    Case("policy plas", scheduler={"policy": "plas"}),
    Case(
        "policy boost, admission",
        scheduler={"policy": "boost", "admission": "working_set"},
        min_preemptions=0,
    ),
    Case("log-probabilities", params=lambda _: {"logprobs": 3}, is_core=True),
    Case("log-probabilities of prompts", params=lambda _: {"prompt_logprobs": 2}),
    Case("n = 3, seeded", params=lambda i: {"n": 3, "temperature": 0.8, "seed": i}, is_core=True),
    Case("sampling, seeded", params=lambda i: {"temperature": 0.9, "top_p": 0.9, "top_k": 40, "seed": i}),
    Case(
        "penalties",
        params=lambda _: {"presence_penalty": 0.7, "frequency_penalty": 0.4, "repetition_penalty": 1.3},
    ),
    Case(
        "stop words, minimum of tokens",
        params=lambda i: {"stop": ["e", "a"], "min_tokens": i % 4},
        # Few calls are long enough to lose a slot.
        min_preemptions=5,
    ),
    Case("biased and banned tokens", params=lambda i: {"logit_bias": {20 + i: 4.0}, "bad_words": ["the"]}),
    Case("structured output: JSON schema", params=_structured(json=SCHEMA), is_core=True),
    Case("structured output: regular expression", params=_structured(regex="[a-f]{4,12}-[0-9]{3}")),
    Case("structured output: choice", params=_structured(choice=CHOICES)),
    Case("structured output: grammar", params=_structured(grammar=GRAMMAR)),
    Case("structured output, async scheduling", {"async_scheduling": True}, _structured(json=SCHEMA)),
    Case("LoRA adapters", LORA, kind="lora"),
    # In a mixed batch vLLM's CPU kernels give the calls without an adapter other logits.
    Case("LoRA adapters beside the bare model", LORA, kind="some lora", control={"max_num_seqs": 2}),
    Case("images", model="blip2", kind="images"),
    Case("prompt embeddings", {"enable_prompt_embeds": True}, kind="embeds"),
    Case("embeddings", {"runner": "pooling", "convert": "embed"}, kind="embed", min_preemptions=0),
    # vLLM makes a call of one token for each beam and token: none runs long enough to be preempted.
    Case("beam search", kind="beam", min_preemptions=0),
    Case("sliding window", model="mistral"),
    Case("hybrid of layers (Gemma 3)", model="gemma3"),
    Case("state space (Mamba 2)", {"enable_prefix_caching": False, "block_size": None}, model="mamba2"),
    Case("KV offload (ours)", {"kv_transfer_config": "ours", "enable_prefix_caching": False}),
    Case("KV offload (ours), async scheduling", {"kv_transfer_config": "ours", "async_scheduling": True}),
    Case(
        "KV offload (ours) behind a MultiConnector",
        {"kv_transfer_config": "multi", "enable_prefix_caching": False},
    ),
    # It stores prompts alone, and looks for a resumed call's answer as well.
    Case(
        "KV connector (vLLM's example)",
        {"kv_transfer_config": "example"},
        control={"num_gpu_blocks_override": 10},
    ),
    Case("tensor parallel 2", {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}),
    Case("aborts", aborts=16),
    Case("aborts, async scheduling", {"async_scheduling": True}, aborts=16),
    Case("prefix cache reset, running calls included", reset_steps=(30, 60, 61, 120)),
    Case("sleep and wake", sleep_steps=(30, 60, 61, 120)),
    Case("vLLM's priority policy", {"scheduling_policy": "priority"}),
    Case(
        "speculation: n-grams",
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}},
        # After it vLLM makes no further engine in the same process on a CPU.
        is_alone=True,
    ),
)


# The worker: plays cases, one after another.


class _Player:
    """Plays cases in this process."""

    def __init__(self, folder: Path) -> None:
        import torch

        from autellix_lab.demo.model import build_demo_model

        self._torch = torch
        self._folder = folder
        self._tokenizer = build_demo_model(folder / "tokenizer")
        self._models: dict[str, Path] = {}
        self._generator = random.Random(5)
        self._words = ["river", "stone", "lamp", "garden", "quiet", "seven", "paper", "winter", "bread"]
        shared = " ".join(self._words)
        self._prompts = [
            (shared + " " if number % 3 == 0 else "")
            + " ".join(
                self._generator.choice(self._words) for _ in range(self._generator.choice([4, 12, 30]))
            )
            for number in range(CALLS)
        ]
        self._steps = sorted(self._generator.randrange(0, 110) for _ in range(CALLS))
        self._max_tokens = [self._generator.choice([4, 12, 24, 40]) for _ in range(CALLS)]
        self._programs = [self._generator.randrange(8) for _ in range(CALLS)]

    def judge(self, case: Case) -> Verdict:
        """Play a case under both schedulers, and compare."""
        import vllm

        began_s = time.monotonic()
        verdict: dict[str, Any] = {"case": case.name, "vllm": vllm.__version__}
        play = _play_apart if case.is_alone else self.play
        try:
            expected = play(case, is_ours=False)
        except Exception:  # noqa: BLE001 -- the note has it
            return Verdict(
                **verdict, verdict="not here", note=_last_line(), seconds=time.monotonic() - began_s
            )
        try:
            actual = play(case, is_ours=True)
            note = difference(expected, actual, case)
            verdict |= {"preemptions": actual["preemptions"], "stock_preemptions": expected["preemptions"]}
            verdict["verdict"] = "differs" if note else "equal"
        except Exception:  # noqa: BLE001 -- the note has it
            verdict["verdict"], note = "fails", _last_line()
        if note and case.control is not None and (shown := self._control(case, expected)):
            verdict["verdict"], note = "as vLLM", f"{note}; vLLM alone with {dict(case.control)}: {shown}"
        return Verdict(**verdict, note=note, seconds=time.monotonic() - began_s)

    def _control(self, case: Case, expected: Mapping[str, Any]) -> str:
        """Return what goes wrong under vLLM's own scheduler with another batch or less memory."""
        control = replace(case, engine={**case.engine, **(case.control or {})}, min_preemptions=0)
        try:
            return difference(expected, self.play(control, is_ours=False), control)
        except Exception:  # noqa: BLE001 -- the note has it
            return _last_line()

    def play(self, case: Case, *, is_ours: bool) -> dict[str, Any]:
        """Play a case on one engine; return its answers and what went wrong."""
        from vllm.distributed import cleanup_dist_env_and_memory

        llm = self._make(case, is_ours=is_ours)
        engine = llm.llm_engine
        try:
            scheduler = engine.engine_core.engine_core.scheduler
            pool = scheduler.kv_cache_manager.block_pool
            free_before = pool.get_num_free_blocks()
            preempted = _count_preemptions(scheduler)
            ticks = itertools.count()
            scheduler.clock = lambda: next(ticks) * 0.001
            outputs = self._beams(llm) if case.kind == "beam" else self._run(engine, scheduler, case)
            for _ in range(4):  # let pipelined steps drain
                engine.step()
            result: dict[str, Any] = {"outputs": outputs, "preemptions": len(preempted), "faults": []}
            if free_before != pool.get_num_free_blocks():
                result["faults"].append(f"{free_before - pool.get_num_free_blocks()} KV blocks left")
            if scheduler.requests or scheduler.running:
                result["faults"].append("requests left")
            if is_ours:
                if len(scheduler.plugin.tracker):
                    result["faults"].append("calls left in the tracker")
                if scheduler.is_degraded:
                    result["faults"].append("our scheduler has failed")
                scheduler.plugin.tracker.machine.check()
            return result
        finally:
            engine.engine_core.shutdown()
            del engine, llm
            cleanup_dist_env_and_memory()
            gc.collect()

    def _make(self, case: Case, *, is_ours: bool) -> Any:
        from vllm import LLM
        from vllm.v1.engine import llm_engine

        options: dict[str, Any] = {
            "model": str(self._model(case.model)),
            "tokenizer": str(self._model(case.model) if case.kind == "images" else self._tokenizer),
            "dtype": "float32",
            "enforce_eager": True,
            "max_model_len": 256,
            "block_size": 32,
            "max_num_seqs": 4,
            "max_num_batched_tokens": 512,
            "num_gpu_blocks_override": 24,
            "async_scheduling": False,
            "disable_log_stats": True,
            "enable_prefix_caching": True,
            **case.engine,
        }
        options["kv_transfer_config"] = self._connector(options.get("kv_transfer_config"))
        if options["block_size"] is None:
            del options["block_size"]
        if is_ours:
            options["scheduler_cls"] = "autellix_backend.vllm_plugin.scheduler.AutellixScheduler"
            options["additional_config"] = {"autellix": {"scheduler": {**SCHEDULER, **case.scheduler}}}
        is_async = options["async_scheduling"]
        make = llm_engine.EngineArgs.create_engine_config if hasattr(llm_engine, "EngineArgs") else None
        assert make is not None

        def configured(*args: Any, **kwargs: Any) -> Any:
            config = make(*args, **kwargs)
            # The CPU platform turns async scheduling off; the pipeline works there all the same.
            config.scheduler_config.async_scheduling = is_async
            return config

        llm_engine.EngineArgs.create_engine_config = configured
        try:
            return LLM(**options)
        finally:
            llm_engine.EngineArgs.create_engine_config = make

    def _connector(self, kind: Any) -> Any:
        from vllm.config import KVTransferConfig

        from autellix_backend.engines.vllm_command import kv_transfer_config

        if kind == "ours":
            return KVTransferConfig(**kv_transfer_config(OFFLOAD_BYTES))
        if kind == "multi":
            connectors = {"connectors": [kv_transfer_config(OFFLOAD_BYTES)]}
            return KVTransferConfig(
                kv_connector="MultiConnector", kv_role="kv_both", kv_connector_extra_config=connectors
            )
        if kind == "example":
            path = tempfile.mkdtemp(dir=self._folder)
            extra = {"shared_storage_path": path}
            return KVTransferConfig(
                kv_connector="ExampleConnector", kv_role="kv_both", kv_connector_extra_config=extra
            )
        return None

    def _run(self, engine: Any, scheduler: Any, case: Case) -> dict[str, Any]:
        pending = list(range(CALLS))
        victims = random.Random(3).sample(pending, case.aborts)
        aborts = {self._steps[number] + 9: f"call-{number}" for number in victims}
        outputs: dict[str, Any] = {}
        for step in itertools.count():
            while pending and self._steps[pending[0]] <= step:
                self._add(engine, pending.pop(0), case)
            if step in aborts:
                engine.abort_request([aborts[step]])
            if step in case.reset_steps:
                scheduler.reset_prefix_cache(reset_running_requests=True)
            if step in case.sleep_steps:
                engine.sleep(1, "keep")
                engine.step()
                engine.wake_up()
            for output in engine.step():
                if output.finished:
                    outputs[output.request_id] = _facts(output)
            if not pending and not engine.has_unfinished_requests():
                return outputs
            if step > MAX_STEPS:
                raise RuntimeError(f"no end after {step} steps")
        raise AssertionError

    def _add(self, engine: Any, number: int, case: Case) -> None:
        from vllm import PoolingParams, SamplingParams
        from vllm.lora.request import LoRARequest
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

        name, prompt = f"call-{number}", self._prompts[number]
        identity = {"autellix_program": f"program-{self._programs[number]}", "autellix_call": name}
        if case.kind == "embed":
            engine.add_request(name, prompt, PoolingParams(extra_kwargs=None))
            return
        fields = {
            "temperature": 0.0,
            "max_tokens": self._max_tokens[number],
            "ignore_eos": True,
            "extra_args": identity,
            # With n answers the last output would else hold the one alone that finished last.
            "output_kind": RequestOutputKind.FINAL_ONLY,
            **case.params(number),
        }
        if constraint := fields.get("structured_outputs"):
            fields["structured_outputs"] = StructuredOutputsParams(**constraint)
        given: Any = prompt
        options: dict[str, Any] = {}
        if case.kind == "embeds":
            generator = self._torch.Generator().manual_seed(number)
            given = {"prompt_embeds": self._torch.randn(20 + number, 128, generator=generator)}
        if case.kind == "images":
            # Some calls show the same image, which vLLM encodes once.
            given = {"prompt": prompt, "multi_modal_data": {"image": _image(number % 6)}}
        adapter = {"lora": number % 2 + 1, "some lora": number % 3}.get(case.kind, 0)
        if adapter:
            options["lora_request"] = LoRARequest(f"adapter-{adapter}", adapter, str(self._adapter(adapter)))
        if case.engine.get("scheduling_policy") == "priority":
            options["priority"] = number % 3
        engine.add_request(name, given, SamplingParams(**fields), **options)

    def _beams(self, llm: Any) -> dict[str, Any]:
        from vllm.sampling_params import BeamSearchParams

        prompts = [{"prompt": prompt} for prompt in self._prompts[:8]]
        results = llm.beam_search(prompts, BeamSearchParams(beam_width=3, max_tokens=8), use_tqdm=False)
        return {
            f"call-{number}": [[list(beam.tokens), round(beam.cum_logprob, 2)] for beam in result.sequences]
            for number, result in enumerate(results)
        }

    # Models.

    def _model(self, kind: str) -> Path:
        if kind not in self._models:
            self._models[kind] = self._build(kind, self._folder / kind)
        return self._models[kind]

    def _build(self, kind: str, folder: Path) -> Path:
        import transformers

        self._torch.manual_seed(0)
        shared: dict[str, Any] = {
            "vocab_size": 2048,
            "hidden_size": 128,
            "num_hidden_layers": 2,
            # Wide weights: each token then depends visibly on all before it.
            "initializer_range": 0.2,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 1,
        }
        attention: dict[str, Any] = {
            "intermediate_size": 256,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 512,
            "head_dim": 32,
        }
        config: Any
        if kind == "llama":
            config = transformers.LlamaConfig(**shared, **attention)
            model: Any = transformers.LlamaForCausalLM(config)
        elif kind == "mistral":
            config = transformers.MistralConfig(**shared, **attention, sliding_window=32)
            model = transformers.MistralForCausalLM(config)
        elif kind == "gemma3":
            layers = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 32}
            config = transformers.Gemma3TextConfig(**shared, **attention, **layers)
            model = transformers.Gemma3ForCausalLM(config)
        elif kind == "blip2":
            model = self._build_blip2(folder, shared)
        else:
            config = transformers.Mamba2Config(
                **shared, num_heads=8, head_dim=32, state_size=16, expand=2, n_groups=1, chunk_size=32
            )
            model = transformers.Mamba2ForCausalLM(config)
        model.save_pretrained(folder)
        return folder

    def _build_blip2(self, folder: Path, shared: dict[str, Any]) -> Any:
        """Build a language model that is shown images of eight tokens, with the processor for that."""
        import transformers

        tokenizer = transformers.AutoTokenizer.from_pretrained(self._tokenizer)
        size = {"height": IMAGE_PIXELS, "width": IMAGE_PIXELS}
        transformers.Blip2Processor(
            transformers.BlipImageProcessorPil(size=size), tokenizer, num_query_tokens=8
        ).save_pretrained(folder)
        encoder: dict[str, Any] = {
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "initializer_range": 0.2,
        }
        vision = {"image_size": IMAGE_PIXELS, "patch_size": IMAGE_PIXELS // 4}
        decoder = {"vocab_size": 2112, "ffn_dim": 256, "num_attention_heads": 4, "word_embed_proj_dim": 128}
        config = transformers.Blip2Config(
            vision_config=transformers.Blip2VisionConfig(**encoder, **vision),
            qformer_config=transformers.Blip2QFormerConfig(**encoder, encoder_hidden_size=64),
            text_config=transformers.OPTConfig(**shared | decoder, max_position_embeddings=512, init_std=0.2),
            num_query_tokens=8,
            image_token_index=len(tokenizer) - 1,
        )
        return transformers.Blip2ForConditionalGeneration(config)

    def _adapter(self, number: int) -> Path:
        from safetensors.torch import save_file

        folder = self._folder / f"adapter-{number}"
        if folder.exists():
            return folder
        folder.mkdir()
        generator = self._torch.Generator().manual_seed(number)
        weights = {}
        for layer in range(2):
            for part, rows in (("q_proj", 128), ("v_proj", 64)):
                name = f"base_model.model.model.layers.{layer}.self_attn.{part}"
                weights[f"{name}.lora_A.weight"] = self._torch.randn(8, 128, generator=generator)
                weights[f"{name}.lora_B.weight"] = self._torch.randn(rows, 8, generator=generator)
        save_file(weights, folder / "adapter_model.safetensors")
        config = {
            "peft_type": "LORA",
            "r": 8,
            "lora_alpha": 8,
            "target_modules": ["q_proj", "v_proj"],
            "base_model_name_or_path": "llama",
            "bias": "none",
            "task_type": "CAUSAL_LM",
        }
        (folder / "adapter_config.json").write_text(json.dumps(config))
        return folder


def _image(number: int) -> Any:
    """Make up an image."""
    from PIL import Image

    pixels = random.Random(number).randbytes(IMAGE_PIXELS * IMAGE_PIXELS * 3)
    return Image.frombytes("RGB", (IMAGE_PIXELS, IMAGE_PIXELS), pixels)


def _count_preemptions(scheduler: Any) -> list[str]:
    preempted: list[str] = []
    preempt = scheduler._preempt_request

    def count(request: Any, *args: Any, **kwargs: Any) -> None:
        preempted.append(request.request_id)
        preempt(request, *args, **kwargs)

    scheduler._preempt_request = count
    return preempted


def _facts(output: Any) -> Any:
    """Return an answer in plain values."""
    if not hasattr(output.outputs, "__iter__"):
        return [round(float(value), 3) for value in output.outputs.data.flatten()[:16]]
    answers = []
    for answer in sorted(output.outputs, key=lambda each: each.index):
        logprobs = [_logprobs(position) for position in answer.logprobs or ()]
        answers.append([list(answer.token_ids), answer.text, str(answer.finish_reason), logprobs])
    prompt = [_logprobs(position) for position in output.prompt_logprobs or () if position]
    return [*answers, prompt]


def _logprobs(position: Mapping[int, Any]) -> dict[str, float]:
    return {str(token): float(entry.logprob) for token, entry in position.items()}


def difference(expected: Mapping[str, Any], actual: Mapping[str, Any], case: Case) -> str:
    """Return what differs, empty if nothing does."""
    notes = list(actual["faults"])
    known, found = expected["outputs"], actual["outputs"]
    # An abort takes a call at another point of its way.
    names = known.keys() & found.keys() if case.aborts else known.keys() | found.keys()
    differing = [name for name in sorted(names) if not _is_close(known.get(name), found.get(name))]
    if differing:
        notes.append(f"{len(differing)} of {len(names)} answers differ, {differing[0]} first")
    if not names:
        notes.append("no answers")
    if actual["preemptions"] < case.min_preemptions:
        notes.append(f"only {actual['preemptions']} preemptions")
    return "; ".join(notes)


def _is_close(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) <= LOGPROB_TOLERANCE * max(1.0, abs(one)) or one == other
    if isinstance(one, dict) and isinstance(other, dict):
        # Of equally likely tokens either may be listed last.
        return all(_is_close(one[key], other[key]) for key in one.keys() & other.keys())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_is_close, one, other))
    return bool(one == other)


def _last_line() -> str:
    kind, error, _ = sys.exc_info()
    traceback.print_exc()
    return f"{kind.__name__ if kind else ''}: {str(error).strip().splitlines()[-1] if str(error) else ''}"[
        :200
    ]


def _work(names: Sequence[str], reply: int) -> None:
    """Play cases by name, one JSON line for each."""
    os.environ.update(ENVIRONMENT)
    with tempfile.TemporaryDirectory(prefix="autellix-features-") as folder, os.fdopen(reply, "w") as replies:
        player = _Player(Path(folder))
        _collect_quickly()
        for name in names:
            case = next(case for case in CASES if case.name == name)
            verdict = player.judge(case)
            print(json.dumps(asdict(verdict)), file=replies, flush=True)


def _collect_quickly() -> None:
    """Keep what the imports made out of garbage collection: it is most of the time of an engine's end.

    vLLM freezes and collects a few times for every engine, and thaws everything when the engine ends.
    """
    importlib.import_module("vllm.entrypoints.llm")
    vars(gc)["unfreeze"] = lambda: None
    gc.collect()
    gc.freeze()


def _play_apart(case: Case, *, is_ours: bool) -> dict[str, Any]:
    """Play a case on one engine in a process of its own."""
    read_end, write_end = os.pipe()
    side = "ours" if is_ours else "stock"
    command = [sys.executable, str(Path(__file__)), "--worker", str(write_end), "--side", side, case.name]
    process = subprocess.Popen(command, pass_fds=(write_end,))
    os.close(write_end)
    with os.fdopen(read_end) as replies:
        reply = replies.read()
    if process.wait():
        raise RuntimeError(f"the process ended: {process.returncode}")
    result: dict[str, Any] = json.loads(reply)
    return result


def _work_side(name: str, side: str, reply: int) -> None:
    """Play a case on one engine, and answer with what came out."""
    os.environ.update(ENVIRONMENT)
    with tempfile.TemporaryDirectory(prefix="autellix-features-") as folder, os.fdopen(reply, "w") as replies:
        case = next(case for case in CASES if case.name == name)
        json.dump(_Player(Path(folder)).play(case, is_ours=side == "ours"), replies)


# The program.


def play(names: Sequence[str], log: Path | None = None) -> Iterator[Verdict]:
    """Play cases in a worker process; where it dies, the case failed and another worker goes on."""
    left = list(names)
    while left:
        read_end, write_end = os.pipe()
        command = [sys.executable, str(Path(__file__)), "--worker", str(write_end), *left]
        with (log or Path(os.devnull)).open("ab") as errors:
            worker = subprocess.Popen(command, pass_fds=(write_end,), stdout=errors, stderr=errors)
        os.close(write_end)
        with os.fdopen(read_end) as replies:
            for line in replies:
                verdict = Verdict(**json.loads(line))
                left.remove(verdict.case)
                yield verdict
        if worker.wait() and left:
            yield Verdict(
                case=left.pop(0), vllm="?", verdict="fails", note=f"the process ended: {worker.returncode}"
            )
        elif left:
            raise RuntimeError(f"the worker left out {left}")


def main() -> int:
    """Print a table of all cases, or of those that are named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="also write the verdicts here")
    parser.add_argument("--log", type=Path, help="what the engines write")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--side", choices=("ours", "stock"), help=argparse.SUPPRESS)
    parser.add_argument("cases", nargs="*", help="names; all if none")
    options = parser.parse_args()
    if options.side is not None:
        _work_side(options.cases[0], options.side, options.worker)
        return 0
    if options.worker is not None:
        _work(options.cases, options.worker)
        return 0
    names = options.cases or [case.name for case in CASES]
    if unknown := set(names) - {case.name for case in CASES}:
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    verdicts = []
    sys.stdout.write("| feature | vLLM | verdict | preemptions | by vLLM alone | note |\n")
    sys.stdout.write("|---|---|---|---|---|---|\n")
    for verdict in play(names, options.log):
        verdicts.append(verdict)
        counts = (str(verdict.preemptions), str(verdict.stock_preemptions))
        row = (verdict.case, verdict.vllm, verdict.verdict, *counts, verdict.note)
        sys.stdout.write("| " + " | ".join(row) + " |\n")
        sys.stdout.flush()
        if options.json:
            options.json.write_text(json.dumps([asdict(each) for each in verdicts], indent=1) + "\n")
    return int(any(verdict.verdict in ("differs", "fails") for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main())
