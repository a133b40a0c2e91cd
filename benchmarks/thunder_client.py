"""Plays a job of `autellix_lab.bench.replay` as ThunderAgent's router asks of its clients.

Each call names its program in its body, and a program is released once its last call has been answered.
`thunder_live.py` starts it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import time
import urllib.request
from dataclasses import dataclass
from typing import Any

from openai import AsyncOpenAI
from openai.types.chat import ChatCompletion

from autellix_lab.bench.client import Player, probe_length
from autellix_lab.bench.endpoint import root_url
from autellix_lab.workload.trace import ProgramTrace
from autellix_lab.workload.trace_files import program_from_mapping

UNNAMED = "default"
"""The router's name for a program without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThunderPlayer(Player):
    """Plays one program."""

    program_id: str

    async def complete(self, prompt: str, output_tokens: int) -> ChatCompletion:
        """Make a call with the program's name in its body."""
        fields = {"min_tokens": output_tokens, "ignore_eos": True, "program_id": self.program_id}
        return await self.client.chat.completions.create(
            model=self.model,
            messages=[{"role": "user", "content": prompt}],
            max_tokens=output_tokens,
            temperature=0.0,
            extra_body=fields,
        )


async def run_job(job: dict[str, Any]) -> None:
    """Play every program of the job at its arrival time, and return when all have ended."""
    url, model, salt = job["base_url"], job["model"], job["salt"]
    async with AsyncOpenAI(base_url=url, api_key="none", timeout=job["call_timeout_s"]) as client:
        length = await probe_length(client, model, is_exact=True)
        await asyncio.to_thread(release, url, UNNAMED)
        started_s = time.monotonic()

        async def play(program: ProgramTrace, arrival_s: float) -> None:
            name = f"{salt}:{program.program_id}"
            player = ThunderPlayer(client, model, no_scope, length, started_s, salt, program_id=name)
            await player.play(program, arrival_s)
            await asyncio.to_thread(release, url, name)

        async with asyncio.TaskGroup() as group:
            for program, arrival_s in zip(job["programs"], job["arrivals_s"], strict=True):
                group.create_task(play(program_from_mapping(program), arrival_s))


def no_scope(name: str) -> contextlib.nullcontext[str]:
    """Open nothing: calls name their program themselves, not a block around them."""
    return contextlib.nullcontext(name)


def release(url: str, program_id: str) -> None:
    """Tell the router that a program has ended."""
    body = json.dumps({"program_id": program_id}).encode()
    request = urllib.request.Request(root_url(url) + "/programs/release", body)
    urllib.request.urlopen(request, timeout=30).close()


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    asyncio.run(run_job(json.load(sys.stdin)))
