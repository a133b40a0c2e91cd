"""Play program traces against a live backend in a client process, and collect the results.

The client must have `import autellix` in effect, as a user's program has. The backend's own packages may not
import the client library, and importing it instruments the importing process, so the load generator runs as
a child whose command line does the import and then runs `bench.client`.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import math
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from autellix_backend.errors import CommandError
from autellix_lab.bench.results import CallResult
from autellix_lab.bench.step_clock import SAMPLES, Sample, steps_at
from autellix_lab.workload.trace import ProgramTrace, program_to_mapping

CLIENT_MODULE = "autellix_lab.bench.client"
CLIENT_CODE = f"import autellix, runpy; runpy.run_module({CLIENT_MODULE!r}, run_name='__main__')"
_LINE_LIMIT_BYTES = 2**20


class ReplayError(CommandError):
    """The load generator failed as a whole; single lost calls are results with an error."""

    exit_code = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayJob:
    """One run: the programs, their arrival times, and the backend."""

    base_url: str
    """The backend's root, without /v1."""
    model: str
    programs: Sequence[ProgramTrace]
    arrivals_s: Sequence[float]
    salt: str = ""
    """Runs with different salts have different words, so that no run finds its prompts in a prefix cache."""
    call_timeout_s: float = 600.0
    timeout_s: float = 900.0
    api_key: str | None = "none"
    """None: the official client's default from its environment."""
    engine_url: str | None = None
    """The root of the vLLM server whose steps are the clock of arrivals and gaps; None for seconds."""
    step_s: float = math.inf
    """The usual time of a step, by which seconds become steps; infinite: all arrive at once, without gaps."""

    def to_mapping(self) -> dict[str, Any]:
        """Return the client process's input."""
        return {
            "base_url": self.base_url.rstrip("/") + "/v1",
            "model": self.model,
            "programs": [program_to_mapping(program) for program in self.programs],
            "arrivals_s": list(self.arrivals_s),
            "salt": self.salt,
            "call_timeout_s": self.call_timeout_s,
            "api_key": self.api_key,
            "engine_url": self.engine_url,
            "step_s": self.step_s,
        }


def replay(
    job: ReplayJob,
    on_result: Callable[[CallResult], None] = lambda _: None,
    *,
    client_code: str = CLIENT_CODE,
) -> list[CallResult]:
    """Run a job to its end; `on_result` sees every call as it finishes.

    `client_code` is the Python code of the client process: other systems want programs named in other ways.
    Calls that never finished (the client process died or ran out of time) are results with an error.

    Raises:
        ReplayError: if the client process could not play at all.
    """
    return asyncio.run(_replay(job, on_result, client_code))


async def _replay(
    job: ReplayJob, on_result: Callable[[CallResult], None], client_code: str
) -> list[CallResult]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        client_code,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=_LINE_LIMIT_BYTES,
    )
    results: list[CallResult] = []
    samples: list[Sample] = []
    problem: str | None = None
    errors = asyncio.create_task(_read_all(process.stderr))
    try:
        async with asyncio.timeout(job.timeout_s):
            await _feed(process.stdin, json.dumps(job.to_mapping()).encode())
            async for line in _lines(process.stdout):
                if SAMPLES in line:
                    samples = [(time_s, steps) for time_s, steps in line[SAMPLES]]
                    continue
                result = CallResult(**line)
                results.append(result)
                on_result(result)
            await process.wait()
    except TimeoutError:
        problem = f"not finished after {job.timeout_s:g} s"
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        complaint = await errors
    if process.returncode != 0 and problem is None:
        problem = f"the client process ended with {process.returncode}: {complaint[-2000:]}"
    if problem and not results:
        raise ReplayError(problem)
    return _in_steps(results, samples) + _lost(job, results, problem or "no result")


async def _feed(stdin: asyncio.StreamWriter | None, data: bytes) -> None:
    assert stdin is not None
    # A client that dies at once closes the pipe; its exit code and log name the reason.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        stdin.write(data)
        await stdin.drain()
        stdin.close()


async def _lines(stdout: asyncio.StreamReader | None) -> AsyncIterator[dict[str, Any]]:
    assert stdout is not None
    async for line in stdout:
        yield json.loads(line)


def _in_steps(results: list[CallResult], samples: Sequence[Sample]) -> list[CallResult]:
    if not samples:
        return results
    return [
        dataclasses.replace(
            result,
            submit_step=steps_at(samples, result.submit_s),
            finish_step=steps_at(samples, result.finish_s),
        )
        for result in results
    ]


async def _read_all(stream: asyncio.StreamReader | None) -> str:
    assert stream is not None
    return (await stream.read()).decode(errors="replace")


def _lost(job: ReplayJob, results: Sequence[CallResult], problem: str) -> list[CallResult]:
    done = {(result.program, result.call) for result in results}
    return [
        CallResult(
            program=program.program_id,
            call=call.id,
            thread=call.thread,
            submit_s=0.0,
            finish_s=0.0,
            error=problem,
        )
        for program in job.programs
        for call in program.calls
        if (program.program_id, call.id) not in done
    ]
