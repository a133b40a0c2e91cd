"""Whichever is imported first, the client instruments AutoGen."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.waiting import PATIENCE_S

pytest.importorskip("autogen_agentchat")
pytest.importorskip("autogen_ext.models.openai")

CHECK = """
import autogen_agentchat.agents, autogen_agentchat.teams, autogen_core, autogen_ext.models.openai
from autogen_core import _single_threaded_agent_runtime as runtime
for owner, name in [
    (runtime.SendMessageEnvelope, "__init__"),
    (autogen_core.BaseAgent, "on_message"),
    (autogen_agentchat.teams.BaseGroupChat, "run_stream"),
    (autogen_agentchat.agents.BaseChatAgent, "run"),
    (autogen_ext.models.openai.BaseOpenAIChatCompletionClient, "create"),
]:
    assert "autellix" in vars(owner)[name].__code__.co_filename, (owner, name)
"""


@pytest.mark.parametrize(
    "first",
    [
        "import autellix",
        "import autogen_core; from autellix_autogen import AutellixChatCompletionClient",
    ],
)
def test_import_order_does_not_matter(first: str) -> None:
    script = "import warnings; warnings.simplefilter('ignore')\n" + first + CHECK
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_package_does_not_need_autogen() -> None:
    script = "import sys, autellix_autogen; assert not {'autogen_core', 'autogen_ext'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stderr) == (0, "")
