"""A pytest plugin: the client's tests beside other instrumentation, put in place before or after ours.

AUTELLIX_BESIDE=before python -m pytest -p tests.sdk.beside tests/sdk
"""

from __future__ import annotations

import os
from typing import Any

import pytest

WHEN = os.environ.get("AUTELLIX_BESIDE", "")


def instrument_others() -> None:
    """Switch on what many programs have: traces of threads, of asyncio and of OpenAI calls."""
    import logfire
    from openinference.instrumentation.openai import OpenAIInstrumentor
    from opentelemetry.instrumentation.asyncio import AsyncioInstrumentor
    from opentelemetry.instrumentation.threading import ThreadingInstrumentor
    from opentelemetry.sdk.trace import TracerProvider

    provider = TracerProvider()
    ThreadingInstrumentor().instrument(tracer_provider=provider)
    AsyncioInstrumentor().instrument(tracer_provider=provider)
    OpenAIInstrumentor().instrument(tracer_provider=provider)
    logfire.configure(send_to_logfire=False, console=False)
    logfire.instrument_openai()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("filterwarnings", "ignore::DeprecationWarning")
    config.addinivalue_line("filterwarnings", "ignore::PendingDeprecationWarning")
    if WHEN == "before":
        instrument_others()


@pytest.fixture(autouse=True)
def _others_after(request: pytest.FixtureRequest) -> None:
    """Wrap what the client has wrapped, once."""
    if WHEN == "after" and "sdk" in request.fixturenames and not _State.is_done:
        request.getfixturevalue("sdk")
        _State.is_done = True
        instrument_others()


class _State:
    is_done: Any = False
