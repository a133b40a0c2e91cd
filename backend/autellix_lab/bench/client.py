"""The load generator: plays program traces through ordinary OpenAI clients, in a process of its own.

Reads one job (JSON) from standard input, writes one JSON line per call to standard output, and at the end of
a run on the engine's clock one with its samples. The client library
`autellix` is not imported here, because client and backend never import each other: the parent (replay.py)
starts this process as a user would, `import autellix` first, and this module finds it among the loaded ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import json
import math
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import aiohttp
import openai
from openai import AsyncOpenAI
from openai.types import CompletionUsage
from openai.types.chat import ChatCompletion

from autellix_lab.bench.prompts import WORDS, PromptBook, PromptLength
from autellix_lab.bench.results import CallResult
from autellix_lab.bench.step_clock import SAMPLES, StepClock, step_reader
from autellix_lab.workload.trace import CallTrace, ProgramTrace
from autellix_lab.workload.trace_files import program_from_mapping

PROBE_WORDS = (16, 272)


class ScopeOpener(Protocol):
    """A scope like `autellix.program`: assigns every call in the block to one program."""

    def __call__(self, name: str) -> AbstractContextManager[object]:
        """Open a program of this name."""
        ...


@dataclass(frozen=True, slots=True)
class Player:
    """Plays programs against one backend.

    `started_s` is the monotonic time of the run's start; runs with different salts share no prompt.
    """

    client: AsyncOpenAI
    model: str
    scope: ScopeOpener
    length: PromptLength
    started_s: float
    salt: str = ""
    is_exact: bool = True
    """Whether the backend knows vLLM's fields for answers of an exact length."""
    clock: StepClock | None = None
    """The clock of arrivals and gaps; None for seconds."""
    step_s: float = math.inf
    """The usual time of a step."""

    def now(self) -> float:
        """Return the seconds since the start of the run."""
        return time.monotonic() - self.started_s

    async def play(self, program: ProgramTrace, arrival: float) -> None:
        """Wait for the arrival, then make the program's calls, each when its parents have answered.

        Args:
            program: The program.
            arrival: Seconds after the start, or steps on the engine's clock.
        """
        if self.clock is None:
            await asyncio.sleep(max(0.0, arrival - self.now()))
        else:
            await self.clock.reach(arrival)
        book = PromptBook(program, self.length, self.salt)
        with self.scope(program.source):
            if not program.is_parallel:
                await self._play_chain(program, program.calls, book, {})
                return
            loop = asyncio.get_running_loop()
            answered = {call.id: loop.create_future() for call in program.calls}
            # Prompts are written in trace order first: a thread may start from another thread's context.
            prompts = {call.id: book.prompt(call) for call in program.calls}
            async with asyncio.TaskGroup() as group:
                for calls in chains_of(program):
                    group.create_task(self._play_chain(program, calls, prompts, answered))

    async def _play_chain(
        self,
        program: ProgramTrace,
        calls: list[CallTrace] | tuple[CallTrace, ...],
        prompts: PromptBook | Mapping[int, str],
        answered: Mapping[int, asyncio.Future[None]],
    ) -> None:
        for call in calls:
            if answered:
                await asyncio.gather(*(answered[parent] for parent in call.parents))
            if call.gap_before_s and self.clock is not None:
                await self.clock.wait(call.gap_before_s / self.step_s)
            elif call.gap_before_s:
                await asyncio.sleep(call.gap_before_s)
            prompt = prompts.prompt(call) if isinstance(prompts, PromptBook) else prompts[call.id]
            emit(await self.call(program.program_id, call, prompt))
            if answered:
                answered[call.id].set_result(None)

    async def call(self, program_id: str, call: CallTrace, prompt: str) -> CallResult:
        """Make one call of exactly the trace's answer length; a failure is a result too."""
        result = functools.partial(
            CallResult, program=program_id, call=call.id, thread=call.thread, submit_s=self.now()
        )
        try:
            with contextlib.nullcontext() if self.clock is None else self.clock.open_call():
                answer = await self.complete(prompt, max(1, call.decode_tokens))
        except openai.OpenAIError as error:
            return result(finish_s=self.now(), error=f"{type(error).__name__}: {error}")
        usage = answer.usage
        receipt = (answer.model_extra or {}).get("autellix")
        return result(
            finish_s=self.now(),
            prompt_tokens=usage.prompt_tokens if usage else 0,
            output_tokens=usage.completion_tokens if usage else 0,
            cached_tokens=_cached_tokens(usage, receipt),
            receipt=receipt,
        )

    async def complete(self, prompt: str, output_tokens: int) -> ChatCompletion:
        """Request an answer of exactly `output_tokens` tokens; backends other than vLLM may stop earlier."""
        return await self.client.chat.completions.create(
            model=self.model,
            messages=[{"role": "user", "content": prompt}],
            max_tokens=output_tokens,
            temperature=0.0,
            # vLLM's own fields: continue after an end-of-text token, so that every policy generates as many
            # tokens.
            extra_body={"min_tokens": output_tokens, "ignore_eos": True} if self.is_exact else None,
        )


def chains_of(program: ProgramTrace) -> list[list[CallTrace]]:
    """Split a program into chains, one per task: calls of one thread that wait for each other."""
    chains: list[list[CallTrace]] = []
    current: dict[str, list[CallTrace]] = {}
    for call in program.calls:
        chain = current.get(call.thread)
        if chain is None or chain[-1].id not in call.parents:
            chain = current[call.thread] = []
            chains.append(chain)
        chain.append(call)
    return chains


async def probe_length(client: AsyncOpenAI, model: str, *, is_exact: bool) -> PromptLength:
    """Measure how many tokens words make in this backend's prompts."""
    player = Player(client, model, _no_scope, PromptLength(0.0, 1.0), 0.0, is_exact=is_exact)
    pairs: list[tuple[int, int]] = []
    for count in PROBE_WORDS:
        words = (WORDS * (count // len(WORDS) + 1))[:count]
        usage = (await player.complete(" ".join(words), 1)).usage
        pairs.append((count, usage.prompt_tokens if usage else count))
    return PromptLength.from_probes(*pairs)


async def run_job(
    job: Mapping[str, Any], scope: ScopeOpener, player_of: Callable[..., Player] = Player
) -> None:
    """Play every program of the job at its arrival time, and return when all have ended.

    `player_of` makes the player: others name programs in other ways.
    """
    programs = [program_from_mapping(item) for item in job["programs"]]
    async with _client(job) as client:
        with scope("bench-probe"):
            length, is_exact = await _probe(client, job["model"])
        player = player_of(client, job["model"], scope, length, time.monotonic(), job["salt"], is_exact)
        if job["engine_url"] is None:
            await _play_all(player, programs, job["arrivals_s"])
        else:
            await _play_by_steps(player, programs, job)


async def _play_all(player: Player, programs: list[ProgramTrace], arrivals: list[float]) -> None:
    async with asyncio.TaskGroup() as group:
        for program, arrival in zip(programs, arrivals, strict=True):
            group.create_task(player.play(program, arrival))


async def _play_by_steps(player: Player, programs: list[ProgramTrace], job: Mapping[str, Any]) -> None:
    """Play programs that arrive on the engine's clock; write its samples in the end."""
    step_s = job["step_s"]
    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
        read = step_reader(session, job["engine_url"])
        clock = StepClock(read, player.now, step_s)
        await clock.sample()
        sampling = group.create_task(clock.run())
        arrivals = [arrival_s / step_s for arrival_s in job["arrivals_s"]]
        await _play_all(dataclasses.replace(player, clock=clock, step_s=step_s), programs, arrivals)
        sampling.cancel()
        await clock.sample()
    sys.stdout.write(json.dumps({SAMPLES: clock.samples}) + "\n")
    sys.stdout.flush()


async def _probe(client: AsyncOpenAI, model: str) -> tuple[PromptLength, bool]:
    """Measure prompt lengths, and whether the backend accepts vLLM's own fields."""
    try:
        return await probe_length(client, model, is_exact=True), True
    except (openai.BadRequestError, openai.UnprocessableEntityError):
        return await probe_length(client, model, is_exact=False), False


def _client(job: Mapping[str, Any]) -> AsyncOpenAI:
    options: dict[str, Any] = {"base_url": job["base_url"], "timeout": job["call_timeout_s"]}
    try:
        # Without a key the official client reads OPENAI_API_KEY, and fails if it is unset.
        return AsyncOpenAI(api_key=job["api_key"], **options)
    except openai.OpenAIError:
        return AsyncOpenAI(api_key="none", **options)


def _cached_tokens(usage: CompletionUsage | None, receipt: object) -> int | None:
    if isinstance(receipt, dict) and isinstance(receipt.get("cached_tokens"), int):
        return int(receipt["cached_tokens"])
    details = usage.prompt_tokens_details if usage else None
    return details.cached_tokens if details else None


def emit(result: CallResult) -> None:
    """Write one result's line; the parent follows the run by them."""
    sys.stdout.write(json.dumps(dataclasses.asdict(result)) + "\n")
    sys.stdout.flush()


def _no_scope(name: str) -> AbstractContextManager[object]:
    raise AssertionError(name)


def main() -> int:
    """Play the job on standard input."""
    autellix = sys.modules.get("autellix")
    if autellix is None:
        sys.stderr.write("bench client: `import autellix` must come first; replay.py starts it so\n")
        return 2
    try:
        asyncio.run(run_job(json.load(sys.stdin), autellix.program))
    except openai.OpenAIError as error:
        sys.stderr.write(f"bench client: the backend does not answer: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
