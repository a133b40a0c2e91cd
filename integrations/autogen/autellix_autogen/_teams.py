"""Patches autogen_agentchat: a team is a program until its reset, and a run of a lone agent is one."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections import deque
from typing import TYPE_CHECKING

from autellix.integration import end_program, ids, root_scope, running_thread, safely
from autellix_autogen._causality import follow, history_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from types import ModuleType
    from typing import Any

    from autellix.integration import Patches, ProgramScope

ATTRIBUTE = "_autellix_program"
"""The attribute of a team that holds its program."""

_abandoned: deque[str] = deque()
"""Programs of collected teams. A finalizer may run anywhere and must take no lock, so it adds to this."""


class TeamProgram:
    """The program of a team's runs until its reset."""

    def __init__(self, team: object, program_id: str) -> None:
        self.program_id = program_id
        self._finalizer = weakref.finalize(team, _abandon, program_id)
        # At exit the session ends, and its programs with it.
        self._finalizer.atexit = False

    def end(self) -> None:
        """End the program."""
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
    program = vars(team).get(ATTRIBUTE)
    program_id = ids.make("program") if program is None else program.program_id
    scope = root_scope(team.name, program_id, ends=False)
    if scope is not None and program is None:
        setattr(team, ATTRIBUTE, TeamProgram(team, program_id))
    return scope


def _agent_scope(agent: Any) -> ProgramScope | None:
    return root_scope(agent.name)


def _end_program(team: Any) -> None:
    program = vars(team).pop(ATTRIBUTE, None)
    if program is not None:
        program.end()


def _follow_manager(team: Any) -> None:
    """Let the caller depend on the team's calls: the manager has handled each agent's answer."""
    from autogen_core import AgentId

    manager_id = AgentId(type=team._group_chat_manager_topic_type, key=team._team_id)
    manager = team._runtime._instantiated_agents.get(manager_id)
    thread = running_thread()
    history = None if manager is None else history_of(manager, thread.program.program_id)
    if history is not None:
        follow(thread, history.past)


def _patch_stream(
    original: Callable[..., Any],
    scope_of: Callable[[Any], ProgramScope | None],
    at_end: Callable[[Any], None] | None = None,
) -> Callable[..., Any]:
    async def run_stream(self: Any, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        with safely(scope_of, self) or contextlib.nullcontext():
            stream = original(self, *args, **kwargs)
            try:
                async for item in stream:
                    yield item
            finally:
                # Where the consumer leaves early, the team's tasks end inside the scope.
                close = getattr(stream, "aclose", None)
                if close is not None:
                    await close()
                if at_end is not None:
                    safely(at_end, self)

    return run_stream


def _patch_run(original: Callable[..., Any]) -> Callable[..., Any]:
    async def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        with safely(_agent_scope, self) or contextlib.nullcontext():
            return await original(self, *args, **kwargs)

    return run


def _patch_reset(original: Callable[..., Any]) -> Callable[..., Any]:
    async def reset(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = await original(self, *args, **kwargs)
        safely(_end_program, self)
        return result

    return reset


def instrument_teams(patches: Patches, module: ModuleType) -> None:
    """Make a team a program until it is reset; `run` uses `run_stream`."""
    make = functools.partial(_patch_stream, scope_of=_team_scope, at_end=_follow_manager)
    patches.apply(module, "BaseGroupChat.run_stream", make)
    patches.apply(module, "BaseGroupChat.reset", _patch_reset)


def instrument_agents(patches: Patches, module: ModuleType) -> None:
    """Make each run of a lone agent a program."""
    patches.apply(module, "BaseChatAgent.run", _patch_run)
    patches.apply(module, "BaseChatAgent.run_stream", functools.partial(_patch_stream, scope_of=_agent_scope))
