"""Plays a job of `autellix_lab.bench.replay` as the router or scheduler of somebody else asks of its clients.

    peers_client.py NAME < JOB

ThunderAgent's clients name a program in the body of each call, and release it after the last. Those of
vLLM's router name it in `vllm_xargs`, and say at its last call that it will not return. So do AgentInfer's;
it learns a program's end from an answer that stops without a tool call, which none of a fixed length does.
So it gets the message that its own middleware would send then. LiteLLM's clients send a session's id. All
others name nothing. `peers_live.py` starts it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import socket
import sys
import urllib.request
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from openai.types.chat import ChatCompletion
from peers import AGENTINFER, AGENTINFER_OWN, lifecycle_socket

from autellix_lab.bench.client import Player, run_job
from autellix_lab.bench.endpoint import root_url
from autellix_lab.bench.results import CallResult
from autellix_lab.workload.trace import CallTrace, ProgramTrace

UNNAMED = "default"
"""ThunderAgent's name for a program without one."""
IN_XARGS = ("vllm-router", AGENTINFER, AGENTINFER_OWN)
"""Those that read vLLM's `agentic_context`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerPlayer(Player):
    """Plays programs for a peer."""

    peer: str
    program_id: str = UNNAMED
    last_call: int = -1
    is_last: bool = False
    """Whether the call to make is the program's last."""

    async def play(self, program: ProgramTrace, arrival: float) -> None:
        """Play a program, and announce its end."""
        # The probe of prompt lengths has no name.
        await end(self.peer, str(self.client.base_url), UNNAMED)
        name = f"{self.salt}:{program.program_id}"
        player = dataclasses.replace(self, program_id=name, last_call=program.calls[-1].id)
        await Player.play(player, program, arrival)
        await end(self.peer, str(self.client.base_url), name)

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
    if peer in IN_XARGS:
        context: dict[str, Any] = {"program_id": program_id}
        if is_last:
            context |= {"expected_resume": False, "kv_retention_ttl_seconds": 0}
        # As text, since vLLM takes no objects there.
        return {"vllm_xargs": {"agentic_context": json.dumps(context)}}
    if peer == "LiteLLM":
        return {"headers": {"x-litellm-session-id": program_id}}
    return {}


def no_scope(name: str) -> contextlib.nullcontext[str]:
    """Open nothing: calls name their program themselves, not a block around them."""
    return contextlib.nullcontext(name)


async def end(peer: str, url: str, program_id: str) -> None:
    """Announce that a program has ended, where a peer has a way to."""
    if peer == "ThunderAgent":
        await asyncio.to_thread(release, url, program_id)
    elif peer in (AGENTINFER, AGENTINFER_OWN):
        tell_end(url, program_id)


def release(url: str, program_id: str) -> None:
    """Release a program in ThunderAgent's router."""
    body = json.dumps({"program_id": program_id}).encode()
    request = urllib.request.Request(root_url(url) + "/programs/release", body)
    urllib.request.urlopen(request, timeout=30).close()


def tell_end(url: str, program_id: str) -> None:
    """Tell AgentInfer's engine that a program's last answer has ended it.

    As its own middleware does, which drops the message if ten wait: an engine without calls reads none.
    """
    message = json.dumps({"program_id": program_id, "lifecycle": "terminal"}).encode()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel, contextlib.suppress(BlockingIOError):
        channel.setblocking(False)
        channel.sendto(message, f"{lifecycle_socket(urlsplit(url).port or 0)}.dp0")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name")
    name = parser.parse_args().name
    asyncio.run(run_job(json.load(sys.stdin), no_scope, partial(PeerPlayer, peer=name)))
