"""Patches of autogen_agentchat: a team is a program until its reset, a run of a lone agent is one."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections import deque
from typing import TYPE_CHECKING

from autellix.integration import current_strand, end_program, ids, root_scope, safely
from autellix_autogen._turns import follow, line_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from types import ModuleType
    from typing import Any

    from autellix.integration import Patches, ProgramScope

CONVERSATION = "_autellix_conversation"
"""The attribute of a team that holds its conversation."""

_abandoned: deque[str] = deque()
"""Programs of collected teams. A finalizer may run anywhere and must take no lock, so it only notes them."""


class Conversation:
    """The program that a team's runs belong to until its reset."""

    def __init__(self, team: object, program_id: str) -> None:
        self.program_id = program_id
        self._finalizer = weakref.finalize(team, _abandon, program_id)
        # At exit the session ends, and its programs with it.
        self._finalizer.atexit = False

    def end(self) -> None:
        """Tell the backends that it is over."""
        self._finalizer.detach()
        end_program(self.program_id)


def _abandon(program_id: str) -> None:
    _abandoned.append(program_id)
    safely(_end_soon)


def _end_soon() -> None:
    from asyncio import events

    loop = events._get_running_loop()
    if loop is not None and not loop.is_closed():
        loop.call_soon(_end_abandoned)


def _end_abandoned() -> None:
    while _abandoned:
        safely(end_program, _abandoned.popleft())


def _team_scope(team: Any) -> ProgramScope | None:
    _end_abandoned()
    conversation = vars(team).get(CONVERSATION)
    program_id = ids.make("program") if conversation is None else conversation.program_id
    scope = root_scope(team.name, program_id, ends=False)
    if scope is not None and conversation is None:
        setattr(team, CONVERSATION, Conversation(team, program_id))
    return scope


def _agent_scope(agent: Any) -> ProgramScope | None:
    return root_scope(agent.name)


def _end_conversation(team: Any) -> None:
    conversation = vars(team).pop(CONVERSATION, None)
    if conversation is not None:
        conversation.end()


def _follow_manager(team: Any) -> None:
    """Let whoever ran the team come after its calls: the manager has handled what each agent answered."""
    from autogen_core import AgentId

    manager_id = AgentId(type=team._group_chat_manager_topic_type, key=team._team_id)
    manager = team._runtime._instantiated_agents.get(manager_id)
    strand = current_strand()
    line = None if manager is None else line_of(manager, strand.program.program_id)
    if line is not None:
        follow(strand, line.past)


def _make_stream(
    original: Callable[..., Any],
    scope_of: Callable[[Any], ProgramScope | None],
    at_end: Callable[[Any], None] | None,
) -> Callable[..., Any]:
    @functools.wraps(original)
    async def run_stream(self: Any, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        with safely(scope_of, self) or contextlib.nullcontext():
            stream = original(self, *args, **kwargs)
            try:
                async for item in stream:
                    yield item
            finally:
                # A consumer that leaves early: what it has started ends inside the scope.
                close = getattr(stream, "aclose", None)
                if close is not None:
                    await close()
                if at_end is not None:
                    safely(at_end, self)

    return run_stream


def _make_team_run_stream(original: Callable[..., Any]) -> Callable[..., Any]:
    return _make_stream(original, _team_scope, _follow_manager)


def _make_agent_run_stream(original: Callable[..., Any]) -> Callable[..., Any]:
    return _make_stream(original, _agent_scope, None)


def _make_run(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    async def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        with safely(_agent_scope, self) or contextlib.nullcontext():
            return await original(self, *args, **kwargs)

    return run


def _make_reset(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    async def reset(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = await original(self, *args, **kwargs)
        safely(_end_conversation, self)
        return result

    return reset


def instrument_teams(patches: Patches, module: ModuleType) -> None:
    """Make a team a program until it is reset; `run` uses `run_stream`."""
    team = getattr(module, "BaseGroupChat", None)
    patches.apply(team, "run_stream", _make_team_run_stream)
    patches.apply(team, "reset", _make_reset)


def instrument_agents(patches: Patches, module: ModuleType) -> None:
    """Make each run of a single agent a program."""
    agent = getattr(module, "BaseChatAgent", None)
    patches.apply(agent, "run", _make_run)
    patches.apply(agent, "run_stream", _make_agent_run_stream)
