"""Whatever is imported first, a graph's run is a program."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable

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


@pytest.fixture(scope="session")
def bytecode(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where scripts keep compiled modules: importing the framework takes seconds without."""
    return str(tmp_path_factory.mktemp("bytecode"))


@pytest.fixture
def run_script(bytecode: str) -> Callable[..., None]:
    """Run a program in a process of its own."""
    cache = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": bytecode}

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
        "import langchain_core.runnables, autellix",
        "from autellix_langchain import AutellixCallback",
        "import langgraph.graph; from autellix_langchain import AutellixCallback",
    ],
)
def test_order_of_imports(first: str, run_script: Callable[..., None]) -> None:
    run_script(first + "\n" + SCRIPT)


def test_run_in_a_named_process_belongs_to_it(run_script: Callable[..., None]) -> None:
    script = """
    import autellix
    from langchain_core.runnables import RunnableLambda
    names = []
    RunnableLambda(lambda _: names.append(autellix.current().name)).invoke("x")
    assert names == ["nightly"], names
    """
    run_script(script, AUTELLIX_PROGRAM_NAME="nightly")
