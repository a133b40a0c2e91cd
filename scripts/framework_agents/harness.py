"""Runs one agent many times at once; `scripts/frameworks` starts it in an environment of its own.

    python harness.py AGENT URL MODE COUNT

AGENT is a module of this folder with a function for each MODE that its framework has, which takes the
server's address and a task. Each run has a first call, two branches, and a last call.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

if os.environ.get("WITH_CLIENT"):
    import autellix  # noqa: F401 - the only line to add
    from autellix._instrument.switch import missing_methods

MISSING = 3
"""The exit status for a mode that a framework does not have."""


def ask(client: Any, prompt: str) -> str:
    """Make one call with an OpenAI client."""
    answer = client.chat.completions.create(model="m", messages=[{"role": "user", "content": prompt}])
    return str(answer.choices[0].message.content)


def ask_in_threads(client: Any, task: str) -> str:
    """Make two calls at once, and one after them."""
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda half: ask(client, f"{task} SUB {half}"), ("left", "right")))
    return ask(client, f"{task} last")


async def ask_in_tasks(client: Any, task: str) -> str:
    """Make two calls at once, and one after them, with an async client."""
    await asyncio.gather(*(ask_async(client, f"{task} SUB {half}") for half in ("left", "right")))
    return await ask_async(client, f"{task} last")


async def ask_async(client: Any, prompt: str) -> str:
    """Make one call with an async OpenAI client."""
    answer = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": prompt}])
    return str(answer.choices[0].message.content)


def main() -> int:
    """Run the agent; return the exit status."""
    name, url, mode, count = sys.argv[1:]
    module = importlib.import_module(name)
    run = getattr(module, mode, None)
    if run is None:
        return MISSING
    tasks = [f"task-{number}-of-{mode}" for number in range(int(count))]
    if inspect.iscoroutinefunction(run):

        async def run_all() -> None:
            await asyncio.gather(*(run(url, task) for task in tasks))

        asyncio.run(run_all())
    elif getattr(module, "IS_BATCH", False) and mode == "batch":
        run(url, tasks)
    else:
        with ThreadPoolExecutor(len(tasks)) as pool:
            list(pool.map(lambda task: run(url, task), tasks))
    if os.environ.get("WITH_CLIENT"):
        print("missing:", missing_methods())
    return 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.exit(status)
