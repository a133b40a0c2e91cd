"""What a scripted model does next, by the steps in its prompt and the tools that the client offers.

A prompt says `STEPS=read,run,delegate+delegate`: one answer for each step, with calls of as many tools as the
step names, then a closing text. The tools are the client's own, found by the names that clients give them.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

CLOSING = "notes.txt has 3 lines."
SHELL_COMMAND = "wc -l notes.txt"
SUBMISSION = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""What mini-swe-agent runs to end a task."""
SUBTASK = "STEPS=run,run Count the lines of notes.txt."

_SHELLS = (
    *("bash", "shell", "exec_command", "run_shell_command", "execute_command", "terminal", "local_shell"),
    *("run_commands", "shell_command", "execute_bash"),
)
_AGENTS = ("task", "agent", "spawn_agent", "use_subagents", "new_task")
TOOLS: Mapping[str, Sequence[str]] = {
    "read": ("read", "read_file", "read_files", "view", "file_editor", *_SHELLS),
    "run": _SHELLS,
    "submit": _SHELLS,
    "delegate": _AGENTS,
    "fork": _AGENTS,
    "await": ("wait_agent", "wait"),
}
"""The tools of each kind of step, the first that is offered."""
_STEPS = re.compile(r"STEPS=([a-z,+]+)")
_AGENT_ID = re.compile(r"agent_id\W+([0-9a-f-]{36})")


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedTool:
    """A tool that the request offers."""

    name: str
    parameters: Mapping[str, Any]
    namespace: str | None = None
    """Codex groups the tools for its sub-agents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedCall:
    """A call of a tool, with an id that no other answer has."""

    tool: OfferedTool
    arguments: Mapping[str, Any]
    id: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def arguments_json(self) -> str:
        """The arguments as the model writes them."""
        return json.dumps(self.arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedTurn:
    """One answer."""

    text: str
    calls: Sequence[ScriptedCall] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentTask:
    """What a request tells of its task."""

    steps: Sequence[str] = ()
    results: int = 0
    """Results of tools since the prompt that stated the steps."""
    tools: Mapping[str, OfferedTool] = field(default_factory=dict)
    """By their names in lower case."""
    text: str = ""
    """The whole request."""


def read_task(path: str, body: Mapping[str, Any]) -> AgentTask:
    """Read the body of a call in any dialect."""
    steps: Sequence[str] = ()
    results = 0
    for event in _events(path, body):
        if event is None:
            results += 1
        elif found := _STEPS.findall(event):
            steps, results = found[-1].split(","), 0
    tools = {tool.name.lower(): tool for tool in _tools(body.get("tools") or ())}
    return AgentTask(steps=steps, results=results, tools=tools, text=json.dumps(body))


def next_turn(task: AgentTask) -> ScriptedTurn:
    """Return the answer for the first step whose results are not all there."""
    done = task.results
    for step in task.steps:
        calls = [call for kind in step.split("+") if (call := _call(kind, task)) is not None]
        if done < len(calls):
            return ScriptedTurn(text="Let me look.", calls=calls)
        done -= len(calls)
    return ScriptedTurn(text=CLOSING)


def _events(path: str, body: Mapping[str, Any]) -> Iterator[str | None]:
    """Yield the user's texts in order, and None for each result of a tool."""
    messages = body.get("input") if path.endswith("/responses") else body.get("messages")
    if isinstance(messages, str):
        yield messages
        return
    for message in messages or ():
        if message.get("role") == "tool" or str(message.get("type", "")).endswith("_call_output"):
            yield None
        elif message.get("role") == "user":
            yield from _parts(message.get("content"))


def _parts(content: Any) -> Iterator[str | None]:
    if isinstance(content, str):
        yield content
        return
    for part in content or ():
        if part.get("type") == "tool_result":
            yield None
        elif "text" in part:
            yield str(part["text"])


def _tools(tools: Iterable[Mapping[str, Any]], namespace: str | None = None) -> Iterator[OfferedTool]:
    for tool in tools:
        if tool.get("type") == "namespace":
            yield from _tools(tool.get("tools", ()), tool["name"])
            continue
        function = tool.get("function", tool)
        parameters = function.get("parameters") or function.get("input_schema") or {}
        # Others, as searches that the server would make, have no name or take no arguments.
        if "name" in function:
            yield OfferedTool(name=function["name"], parameters=parameters, namespace=namespace)


def _call(kind: str, task: AgentTask) -> ScriptedCall | None:
    tool = next((task.tools[name] for name in TOOLS[kind] if name in task.tools), None)
    if tool is None:
        return None
    if kind == "await":
        targets = list(dict.fromkeys(_AGENT_ID.findall(task.text.replace("\\", ""))))
        return ScriptedCall(tool=tool, arguments={"targets": targets, "timeout_ms": 60_000})
    command = SUBMISSION if kind == "submit" else SHELL_COMMAND
    # OpenCode's tool has another name for the same sub-agent; Qwen Code's forks begin with its transcript.
    agent = "fork" if kind == "fork" else "general" if tool.name == "task" else "general-purpose"
    return ScriptedCall(tool=tool, arguments=dict(_filled(tool, command, agent)))


def _filled(tool: OfferedTool, command: str, agent: str) -> Iterator[tuple[str, Any]]:
    """Yield a value for each argument that a tool requires, and for those that say what it does."""
    properties: Mapping[str, Any] = tool.parameters.get("properties") or {}
    known = {
        **dict.fromkeys(("command", "cmd"), command),
        **dict.fromkeys(("file_path", "filePath", "path", "absolute_path"), "notes.txt"),
        **dict.fromkeys(("prompt", "message", "task", "prompt_1"), SUBTASK),
        **dict.fromkeys(("subagent_type", "agent_type"), agent),
        "commands": [command],
        "description": "count lines",
    }
    for name in properties:
        if name in known or name in (tool.parameters.get("required") or ()):
            yield name, _value(properties[name], known.get(name))


def _value(schema: Mapping[str, Any], wanted: Any) -> Any:
    kinds = schema.get("type")
    kind = kinds[0] if isinstance(kinds, list) else kinds
    if allowed := schema.get("enum"):
        return wanted if wanted in allowed else allowed[0]
    if kind == "array":
        return wanted if isinstance(wanted, list) else ["bash", "-lc", wanted] if wanted else []
    if wanted is not None:
        return wanted
    return {"boolean": False, "integer": 1, "number": 1, "object": {}}.get(str(kind), "x")
