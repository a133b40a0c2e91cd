"""Beside libraries that trace the same clients, put in place before the client and after it.

Each needs its library, and is skipped without. They patch for good, so each runs in a process of its own.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.sdk.conftest import Recording

TRACERS = {
    "opentelemetry.instrumentation.threading": """
        from opentelemetry.instrumentation.asyncio import AsyncioInstrumentor
        from opentelemetry.instrumentation.threading import ThreadingInstrumentor
        ThreadingInstrumentor().instrument()
        AsyncioInstrumentor().instrument()
    """,
    "openinference.instrumentation.openai": """
        from openinference.instrumentation.openai import OpenAIInstrumentor
        from opentelemetry.sdk.trace import TracerProvider
        OpenAIInstrumentor().instrument(tracer_provider=TracerProvider())
    """,
    "logfire": """
        import logfire
        logfire.configure(send_to_logfire=False, console=False)
        logfire.instrument_openai()
    """,
    "langfuse": """
        import langfuse
        langfuse.Langfuse(public_key="pk", secret_key="sk", host="http://127.0.0.1:9")
        import langfuse.openai
    """,
    "langsmith": """
        from langsmith.wrappers import wrap_openai as wrap
    """,
    "opentelemetry.instrumentation.openai": """
        from opentelemetry.instrumentation.openai import OpenAIInstrumentor
        from opentelemetry.sdk.trace import TracerProvider
        OpenAIInstrumentor().instrument(tracer_provider=TracerProvider())
    """,
    "ddtrace": """
        import ddtrace
        ddtrace.patch(openai=True, futures=True, asyncio=True, httpx=True)
    """,
}
"""What puts each in place, by the module that it needs (traceloop: the second one of OpenTelemetry)."""
ENVIRONMENT = {
    "DD_INSTRUMENTATION_TELEMETRY_ENABLED": "false",
    "DD_REMOTE_CONFIGURATION_ENABLED": "false",
    "DD_TRACE_STARTUP_LOGS": "false",
    "LANGSMITH_TRACING": "true",
    "LANGSMITH_API_KEY": "key",
    "LANGSMITH_ENDPOINT": "http://127.0.0.1:9",
    "OTEL_SDK_DISABLED": "false",
}
BEGIN = """
import asyncio, logging, os, sys, warnings
warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)
wrap = lambda client: client
"""
PROGRAM = """
from concurrent.futures import ThreadPoolExecutor

options = {"base_url": sys.argv[1], "api_key": "key", "max_retries": 1}
client, aclient = wrap(openai.OpenAI(**options)), wrap(openai.AsyncOpenAI(**options))

def arguments(text):
    return {"model": "m", "messages": [{"role": "user", "content": text}]}

def ask(text, **more):
    return client.chat.completions.create(**arguments(text), **more)

async def aask(text, **more):
    return await aclient.chat.completions.create(**arguments(text), **more)

async def fan_out():
    await asyncio.gather(aask("one"), asyncio.to_thread(ask, "two"))
    chunks = [chunk async for chunk in await aask("both, streamed", stream=True)]
    assert len(chunks) == 2, chunks

with autellix.program("agent"):
    assert ask("retried").choices[0].message.content == "hello"
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(ask, ["left", "right"]))
    assert len(list(ask("joined, streamed", stream=True))) == 2
    asyncio.run(fan_out())
    raw = client.chat.completions.with_raw_response.create(**arguments("raw"))
    assert raw.headers["x-autellix-version"]
    try:
        client.with_options(max_retries=0).chat.completions.create(**arguments("refused"))
    except openai.BadRequestError:
        ask("last")
print("done", flush=True)
# Some wait at their exit for a service that is not there.
os._exit(0)
"""
EXPECTED = {
    "retried": (),
    "left": ("retried",),
    "right": ("retried",),
    "joined, streamed": ("left", "right"),
    "one": ("joined, streamed",),
    "two": ("joined, streamed",),
    "both, streamed": ("one", "two"),
    "raw": ("both, streamed",),
    "refused": ("raw",),
    "last": ("refused",),
}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("tracer", TRACERS)
def test_beside_a_tracer(tracer: str, when: str, backend: Recording, run_script: Callable[..., str]) -> None:
    """Retries, pools, streams, tasks, raw answers, errors: results, calls and the DAG are as without it."""
    try:
        is_there = importlib.util.find_spec(tracer) is not None
    except ModuleNotFoundError:
        is_there = False
    if not is_there:
        pytest.skip(f"{tracer} is not installed")
    backend.statuses = [500, 200, 200, 200, 200, 200, 200, 200, 200, 400]
    others = "\n".join(line.strip() for line in TRACERS[tracer].splitlines())
    ours = "import autellix, openai\n"
    parts = (others, ours) if when == "before" else (ours, others)
    script = "".join([BEGIN, *parts, PROGRAM])
    output = run_script(script, backend.url, AUTELLIX_BASE_URL=backend.url, **ENVIRONMENT)
    assert output.endswith("done\n")
    assert backend.dag() == EXPECTED
    assert {call.program_name for call in backend.recorded} == {"agent"}
    assert len(backend.programs()) == 1
    first, second = (call.call_id for call in backend.recorded if call.content == "retried")
    assert first == second
