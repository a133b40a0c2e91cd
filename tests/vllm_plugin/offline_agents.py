"""Agents on engines of this process, and what the scheduler of each engine sees of their calls."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

from vllm import LLM, SamplingParams
from vllm.distributed import cleanup_dist_env_and_memory
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.v1.engine.async_llm import AsyncLLM

import autellix
from autellix._instrument.switch import missing_methods
from autellix_backend.vllm_plugin.program_scheduler import SyncProgramScheduler

SEEN = "AUTELLIX_TEST_SEEN"
"""The variable of the file that holds a line for each call that a scheduler has seen, in whatever process."""
EXAMPLE = Path(__file__).parents[2] / "examples" / "offline_agents.py"
ENGINE: dict[str, Any] = {
    "dtype": "float32",
    "enforce_eager": True,
    "max_model_len": 512,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 512,
    "num_gpu_blocks_override": 128,
    "additional_config": {"autellix": {"scheduler": {"policy": "atlas_dag"}}},
    "disable_log_stats": True,
}


class SeeingScheduler(SyncProgramScheduler):
    """Notes each call as it arrives, and the programs that the process table has then."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        assert self.plugin is not None
        machine = self.plugin.tracker.machine
        arrive = machine.arrive

        def note(arrival: Any, now: float) -> Any:
            call = arrive(arrival, now)
            seen = {
                "program": arrival.program_id,
                "class": arrival.hints.class_name,
                "call": arrival.path_id,
                "thread": arrival.thread_id,
                "parents": arrival.parents,
                "inherited_s": call.inherited_service_s,
                "programs": [program.program_id for program in machine.table.programs()],
            }
            with Path(os.environ[SEEN]).open("a") as file:
                file.write(json.dumps(seen) + "\n")
            return call

        machine.arrive = note  # type: ignore[method-assign]


def run(model: str, seen: Path, *, is_async: bool) -> dict[str, Any]:
    """Run agents in threads of an `LLM`, or in tasks of an `AsyncLLM`; return what the scheduler saw."""
    os.environ[SEEN] = str(seen)
    autellix.instrument()
    try:
        answers = asyncio.run(_tasks(model)) if is_async else _threads(model)
        missing = missing_methods()
    finally:
        autellix.uninstrument()
    calls = [json.loads(line) for line in seen.read_text().splitlines()]
    return {"answers": answers, "missing": missing, "seen": calls}


def _threads(model: str) -> list[str]:
    llm = LLM(model, scheduler_cls=SeeingScheduler, **ENGINE)
    try:
        return _ask_in_threads(llm)
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
        cleanup_dist_env_and_memory()


def _ask_in_threads(llm: LLM) -> list[str]:
    # It is for one thread at a time.
    lock = threading.Lock()
    params = SamplingParams(max_tokens=8, temperature=0.0, extra_args={"mine": 1})

    def generate(*prompts: str) -> list[str]:
        with lock:
            return [output.outputs[0].text for output in llm.generate(prompts, params, use_tqdm=False)]

    @autellix.program("agent")
    def agent(name: str) -> str:
        with lock:
            message = {"role": "user", "content": name}
            [plan] = llm.chat([message], params, use_tqdm=False)
        drafts = generate(f"{name} a", f"{name} b")
        return generate(f"{plan.outputs[0].text} {drafts}")[0]

    @autellix.program("in step")
    def in_step(name: str) -> Iterator[None]:
        for number in range(2):
            llm.enqueue([f"{name} {number}"], params, use_tqdm=False)
            yield

    with ThreadPoolExecutor() as pool:
        answers = list(pool.map(agent, ["one", "two", "three"]))
    rounds = zip(in_step("one"), in_step("two"), strict=True)
    for _ in rounds:
        llm.wait_for_completion(use_tqdm=False)
    with autellix.program("last"):
        generate("last")
    generate("outside")
    assert params.extra_args == {"mine": 1}
    return answers


async def _tasks(model: str) -> list[str]:
    example = _load(EXAMPLE)
    example.COUNT = 3  # type: ignore[attr-defined]
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model, scheduler_cls=SeeingScheduler, **ENGINE))
    try:
        answers: list[str] = await example.run(engine)
        with autellix.program("last"):
            await example.ask(engine, "last")
        await example.ask(engine, "outside")
        return answers
    finally:
        engine.shutdown()


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
