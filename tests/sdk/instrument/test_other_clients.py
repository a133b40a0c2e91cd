"""Clients that frameworks bring; each test needs its framework, and is skipped without."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import autellix

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.sdk.conftest import Recording

# In a process of their own: these imports take seconds and warn.
DSPY = """
import asyncio, sys, warnings
warnings.simplefilter("ignore")
import autellix, dspy

lm = dspy.LM("openai/m", api_base=sys.argv[1], api_key="key", cache=False)
with autellix.program("agent"):
    lm("first")
    asyncio.run(lm.acall("second"))
    lm("third")
"""
LITELLM = """
import asyncio, sys, warnings
warnings.simplefilter("ignore")
import autellix, litellm

def arguments(text):
    message = {"role": "user", "content": text}
    return {"model": "hosted_vllm/m", "messages": [message], "api_base": sys.argv[1], "api_key": "key"}

with autellix.program("agent"):
    litellm.completion(**arguments("first"))
    asyncio.run(litellm.acompletion(**arguments("second")))
    litellm.completion(**arguments("third"))
"""


# The way of DSPy's own calls is not known, so nothing but calls goes there.
@pytest.mark.parametrize(
    ("module", "script", "credentials"), [("dspy", DSPY, []), ("litellm", LITELLM, ["Bearer key"])]
)
def test_frameworks_with_clients_of_their_own(
    module: str, script: str, credentials: list[str], backend: Recording, run_script: Callable[..., str]
) -> None:
    importlib_util = pytest.importorskip("importlib.util")
    if importlib_util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    environment = {"AUTELLIX_BASE_URL": backend.url, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    run_script(script, backend.url, PYTHONWARNINGS="ignore", **environment)
    assert backend.dag() == {"first": (), "second": ("first",), "third": ("second",)}
    assert {call.program_name for call in backend.recorded} == {"agent"}
    assert backend.credentials == credentials
    assert autellix.current().name is None
