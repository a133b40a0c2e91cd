"""Whatever is imported first, a graph's run is a program."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.waiting import PATIENCE_S

if importlib.util.find_spec("langgraph") is None:
    pytest.skip("LangGraph is not installed", allow_module_level=True)

SCRIPT = """
from langchain_core.callbacks import BaseCallbackManager
from langchain_core.runnables import RunnableLambda
import autellix

seen = []
def look(_):
    seen.append(autellix.current().name)
RunnableLambda(look).invoke("x", {"run_name": "mine"})
assert seen == ["mine"], seen
assert autellix.current().is_implicit
assert BaseCallbackManager([]).handlers, "no handler"
autellix.uninstrument()
assert not BaseCallbackManager([]).handlers
"""


@pytest.fixture
def run_script() -> Callable[..., None]:
    """Run a program in a process of its own, which keeps compiled modules: the framework has thousands."""
    cache = {"PYTHONDONTWRITEBYTECODE": ""}

    def run(script: str, **environment: str) -> None:
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script)],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            env={**os.environ, **cache, **environment},
        )
        assert done.returncode == 0, done.stderr

    return run


@pytest.mark.parametrize(
    "first",
    [
        "import autellix",
        "import langgraph.graph; from autellix_langchain import AutellixCallback",
    ],
)
def test_order_of_imports(first: str, run_script: Callable[..., None]) -> None:
    run_script(first + "\n" + SCRIPT)


PATCHED = """
from autellix._instrument.switch import _switch
from langchain_core.runnables import RunnableLambda, RunnableParallel, RunnableSequence
import langgraph.pregel._runner
assert _switch.patches.missing == [], _switch.patches.missing
for method in (
    RunnableSequence.abatch, RunnableSequence.batch, RunnableLambda._batch_with_config,
    RunnableParallel.invoke, langgraph.pregel._runner.PregelRunner.tick,
):
    assert method.__module__ != "autellix" and hasattr(method, "__wrapped__"), method
"""


@pytest.mark.parametrize(
    "first",
    [
        "from langgraph.graph import StateGraph",
        "from langchain_core.runnables import RunnableLambda",
        "from langchain_openai import ChatOpenAI",
    ],
)
def test_first_import_of_the_framework_is_patched_whole(first: str, run_script: Callable[..., None]) -> None:
    """Its modules import each other in circles; none may be patched before it is complete."""
    run_script("import autellix\n" + first + PATCHED)


def test_client_that_is_imported_in_the_middle_of_another_import(
    run_script: Callable[..., None], tmp_path: Path
) -> None:
    (tmp_path / "awaited.py").write_text(
        "from autellix._instrument import patches\n"
        "hook = patches.ImportHook()\n"
        "seen = []\n"
        "hook.when_imported('awaited', lambda module: seen.append(module.late))\n"
        "import json.tool\n"
        "late = 1\n"
    )
    script = "import awaited, wave; assert awaited.seen == [1], awaited.seen; awaited.hook.remove()"
    run_script(script, PYTHONPATH=os.pathsep.join([str(tmp_path), *filter(None, sys.path)]))


def test_run_in_a_named_process_belongs_to_it(run_script: Callable[..., None]) -> None:
    script = """
    import autellix
    from langchain_core.runnables import RunnableLambda
    names = []
    RunnableLambda(lambda _: names.append(autellix.current().name)).invoke("x")
    assert names == ["nightly"], names
    """
    run_script(script, AUTELLIX_PROGRAM_NAME="nightly")
