"""Real engines of several models behind one gateway, as in the guide; one of them comes and goes."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.drills.control import until
from tests.drills.processes import Server, Spec
from tests.ports import free_port

from autellix_backend.engines.vllm_command import (
    SCHEDULER_CLASS,
    VLLM_SERVER,
    device_arguments,
    environment_defaults,
)
from autellix_lab.demo.model import DEMO_MODEL_NAME, build_demo_model

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

AUTELLIX = (sys.executable, "-m", "autellix_backend.cli.main")
START_S = 600.0
OFFSET = 1000
SECRET = {"AUTELLIX_ENGINE_REPORT_SECRET": "the secret of these engines"}
ADAPTERS = ("adapter-a", "adapter-b")
MODELS = ("large", "large-alias", "small", *ADAPTERS)
PROGRAMS = 4
ROUNDS = 2
"""How often each program asks each model at each stage."""
RANK, WIDTH = 4, 128
SUCCESSES = "vllm:request_success_total"


@dataclass(slots=True)
class MixedLoad:
    """Programs that ask all models in turn, and what they were answered."""

    session: aiohttp.ClientSession
    url: str
    engines: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Answered calls by model and engine."""
    calls: Counter[str] = field(default_factory=Counter)
    """Answered calls by program."""
    is_over: bool = False

    async def ask(self, program: str, model: str, content: str = "Tell me.", max_tokens: int = 4) -> str:
        """Make a call, which must be answered by the model; return the answer."""
        body = {
            "model": model,
            "messages": [{"role": "user", "content": content}],
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
        }
        headers = {"X-Autellix-Program-ID": program}
        async with self.session.post(
            self.url + "/v1/chat/completions", json=body, headers=headers
        ) as response:
            told = await response.json()
            assert response.status == 200, told
            # Of several names for one model, vLLM answers the first.
            assert told["model"] == model.removesuffix("-alias")
            self.engines[model, response.headers["X-Autellix-Engine"]] += 1
        self.calls[program] += 1
        return str(told["choices"][0]["message"]["content"])

    async def run(self, program: str) -> None:
        """Work until the load is over."""
        while not self.is_over:
            for model in MODELS:
                await self.ask(program, model)

    async def more(self) -> None:
        """Return once each program has asked each model again."""
        goals = {program: self.calls[program] + ROUNDS * len(MODELS) for program in names()}

        async def is_reached() -> bool:
            return all(self.calls[program] >= goal for program, goal in goals.items())

        await until("the programs go on", is_reached, told=lambda: self.calls)

    def at(self, engine: str) -> int:
        """Return the number of calls that an engine has answered."""
        return sum(count for (_, name), count in self.engines.items() if name == engine)


def names() -> list[str]:
    return [f"mixed-{number}" for number in range(PROGRAMS)]


def write_adapter(folder: Path, seed: int) -> None:
    """Write a LoRA adapter of random weights for the generated model."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir()
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name in (f"layers.{layer}.self_attn.{part}" for layer in range(3) for part in ("q_proj", "v_proj")):
        for half, shape in (("lora_A", (RANK, WIDTH)), ("lora_B", (WIDTH, RANK))):
            weights[f"base_model.model.model.{name}.{half}.weight"] = torch.randn(*shape, generator=generator)
    save_file(weights, folder / "adapter_model.safetensors")
    targets = {"target_modules": ["q_proj", "v_proj"], "base_model_name_or_path": "large"}
    kind = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "bias": "none", "r": RANK, "lora_alpha": 4 * RANK}
    (folder / "adapter_config.json").write_text(json.dumps(kind | targets))


def engine_spec(name: str, model: Path, names: Sequence[str], *options: str) -> Spec:
    """Return an engine with our scheduler, which reports to gateways that know the secret."""
    port = free_port(OFFSET)
    section = {"scheduler": {"policy": "plas"}, "report_address": f"tcp://127.0.0.1:{port + OFFSET}"}
    command = [*VLLM_SERVER, "--model", str(model), "--served-model-name", *names, "--max-num-seqs", "4"]
    command += ["--scheduler-cls", SCHEDULER_CLASS, "--additional-config", json.dumps({"autellix": section})]
    return Spec(
        name=name,
        command=[
            *command,
            *device_arguments(str(model), options, {}, is_cpu=True),
            *("--host", "127.0.0.1", "--port", str(port)),
            *options,
        ],
        port=port,
        health_path="/health",
        log=model.parent / f"{name}.log",
        environment={**environment_defaults(str(model), is_cpu=True), **os.environ, **SECRET},
        start_s=START_S,
    )


@pytest.fixture(scope="module")
def engines(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    """Yield two engines of one model, the second with two adapters, and one of another model."""
    pytest.importorskip("vllm")
    folder = tmp_path_factory.mktemp("models")
    for seed, name in enumerate(ADAPTERS):
        write_adapter(folder / name, seed)
    large = folder / "large"
    large.symlink_to(demo_model)
    lora = ("--enable-lora", "--max-loras", "2", "--max-lora-rank", "8", "--lora-modules")
    specs = [
        engine_spec("large-0", large, ["large", "large-alias"]),
        engine_spec("large-1", large, ["large"], *lora, *(f"{name}={folder / name}" for name in ADAPTERS)),
        engine_spec("small-0", build_demo_model(folder / "small", seed=1), ["small"]),
    ]
    servers = [Server(spec) for spec in specs]
    try:
        for server in servers:
            server.launch()
        for server in servers:
            server.await_ready()
        yield servers
    finally:
        for server in servers:
            server.kill()


@pytest.fixture
def gateway(engines: list[Server], tmp_path: Path) -> Iterator[Server]:
    port = free_port()
    addresses = [word for engine in engines for word in ("--engine", engine.url)]
    server = Server(
        Spec(
            name="gateway",
            command=[*AUTELLIX, "serve", *addresses, "--port", str(port), "--policy", "plas"],
            port=port,
            health_path="/healthz",
            log=tmp_path / "gateway.log",
            environment={"AUTELLIX_CACHE_DIR": str(tmp_path), **SECRET},
            start_s=60.0,
        )
    )
    try:
        server.start()
        yield server
    finally:
        server.kill()


async def autellix(gateway: Server, *arguments: str) -> str:
    """Run a command as an operator does; return what it prints."""
    process = await asyncio.create_subprocess_exec(
        *AUTELLIX, *arguments, "--url", gateway.url, stdout=asyncio.subprocess.PIPE
    )
    printed, _ = await process.communicate()
    assert process.returncode == 0
    return printed.decode()


async def successes(session: aiohttp.ClientSession, url: str) -> int:
    """Return how many requests an engine has completed, by its own counters."""
    async with session.get(url + "/metrics") as response:
        families = text_string_to_metric_families(await response.text())
    samples = [sample for each in families for sample in each.samples if sample.name == SUCCESSES]
    return int(sum(sample.value for sample in samples))


async def get(session: aiohttp.ClientSession, url: str) -> Any:
    async with session.get(url) as response:
        return await response.json()


async def refusal(load: MixedLoad, model: str) -> str:
    """Return the words with which a model is refused that no engine serves."""
    body = {"model": model, "messages": [{"role": "user", "content": "Tell me."}]}
    async with load.session.post(load.url + "/v1/chat/completions", json=body) as response:
        assert response.status == 404
        return str((await response.json())["error"]["message"])


async def test_every_call_is_made_at_its_model_while_a_third_one_comes_and_goes(
    engines: list[Server], gateway: Server, live_engine: Any
) -> None:
    """The answers and the engines' own counters tell, and each program is one over all models."""

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)) as session:
        load, third = MixedLoad(session, gateway.url), live_engine.base_url
        urls = [*(engine.url for engine in engines), third]
        before = [await successes(session, url) for url in urls]
        # Each is another model: one prompt has an answer of each.
        told = {model: await load.ask("one", model, "What is it?", 24) for model in MODELS}
        assert told["large"] == told["large-alias"]
        assert len(set(told.values())) == len(MODELS) - 1
        tasks = [asyncio.create_task(load.run(program)) for program in names()]
        await load.more()
        known = ", ".join(repr(name) for name in sorted(MODELS))
        unknown = f"model: no engine serves {DEMO_MODEL_NAME!r}; expected one of {known}"
        assert await refusal(load, DEMO_MODEL_NAME) == unknown

        assert "remote-3" in await autellix(gateway, "engines", "add", third)
        await load.ask("mixed-0", DEMO_MODEL_NAME)
        rows = await autellix(gateway, "engines", "--wide")
        assert re.search(rf"remote-3\b.*{re.escape(DEMO_MODEL_NAME)}", rows), rows
        await load.more()
        long = [asyncio.create_task(load.ask("mixed-1", DEMO_MODEL_NAME, "Go on.", 400)) for _ in range(2)]

        async def has_them() -> bool:
            rows = (await get(session, gateway.url + "/autellix/v1/engines"))["engines"]
            return bool(rows[-1]["open_calls"] == 2)

        await until("the third engine has calls", has_them)
        await autellix(gateway, "engines", "remove", "remote-3")
        await asyncio.gather(*long)
        await load.more()
        assert await refusal(load, DEMO_MODEL_NAME) == unknown
        load.is_over = True
        await asyncio.gather(*tasks)

        async def is_counted() -> bool:
            after = [await successes(session, url) for url in urls]
            counted = [now - then for now, then in zip(after, before, strict=True)]
            return counted == [load.at(f"remote-{number}") for number in range(len(urls))]

        await until("the engines have counted the same calls", is_counted, told=lambda: load.engines)
        places = {model: {engine for name, engine in load.engines if name == model} for model in MODELS}
        assert places == {
            "large": {"remote-0", "remote-1"},
            "large-alias": {"remote-0"},
            "small": {"remote-2"},
            "adapter-a": {"remote-1"},
            "adapter-b": {"remote-1"},
        }
        programs = (await get(session, gateway.url + "/autellix/v1/programs"))["programs"]
        assert {row["program_id"]: row["finished_calls"] for row in programs} == load.calls
        assert "large, large-alias, adapter-a, adapter-b at remote-0, remote-1" in gateway.log_tail()
        assert "small at remote-2" in gateway.log_tail()
