"""Several API server processes in front of one engine: none knows what the others know, and all stays right.

Random agents send each call to whichever process; the engine is one.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from dataclasses import dataclass, field

import pytest
from tests.vllm_plugin.vllm_app import CHAT, TOOLS, USER, Client, Message, Vllm, chat_answer

from autellix_backend.reports.call_arguments import CallIdentity
from autellix_backend.vllm_plugin.direct_calls import SESSION_TTL_S

PROCESSES = 2
STEPS = 120
KINDS = ("named", "session", "tools", "chat", "responses", "import", "import with tools")


@dataclass(slots=True, eq=False)
class Agent:
    """One agent, whose calls follow each other."""

    kind: str
    number: int
    turns: int = 0
    said: list[Message] = field(default_factory=lambda: [USER])
    response: str | None = None
    programs: set[str] = field(default_factory=set)
    """Those that the engine has put it into."""

    @property
    def name(self) -> str:
        return f"{self.kind} {self.number}".replace(" ", "-")

    def headers(self) -> dict[str, str]:
        if self.kind in ("named", "session"):
            session = {"X-Autellix-Session-ID": f"s-{self.name}"} if self.kind == "session" else {}
            return {"X-Autellix-Program-ID": self.name, **session}
        if self.kind.startswith("import"):
            before = f"{self.name}.{self.turns - 1}" if self.turns else "-"
            return {
                "X-Autellix-Program-ID": "process",
                "X-Autellix-Session-ID": "s-process",
                "X-Autellix-Flags": "implicit",
                "X-Autellix-Call-ID": f"{self.name}.{self.turns}",
                "X-Autellix-Parent-IDs": before,
            }
        return {}

    def body(self) -> Message:
        if self.kind == "responses":
            continued = {} if self.response is None else {"previous_response_id": self.response}
            return {"model": "m", "input": "on", **continued}
        # Agents of a kind say the same, word by word, but for the ids that engines make.
        tools = {"tools": TOOLS} if "tools" in self.kind else {}
        return {"model": "m", "messages": self.said, **tools}

    def answer(self) -> bytes:
        """Return what the engine answers, and go on by it."""
        self.turns += 1
        unique = f"{self.number}a{self.turns}b{KINDS.index(self.kind)}c9d8e7f6"
        if self.kind == "responses":
            self.response = f"resp_{unique}"
            return json.dumps({"object": "response", "id": self.response, "output": []}).encode()
        if self.kind != "tools":
            self.said = [*self.said, {"role": "assistant", "content": "hi"}, USER]
            return chat_answer()
        call = {"id": f"call_{unique}", "type": "function", "function": {"name": "search", "arguments": "{}"}}
        result = {"role": "tool", "tool_call_id": call["id"], "content": "found"}
        self.said = [*self.said, {"role": "assistant", "tool_calls": [call]}, result]
        return chat_answer(call)


class Server:
    """One engine behind processes that share a clock and nothing else."""

    def __init__(self, processes: int) -> None:
        self.vllm = Vllm()
        self.processes = [Client(self.vllm, {}, processes=processes) for _ in range(PROCESSES)]
        self.ended: dict[str, None] = {}

    async def call(self, agent: Agent, process: Client) -> CallIdentity:
        path = "/v1/responses" if agent.kind == "responses" else CHAT
        body, headers = agent.body(), agent.headers()
        answer = agent.answer()
        self.vllm.parts = [answer]
        assert await process.send(body, headers=headers, path=path) == (200, answer)
        found = self.vllm.identity
        self.ended |= dict.fromkeys(found.ended)
        agent.programs.add(found.program_id)
        return found

    def wait(self, seconds: float) -> None:
        for process in self.processes:
            process.now += seconds


@pytest.mark.parametrize("seed", range(12))
async def test_calls_that_change_their_process_are_never_of_another_s_program(seed: int) -> None:
    chance = random.Random(seed)
    server = Server(PROCESSES)
    agents = [Agent(kind, number) for kind in KINDS for number in range(3)]
    for _ in range(STEPS):
        agent, process = chance.choice(agents), chance.choice(server.processes)
        found = await server.call(agent, process)
        if agent.kind in ("named", "session"):
            assert (found.program_id, found.arrival.is_identified) == (agent.name, True)
        # No program goes on after its end was told.
        assert not server.ended.keys() & {found.program_id}
        server.wait(chance.choice((0.0, 0.1, 20.0, 100.0)))
        if chance.random() < 0.1:
            await process.send(path="/autellix/v1/sessions/s-process/heartbeat")
    owners = defaultdict(set)
    for agent in agents:
        for program in agent.programs:
            owners[program].add(agent.name)
    assert {program: names for program, names in owners.items() if len(names) > 1} == {}


@pytest.mark.parametrize("kind", ["tools", "responses", "import with tools"])
async def test_a_call_whose_answer_another_process_gave_is_alone_and_one_of_its_own_is_linked(
    kind: str,
) -> None:
    server, agent = Server(PROCESSES), Agent(kind, 0)
    here, there = server.processes
    first = await server.call(agent, here)
    assert (await server.call(agent, here)).program_id == first.program_id
    other = await server.call(agent, there)
    assert (other.program_id == first.program_id, other.arrival.is_identified) == (False, False)
    assert (await server.call(agent, there)).program_id == other.program_id


async def test_a_transcript_alone_links_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Of two agents that said the same, each process would know one."""
    server, one, other = Server(PROCESSES), Agent("chat", 0), Agent("chat", 1)
    here, there = server.processes
    for _ in range(3):
        for agent, process in ((one, here), (other, there)):
            found = await server.call(agent, process)
            assert (found.is_last, found.arrival.is_identified) == (True, False)
    await server.call(one, there)
    assert len(one.programs) == 4
    assert not one.programs & other.programs
    assert len(caplog.records) == PROCESSES


async def test_what_is_idle_in_one_process_may_go_on_in_another() -> None:
    server, named, session = Server(PROCESSES), Agent("named", 0), Agent("session", 0)
    here, there = server.processes
    for agent in named, session:
        await server.call(agent, here)
    for _ in range(8):
        server.wait(100.0)
        for agent in named, session:
            await server.call(agent, there)
    assert (await server.call(Agent("tools", 0), here)).ended == ()
    # An end that its client states is told by the process that has it.
    assert await end(there, named.name) == 204
    assert (await server.call(Agent("tools", 1), there)).ended == (named.name,)


async def test_a_session_whose_heartbeats_reach_another_process_lives_on() -> None:
    server, agent = Server(PROCESSES), Agent("session", 0)
    here, there = server.processes
    told: list[tuple[str, ...]] = []

    async def meanwhile() -> None:
        server.vllm.before_part = None
        server.wait(2 * SESSION_TTL_S)
        await there.send(path="/autellix/v1/sessions/s-session-0/heartbeat")
        told.append((await server.call(Agent("named", 0), here)).ended)

    server.vllm.before_part = meanwhile
    await here.call(USER, headers=agent.headers())
    told.append((await server.call(Agent("named", 1), here)).ended)
    assert told == [(), ()]


async def end(process: Client, program: str) -> int:
    return (await process.send(path=f"/autellix/v1/programs/{program}", method="DELETE"))[0]
