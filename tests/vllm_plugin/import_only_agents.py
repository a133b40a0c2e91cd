"""Agents of one process, of which the client knows nothing but its import; prints the programs of each."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import openai

import autellix  # noqa: F401 - the client's one line

AGENTS, TURNS, TOKENS = 10, 3, 6
TOOLS: list[Any] = [{"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}]


async def run_agent(client: openai.AsyncOpenAI, model: str, number: int) -> list[str]:
    """Make an agent's calls; return the program of each, as the server names it."""
    messages: list[Any] = [{"role": "user", "content": f"task {number}"}]
    programs = []
    for turn in range(TURNS):
        raw = await client.chat.completions.with_raw_response.create(
            model=model, messages=messages, tools=TOOLS, max_tokens=TOKENS, temperature=0
        )
        content = raw.parse().choices[0].message.content
        messages += [{"role": "assistant", "content": content}, {"role": "user", "content": f"on {turn}"}]
        programs.append(raw.headers["x-autellix-program-id"])
    return programs


async def main(url: str, model: str) -> list[list[str]]:
    """Run all agents at once."""
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        return await asyncio.gather(*(run_agent(client, model, number) for number in range(AGENTS)))


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(main(*sys.argv[1:]))))
