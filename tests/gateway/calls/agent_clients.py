"""Bodies as agent clients send them: their structure and sizes are those of real ones, their words are not.

Each client keeps a conversation, which `step` lengthens by a turn; `body` returns the next request. Faults by
which versions of them broke their prefixes are arguments, named after public reports in test_prefix_doctor.
"""

from __future__ import annotations

import copy
import json
import random
from typing import Any

Body = dict[str, Any]
WORDS = ["the", "file", "def", "return", '"quoted"', "line\n", "x = 1;", "path/to", "{}", "7", "né"]
MARK = {"type": "ephemeral"}


class Client:
    """A conversation; `agent` is its `User-Agent`."""

    agent = ""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.sent = 0
        """The requests so far."""
        self.turns: list[Body] = []

    def text(self, size: int) -> str:
        return " ".join(self.random.choices(WORDS, k=size // 5))

    def number(self) -> str:
        return f"{self.random.randrange(16**12):012x}"

    def schema(self, fields: int) -> Body:
        names = ("path", "pattern", "command", "limit", "offset", "note")[:fields]
        properties = {name: {"type": "string", "description": self.text(120)} for name in names}
        return {"type": "object", "properties": properties, "required": list(names[:1])}

    def body(self) -> Body:
        raise NotImplementedError

    def step(self) -> None:
        raise NotImplementedError


class ClaudeCode(Client):
    """Anthropic's messages: a system prompt of three blocks, and marks of the cache that roll on."""

    agent = "claude-cli/2.1.233 (external, cli)"

    def __init__(self, seed: int, **options: bool) -> None:
        """Begin a conversation.

        `reminds` sends a system message after results, `strips` reminders of earlier messages, `clears`
        earlier results; `bills` begins the system prompt with a line that differs from request to request.
        """
        super().__init__(seed)
        self.options = {"bills": True, **options}
        names = ("Bash", "Edit", "Glob", "Grep", "Read", "Task", "TodoWrite", "WebFetch", "Write")
        self.tools = [
            {"name": name, "description": self.text(1800), "input_schema": self.schema(3)} for name in names
        ]
        self.guide = self.text(9000) + "\n# Environment\nToday's date: 2026-08-17\n" + self.text(600)
        self._say()

    def _say(self) -> None:
        reminder = f"<system-reminder>\n{self.text(1500)}\n</system-reminder>"
        blocks = [{"type": "text", "text": reminder}, {"type": "text", "text": self.text(300)}]
        self.turns.append({"role": "user", "content": blocks})

    def step(self) -> None:
        if len(self.turns) % 7 == 6:
            self.turns.append({"role": "assistant", "content": [{"type": "text", "text": self.text(500)}]})
            self._say()
            return
        number = f"toolu_{self.number()}"
        use = {"type": "tool_use", "id": number, "name": "Read", "input": {"path": self.text(40)}}
        text = {"type": "text", "text": self.text(200)}
        result = {"type": "tool_result", "tool_use_id": number, "content": self.text(2500)}
        self.turns.append({"role": "assistant", "content": [text, use]})
        self.turns.append({"role": "user", "content": [result]})
        if self.options.get("reminds"):
            left = f"<total_tokens>{900000 - 1000 * self.sent} tokens left</total_tokens>"
            self.turns.append({"role": "system", "content": left})

    def body(self) -> Body:
        self.sent += 1
        bill = (
            f"x-anthropic-billing-header: cc_version=2.1.233.0d9; cc_entrypoint=cli; cch={self.number()[:5]};"
        )
        system = [
            *([{"type": "text", "text": bill}] if self.options["bills"] else []),
            {"type": "text", "text": "You write code.", "cache_control": MARK},
            {"type": "text", "text": self.guide, "cache_control": MARK},
        ]
        turns = copy.deepcopy(self.turns)
        if self.options.get("strips"):
            for turn in turns[:-1]:
                if len(turn["content"]) == 2 and turn["role"] == "user":
                    turn["content"] = turn["content"][1]["text"]
        if self.options.get("clears"):
            for turn in turns[:-8]:
                if turn["role"] == "user" and turn["content"][0]["type"] == "tool_result":
                    turn["content"][0]["content"] = "[Old tool result content cleared]"
        for turn in turns[-2:]:
            if isinstance(turn["content"], list):
                turn["content"][-1]["cache_control"] = MARK
        user = {"user_id": "user_0_account__session_0"}
        return {
            "model": "m",
            "max_tokens": 32000,
            "system": system,
            "tools": self.tools,
            "messages": turns,
            "metadata": user,
        }


class Codex(Client):
    """OpenAI's responses: instructions, context as items, reasoning that comes back encrypted."""

    agent = "codex_cli_rs/0.145.0 (Debian 13.0.0; x86_64) xterm"

    def __init__(self, seed: int, *, shuffles: bool = False) -> None:
        """`shuffles` lists the tools of MCP servers in another order each time."""
        super().__init__(seed)
        self.shuffles = shuffles
        self.instructions = self.text(8000)
        self.tools = [
            {"type": "function", "name": name, "description": self.text(500), "parameters": self.schema(4)}
            for name in ("shell", "apply_patch", "update_plan", "mcp__a__x", "mcp__b__y", "mcp__c__z")
        ]
        self._item("developer", self.text(900))
        self._item("user", f"<environment_context>\n{self.text(300)}\n</environment_context>")
        self._item("user", self.text(400))

    def _item(self, role: str, text: str) -> None:
        content = [{"type": "input_text", "text": text}]
        self.turns.append({"type": "message", "role": role, "content": content})

    def step(self) -> None:
        number = f"call_{self.number()}"
        arguments = json.dumps({"command": ["bash", "-lc", self.text(60)]})
        self.turns += [
            {"type": "reasoning", "summary": [], "encrypted_content": self.number() * 60},
            {"type": "function_call", "call_id": number, "name": "shell", "arguments": arguments},
            {"type": "function_call_output", "call_id": number, "output": self.text(2500)},
        ]

    def body(self) -> Body:
        self.sent += 1
        tools = list(self.tools)
        if self.shuffles:
            # Never the order of the request before.
            turn = 1 + self.sent % 2
            tools[3:] = tools[3 + turn :] + tools[3 : 3 + turn]
        return {
            "model": "m",
            "instructions": self.instructions,
            "input": copy.deepcopy(self.turns),
            "tools": tools,
            "store": False,
            "prompt_cache_key": "0",
        }


class OpenCode(Client):
    """OpenAI's chat with two system messages, of which the second has the directory and the day."""

    agent = "opencode/1.4.3 ai-sdk/provider-utils/4.0.0"

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.day = "Wed Jun 17 2026"
        self.folder = "/work/app"
        self.prompt, self.rules = self.text(7000), self.text(2000)
        names = ("bash", "edit", "glob", "grep", "read", "todowrite", "write")
        self.descriptions = {name: self.text(900) for name in names}
        self.schemas = {name: self.schema(4) for name in names}
        self.turns = [{"role": "user", "content": self.text(500)}]

    def step(self) -> None:
        number = f"call_{self.number()}"
        function = {"name": "read", "arguments": json.dumps({"path": self.text(40)})}
        calls = [{"id": number, "type": "function", "function": function}]
        self.turns += [
            {"role": "assistant", "content": self.text(150), "tool_calls": calls},
            {"role": "tool", "tool_call_id": number, "content": self.text(2500)},
        ]

    def body(self) -> Body:
        self.sent += 1
        environment = f"<env>\n  cwd: {self.folder}\n  platform: linux\n  Today's date: {self.day}\n</env>\n"
        texts = {**self.descriptions}
        texts["bash"] += f"\nAll commands run in {self.folder} by default."
        functions = [
            {"name": name, "description": text, "parameters": self.schemas[name]}
            for name, text in texts.items()
        ]
        tools = [{"type": "function", "function": function} for function in functions]
        system = [self.prompt, environment + self.rules]
        return {
            "model": "m",
            "messages": [
                *({"role": "system", "content": text} for text in system),
                *copy.deepcopy(self.turns),
            ],
            "tools": tools,
            "stream": True,
        }


class LangGraph(Client):
    """A ReAct agent of ChatOpenAI: one system message, short tools, and, if `trims`, a window of messages."""

    agent = "OpenAI/Python 2.8.0"

    def __init__(self, seed: int, *, trims: bool = False) -> None:
        super().__init__(seed)
        self.trims = trims
        self.prompt = self.text(3000)
        self.tools = [
            {
                "type": "function",
                "function": {"name": name, "description": self.text(200), "parameters": self.schema(2)},
            }
            for name in ("search", "lookup", "calculate")
        ]
        self.turns = [{"role": "user", "content": self.text(600)}]

    def step(self) -> None:
        number = f"call_{self.number()}"
        function = {"name": "search", "arguments": json.dumps({"query": self.text(60)})}
        calls = [{"type": "function", "id": number, "function": function}]
        self.turns += [
            {"content": None, "role": "assistant", "tool_calls": calls},
            {"content": self.text(2000), "role": "tool", "tool_call_id": number},
        ]

    def body(self) -> Body:
        self.sent += 1
        turns = self.turns[-9:] if self.trims else self.turns
        messages = [{"content": self.prompt, "role": "system"}, *copy.deepcopy(turns)]
        return {"messages": messages, "model": "m", "tools": self.tools, "parallel_tool_calls": False}


CLIENTS: tuple[type[Client], ...] = (ClaudeCode, Codex, OpenCode, LangGraph)
