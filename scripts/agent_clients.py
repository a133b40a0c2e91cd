"""The agent clients of `scripts/agent-clients`: how each is installed, told its server, and given a task."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tests.fakes.agent_turns import CLOSING


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentClient:
    """One client.

    In its texts `{url}` is the server's root, `{prompt}` the task, `{bin}` the folder of its programs,
    `{home}` its home, `{port}` a free port, and `{root}` the folder of all clients.
    """

    folder: str
    """Where it is installed, which clients with the same packages share."""
    npm: Sequence[str] = ()
    pip: Sequence[str] = ()
    python: str = "3"
    """The Python that it needs, if not this one."""
    needs: Sequence[str] = ()
    """Other clients that must be installed."""
    dialect: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    """Below its home."""
    before: Sequence[str] = ()
    """A command that configures it."""
    inputs: str = ""
    """What it reads from standard input."""
    closing: str = CLOSING
    """What it prints at the end of a task."""
    steps: str = "read,run,run"
    delegates: str = ""
    """Steps with sub-agents, if it has any."""
    is_heavy: bool = False
    """Whether a crowd of it would be too much for one machine."""


OPENAI = {
    "OPENAI_API_KEY": "dummy",
    "OPENAI_BASE_URL": "{url}/v1",
    "OPENAI_API_BASE": "{url}/v1",
    # LiteLLM would ask the network for prices.
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}

CODEX_SETTINGS = """
model = "gpt-5"
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false
analytics.enabled = false
"""
CODEX_PROVIDER = """
[model_providers.gateway]
name = "gateway"
base_url = "{url}/v1"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
"""
CODEX = AgentClient(
    folder="codex",
    npm=("@openai/codex",),
    dialect="responses",
    command=("{bin}/codex", "exec", "--skip-git-repo-check", "{prompt}"),
    environment={"OPENAI_API_KEY": "dummy"},
    files={".codex/config.toml": f'model_provider = "gateway"\n{CODEX_SETTINGS}{CODEX_PROVIDER}'},
    delegates="read,delegate+delegate,await,run",
)
CODEX_BUILTIN = replace(
    CODEX,
    environment={"CODEX_API_KEY": "dummy"},
    files={".codex/config.toml": f'openai_base_url = "{{url}}/v1"\n{CODEX_SETTINGS}'},
)
CLAUDE = AgentClient(
    folder="claude",
    npm=("@anthropic-ai/claude-code",),
    dialect="messages",
    command=(
        *("{bin}/claude", "-p", "{prompt}", "--model", "claude-sonnet-4-5"),
        *("--allowedTools", "Bash,Read,Agent,Task"),
    ),
    environment={
        "ANTHROPIC_BASE_URL": "{url}",
        "ANTHROPIC_API_KEY": "dummy",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_AUTOUPDATER": "1",
    },
    delegates="read,delegate+delegate,run",
)
QWEN_SETTINGS = {
    "security": {"auth": {"selectedType": "openai"}},
    "privacy": {"usageStatisticsEnabled": False},
    "telemetry": {"enabled": False},
}
QWEN = AgentClient(
    folder="qwen",
    npm=("@qwen-code/qwen-code",),
    dialect="chat",
    command=("{bin}/qwen", "--yolo", "{prompt}"),
    environment=OPENAI | {"OPENAI_MODEL": "scripted"},
    files={".qwen/settings.json": json.dumps(QWEN_SETTINGS)},
    delegates="read,delegate+delegate,run",
)
CLINE = AgentClient(
    folder="cline",
    npm=("cline",),
    dialect="chat",
    before=(
        "{bin}/cline",
        "auth",
        "-p",
        "openai-compatible",
        "-k",
        "dummy",
        "-m",
        "scripted",
        "-b",
        "{url}/v1",
    ),
    command=("{bin}/cline", "-P", "openai-compatible", "-m", "scripted", "{prompt}"),
    environment={"CLINE_TELEMETRY_DISABLED": "1"},
    delegates="read,delegate,run",
)
AIDER = AgentClient(
    folder="aider",
    pip=("aider-chat",),
    dialect="chat",
    command=(
        *("{bin}/aider", "--model", "openai/scripted", "--no-git", "--yes-always", "--no-check-update"),
        *("--analytics-disable", "--no-show-model-warnings", "--no-pretty", "--no-fancy-input", "notes.txt"),
    ),
    environment=OPENAI,
    inputs="{prompt}\n{prompt}\n{prompt}\n{prompt}\n/exit\n",
)
MINI = AgentClient(
    folder="mini",
    pip=("mini-swe-agent",),
    dialect="chat",
    command=("{bin}/mini", "-m", "openai/scripted", "-t", "{prompt}", "--yolo", "--exit-immediately"),
    environment=OPENAI | {"MSWEA_CONFIGURED": "true", "MSWEA_COST_TRACKING": "ignore_errors"},
    steps="run,run,run,submit",
    closing="Saved trajectory",
)

LITELLM_TASK = """
import os, sys, litellm
parameters = dict(type="object", properties=dict(command=dict(type="string")), required=["command"])
function = dict(name="bash", description="Run a command.", parameters=parameters)
tool = dict(type="function", function=function)
messages = [dict(role="user", content=sys.argv[1])]
options = dict(ARGUMENT)
while True:
    message = litellm.completion("openai/scripted", messages, tools=[tool], **options).choices[0].message
    messages.append(message.model_dump(exclude_none=True))
    if not message.tool_calls:
        break
    for call in message.tool_calls:
        messages.append(dict(role="tool", tool_call_id=call.id, content="3 notes.txt"))
print(message.content)
"""
AGENTS_TASK = """
import asyncio, sys, agents
agents.set_tracing_disabled(True)
agents.set_default_openai_api("API")
@agents.function_tool
def bash(command: str) -> str:
    "Run a command."
    return "3 notes.txt"
agent = agents.Agent(name="counter", model="scripted", tools=[bash])
print(asyncio.run(agents.Runner.run(agent, sys.argv[1])).final_output)
"""
OPENHANDS_TASK = """
import os, sys
from openhands.sdk import LLM, Agent, Conversation, Tool
from openhands.tools.terminal import TerminalTool
llm = LLM(model="openai/scripted", base_url=os.environ["OPENAI_BASE_URL"], api_key="dummy")
conversation = Conversation(agent=Agent(llm=llm, tools=[Tool(name=TerminalTool.name)]), workspace=os.getcwd())
conversation.send_message(sys.argv[1])
conversation.run()
"""


def of_python(folder: str, packages: Sequence[str], code: str, dialect: str = "chat") -> AgentClient:
    """Return a Python library, by the code of its task."""
    return AgentClient(
        folder=folder,
        pip=packages,
        dialect=dialect,
        command=("{bin}/python", "-c", code, "{prompt}"),
        environment=OPENAI,
        steps="run,run,run",
    )


def of_node(name: str, package: str, dialect: str) -> AgentClient:
    """Return a library in the loop of `clients.mjs`, by its name there and its first package."""
    others = ("openai", "@anthropic-ai/sdk", "ai", "@ai-sdk/openai", "@ai-sdk/anthropic")
    more = (
        "@ai-sdk/openai-compatible",
        "@langchain/openai",
        "@langchain/core",
        "@langchain/langgraph",
        "zod",
    )
    return AgentClient(
        folder="libraries",
        npm=(package, *others, *more),
        dialect=dialect,
        command=("node", "{root}/libraries/clients.mjs", name, "{url}", "{prompt}"),
        steps="run,run,run",
    )


def opencode(provider: str, dialect: str) -> AgentClient:
    """Return OpenCode with one of Vercel's providers."""
    model = {"limit": {"context": 200_000, "output": 8_000}, "tool_call": True}
    options = {"baseURL": "{url}/v1", "apiKey": "dummy"}
    config = {
        "provider": {"gateway": {"npm": provider, "options": options, "models": {"scripted": model}}},
        "model": "gateway/scripted",
        "permission": "allow",
        "autoupdate": False,
        "share": "disabled",
    }
    return AgentClient(
        folder="opencode",
        npm=("opencode-ai",),
        dialect=dialect,
        command=("{bin}/opencode", "run", "{prompt}"),
        environment={"OPENCODE_CONFIG_CONTENT": json.dumps(config), "OPENCODE_DISABLE_MODELS_FETCH": "1"},
        delegates="read,delegate+delegate,run",
    )


PROXY = """
model_list:
  - {model_name: "*", litellm_params: {model: "openai/scripted", api_base: "{url}/v1", api_key: dummy}}
litellm_settings: {drop_params: true, telemetry: false}
general_settings: {forward_client_headers_to_llm_api: FORWARDS}
"""
PROXIED = """
cd {home}
export LITELLM_LOCAL_MODEL_COST_MAP=True LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY=true
{root}/litellm/bin/litellm --config proxy.yaml --host 127.0.0.1 --port {port} >proxy.log 2>&1 &
cd work
until curl -sf http://127.0.0.1:{port}/health/liveliness >/dev/null; do kill -0 $! || exit; sleep 0.5; done
"$@"
"""


def behind_litellm(client: AgentClient, *, forwards: bool) -> AgentClient:
    """Return a client whose server is LiteLLM's proxy, which drops or forwards its headers."""
    here = "http://127.0.0.1:{port}"
    environment = {name: text.replace("{url}", here) for name, text in client.environment.items()}
    return replace(
        client,
        needs=("litellm",),
        command=("bash", "-c", PROXIED, "bash", *client.command),
        environment=environment,
        files={**client.files, "proxy.yaml": PROXY.replace("FORWARDS", str(forwards).lower())},
        is_heavy=True,
    )


LITELLM = of_python(
    "litellm", ("litellm[proxy]",), LITELLM_TASK.replace("ARGUMENT", 'litellm_session_id="task-1"')
)
LITELLM_HEADER = of_python(
    "litellm",
    ("litellm[proxy]",),
    LITELLM_TASK.replace("ARGUMENT", 'extra_headers={"x-litellm-session-id": f"task-{os.getpid()}"}'),
)
OPENCODE = opencode("@ai-sdk/openai-compatible", "chat")

CLIENTS: Mapping[str, AgentClient] = {
    "codex": CODEX,
    "codex-builtin": CODEX_BUILTIN,
    "claude": CLAUDE,
    "opencode": OPENCODE,
    "opencode-responses": opencode("@ai-sdk/openai", "responses"),
    "opencode-messages": opencode("@ai-sdk/anthropic", "messages"),
    "qwen": QWEN,
    "qwen-forks": replace(QWEN, delegates="read,fork+fork,run", is_heavy=True),
    "cline": CLINE,
    "aider": AIDER,
    "mini-swe-agent": MINI,
    "openhands": replace(
        of_python("openhands", ("openhands-sdk", "openhands-tools"), OPENHANDS_TASK), python="3.12"
    ),
    "vercel": of_node("ai-chat", "ai", "chat"),
    "vercel-responses": of_node("ai-responses", "ai", "responses"),
    "vercel-messages": of_node("ai-messages", "ai", "messages"),
    "openai-node": of_node("openai-chat", "openai", "chat"),
    "openai-node-responses": of_node("openai-responses", "openai", "responses"),
    "openai-node-previous-response": of_node("openai-previous-response", "openai", "responses"),
    "anthropic-node": of_node("anthropic", "@anthropic-ai/sdk", "messages"),
    "langgraph-js": of_node("langgraph-chat", "@langchain/langgraph", "chat"),
    "langgraph-js-responses": of_node("langgraph-responses", "@langchain/langgraph", "responses"),
    "openai-agents": of_python(
        "openai-agents", ("openai-agents",), AGENTS_TASK.replace("API", "chat_completions")
    ),
    "openai-agents-responses": of_python(
        "openai-agents", ("openai-agents",), AGENTS_TASK.replace("API", "responses"), "responses"
    ),
    "litellm": LITELLM,
    "litellm-header": LITELLM_HEADER,
    "litellm-header-by-proxy": behind_litellm(LITELLM_HEADER, forwards=False),
    "litellm-header-by-forwarding-proxy": behind_litellm(LITELLM_HEADER, forwards=True),
    "opencode-by-proxy": behind_litellm(OPENCODE, forwards=False),
    "opencode-by-forwarding-proxy": behind_litellm(OPENCODE, forwards=True),
    "claude-by-proxy": behind_litellm(CLAUDE, forwards=False),
    "claude-by-forwarding-proxy": behind_litellm(CLAUDE, forwards=True),
}
