"""Plays a job of `autellix_lab.bench.replay` as the router or gateway of somebody else asks of its clients.

    peers_client.py NAME < JOB

ThunderAgent's clients name a program in the body of each call, and release it after the last. Those of vLLM's
router name it in `vllm_xargs`, and say at its last call that it will not return. LiteLLM's send a session's
id. All others name nothing. `peers_live.py` starts it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
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
from autellix_lab.bench.results import CallResult
from autellix_lab.workload.trace import CallTrace, ProgramTrace
from autellix_lab.workload.trace_files import program_from_mapping

UNNAMED = "default"
"""ThunderAgent's name for a program without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerPlayer(Player):
    """Plays one program."""

    peer: str
    program_id: str
    last_call: int
    is_last: bool = False
    """Whether the call to make is the program's last."""

    async def call(self, program_id: str, call: CallTrace, prompt: str) -> CallResult:
        """Make one call of exactly the trace's answer length."""
        player = dataclasses.replace(self, is_last=call.id == self.last_call)
        return await Player.call(player, program_id, call, prompt)

    async def complete(self, prompt: str, output_tokens: int) -> ChatCompletion:
        """Make a call that names its program."""
        names = names_of(self.peer, self.program_id, is_last=self.is_last)
        headers = names.pop("headers", None)
        return await self.client.chat.completions.create(
            model=self.model,
            messages=[{"role": "user", "content": prompt}],
            max_tokens=output_tokens,
            temperature=0.0,
            extra_body={"min_tokens": output_tokens, "ignore_eos": True, **names},
            extra_headers=headers,
        )


def names_of(peer: str, program_id: str, *, is_last: bool) -> dict[str, Any]:
    """Return the fields of a body that name a call's program, and under `headers` the headers."""
    if peer == "ThunderAgent":
        return {"program_id": program_id}
    if peer == "vllm-router":
        context: dict[str, Any] = {"program_id": program_id}
        if is_last:
            context |= {"expected_resume": False, "kv_retention_ttl_seconds": 0}
        # As text, since vLLM takes no objects there.
        return {"vllm_xargs": {"agentic_context": json.dumps(context)}}
    if peer == "LiteLLM":
        return {"headers": {"x-litellm-session-id": program_id}}
    return {}


async def run_job(job: dict[str, Any], peer: str) -> None:
    """Play every program of the job at its arrival time, and return when all have ended."""
    url, model, salt = job["base_url"], job["model"], job["salt"]
    async with AsyncOpenAI(base_url=url, api_key="none", timeout=job["call_timeout_s"]) as client:
        length = await probe_length(client, model, is_exact=True)
        await end(peer, url, UNNAMED)
        started_s = time.monotonic()

        async def play(program: ProgramTrace, arrival_s: float) -> None:
            name = f"{salt}:{program.program_id}"
            player = PeerPlayer(
                client,
                model,
                no_scope,
                length,
                started_s,
                salt,
                peer=peer,
                program_id=name,
                last_call=program.calls[-1].id,
            )
            await player.play(program, arrival_s)
            await end(peer, url, name)

        async with asyncio.TaskGroup() as group:
            for program, arrival_s in zip(job["programs"], job["arrivals_s"], strict=True):
                group.create_task(play(program_from_mapping(program), arrival_s))


def no_scope(name: str) -> contextlib.nullcontext[str]:
    """Open nothing: calls name their program themselves, not a block around them."""
    return contextlib.nullcontext(name)


async def end(peer: str, url: str, program_id: str) -> None:
    """Announce that a program has ended, where a peer has a way to."""
    if peer == "ThunderAgent":
        await asyncio.to_thread(release, url, program_id)


def release(url: str, program_id: str) -> None:
    """Release a program in ThunderAgent's router."""
    body = json.dumps({"program_id": program_id}).encode()
    request = urllib.request.Request(root_url(url) + "/programs/release", body)
    urllib.request.urlopen(request, timeout=30).close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name")
    name = parser.parse_args().name
    asyncio.run(run_job(json.load(sys.stdin), name))
