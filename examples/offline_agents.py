"""A batch of small agents on a vLLM engine inside this process, without a server or a gateway.

Each agent is a program: it plans, drafts twice at the same time, and chooses. The import adds the program to
each request, and the engine's scheduler orders requests by their programs.
"""

import asyncio
import os
import uuid

from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM

import autellix  # before the engine is made

# A Hugging Face id or a folder.
MODEL = os.environ.get("MODEL", "HuggingFaceTB/SmolLM2-135M-Instruct")
COUNT = int(os.environ.get("AGENTS", "20"))


async def ask(engine, text):
    """Return the model's answer."""
    params = SamplingParams(max_tokens=24, output_kind=RequestOutputKind.FINAL_ONLY)
    async for output in engine.generate(text, params, request_id=str(uuid.uuid4())):
        answer = output.outputs[0].text
    return answer


@autellix.program("writer")  # every run of the function is a program
async def write(engine, subject):
    """Return the better of two drafts."""
    plan = await ask(engine, f"Plan a note about {subject}.")
    drafts = await asyncio.gather(
        *(ask(engine, f"Follow this plan in a {tone} way: {plan}") for tone in ("dry", "warm"))
    )
    return await ask(engine, f"Copy the better one: {drafts}")


async def run(engine):
    """Let all agents write at the same time."""
    return await asyncio.gather(*(write(engine, f"item {number}") for number in range(COUNT)))


async def main():
    """Make the engine, and use it."""
    engine = AsyncLLM.from_engine_args(
        AsyncEngineArgs(
            model=MODEL,
            max_model_len=1024,
            scheduler_cls="autellix_backend.vllm_plugin.scheduler.AutellixScheduler",
            additional_config={"autellix": {"scheduler": {"policy": "boost"}}},
        )
    )
    try:
        notes = await run(engine)
    finally:
        engine.shutdown()
    print(f"{len(notes)} notes; the first: {notes[0]}")


if __name__ == "__main__":  # vLLM imports this file again in the engine's process
    asyncio.run(main())
