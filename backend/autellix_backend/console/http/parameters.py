"""Parameters of the console's endpoints: its parts, and how to find the programs that a tenant may see."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Annotated, Protocol

from fastapi import Depends
from starlette.requests import Request

from autellix_backend.console.explain.overview import Overview, overview_of
from autellix_backend.console.history.history import PastProgram
from autellix_backend.console.wiring import Console
from autellix_backend.gateway.errors import AdminOnlyError
from autellix_backend.gateway.http.parameters import Store, Tenancy, Tokens, Viewer, is_on_this_machine
from autellix_backend.gateway.requests import read_headers
from autellix_backend.pauses import Pauses
from autellix_backend.stores.base import ProgramView


class Owned(Protocol):
    """A program, living or ended."""

    @property
    def owner(self) -> str | None:
        """Who started its session; None without one."""


async def _console(request: Request) -> Console:
    console: Console = request.app.state.console
    return console


ConsoleParts = Annotated[Console, Depends(_console)]
"""The console's parts."""


async def _overview(console: ConsoleParts) -> Overview:
    return overview_of(console.gateway)


CurrentOverview = Annotated[Overview, Depends(_overview)]
"""The open calls and engines at the moment; an endpoint that waits for a turn names it after the turn."""


async def _is_guarded(tokens: Tokens, tenants: Tenancy, request: Request) -> bool:
    is_open = not tokens.is_strict or tenants.has_keys
    return not is_open and not is_on_this_machine(request)


IsGuarded = Annotated[bool, Depends(_is_guarded)]
"""Whether a client sees its own programs only, though all clients are one tenant."""


async def _is_shown(
    is_guarded: IsGuarded, tokens: Tokens, viewer: Viewer, request: Request
) -> Callable[[Owned], bool]:
    if not is_guarded:
        return lambda _view: True
    owner = await tokens.prove(read_headers(request.scope), viewer)
    return lambda view: view.owner == owner


IsShown = Annotated[Callable[[Owned], bool], Depends(_is_shown)]
"""Whether the caller may see a program of its tenant.

Where identity is strict and there are no keys, only its owner and clients on the gateway's machine may.
"""


async def _take_turn(viewer: Viewer, console: ConsoleParts, request: Request) -> AsyncIterator[Pauses]:
    async with console.turns.turn(viewer, request) as pauses:
        yield pauses


Turn = Annotated[Pauses, Depends(_take_turn, scope="function")]
"""The tenant's turn for a long answer, until it is made; the parameters that follow are read in it."""


async def _living(program_id: str, viewer: Viewer, store: Store, is_shown: IsShown) -> ProgramView | None:
    for scoped_id in viewer.candidates(program_id):
        view = await store.program(scoped_id)
        if view is not None and is_shown(view):
            return view
    return None


Living = Annotated[ProgramView | None, Depends(_living)]
"""The program in the process table; None if the viewer may see none of this id."""


async def _ended(
    program_id: str, viewer: Viewer, console: ConsoleParts, is_shown: IsShown
) -> PastProgram | None:
    found = map(console.history.find, viewer.candidates(program_id))
    return next((program for program in found if program is not None and is_shown(program)), None)


Ended = Annotated[PastProgram | None, Depends(_ended)]
"""The last program of the id that has ended; None if the viewer may see none."""


async def feed_only_to_owners(is_guarded: IsGuarded) -> None:
    """Refuse the feed to clients that may see their own programs only."""
    if is_guarded:
        raise AdminOnlyError("events", "a tenants file, or a client on the gateway's own machine")
