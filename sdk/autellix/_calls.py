"""Owns what a call says of itself: its headers, made once and kept over retries, and who gets them."""

from __future__ import annotations

import sys
import time

from autellix import _backends, _scope
from autellix._backends import Backend, backends
from autellix._session import REGISTERED, control, current_session
from autellix._strand import ids
from autellix_wire import headers as names
from autellix_wire.ids import format_interceptions, format_parents

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from autellix._session import Session
    from autellix._strand import Program

IMPLICIT = "implicit"
TRUNCATED = "truncated"
LONGEST_WAIT_S = 0.05
"""How long the first call to a host that nobody has configured waits to learn whether it is a backend."""
POLL_S = 0.001
_RAW_NAMES: dict[str, tuple[bytes, bytes]] = {}
"""Our headers' names as they are sent and in lower case; there are a dozen."""


class Call:
    """One call of the user's; its headers are made at the first try and kept for the retries."""

    __slots__ = ("headers", "session")

    def __init__(self) -> None:
        self.headers: dict[str, str] | None = None
        self.session: Session | None = None


def backend_of(url: Any) -> Backend | None:
    """Return the backend that an address, as HTTP clients hold them, belongs to; None if it is none."""
    return backends.find(url.scheme, url.host, url.port, url.path)


def annotate(backend: Backend, call: Call, request: Any) -> None:
    """Add our headers to one try of a call, and start the session if that is due."""
    if backend.state == _backends.FOREIGN:
        # The answer has come while the call waited for it.
        return
    session = call.session or current_session()
    ours: dict[str, str] = {}
    if backend.state != _backends.ASKED:
        if call.headers is None:
            call.headers, session = _headers(backend)
            call.session = session
        ours = call.headers
    link = session.link(backend)
    if link.state != REGISTERED:
        backend.authorization = _authorization(request.headers)
    elif link.token is not None:
        # Not kept with the others: a retry sends the token that has arrived since.
        ours = {**ours, names.SESSION_TOKEN: link.token}
    if ours:
        _add(request.headers, ours)
    control().touch(backend, session)


def _add(headers: Any, ours: dict[str, str]) -> None:
    """Add headers to a request of httpx; one that the user has set stays."""
    entries = _entries(headers)
    if entries is None:
        for name, value in ours.items():
            headers.setdefault(name, value)
        return
    taken = {entry[1] for entry in entries}
    for name, value in ours.items():
        raw = _RAW_NAMES.get(name)
        if raw is None:
            raw = _RAW_NAMES[name] = (name.encode("ascii"), name.lower().encode("ascii"))
        if raw[1] not in taken:
            entries.append((*raw, value.encode("ascii")))


def _authorization(headers: Any) -> str | None:
    """Return what a request of httpx authorises itself with."""
    entries = _entries(headers)
    if entries is None:
        found: str | None = headers.get("Authorization")
        return found
    for _, lower, value in entries:
        if lower == b"authorization":
            return str(value, "latin-1")
    return None


def _entries(headers: Any) -> list[tuple[bytes, bytes, bytes]] | None:
    """Return what httpx and httpx2 keep: name, lower-case name, value; None if these headers are otherwise.

    Their own ways in and out take ten times as long, and would be most of what a call costs with us.
    """
    entries = getattr(headers, "_list", None)
    return entries if type(entries) is list and entries and len(entries[0]) == 3 else None


def is_to_be_asked(backend: Backend) -> bool:
    """Tell whether nobody has configured a host, and its answer is not known and was not waited for yet."""
    return backend.state == _backends.ASKED and not backend.is_decided and not backend.is_waited_for


def ask(backend: Backend, authorization: str | None) -> None:
    """Ask a host that nobody has configured what it is; its answer is worth a wait."""
    backend.authorization = authorization
    control().touch(backend, current_session())


def wait_for_answer(backend: Backend) -> None:
    """Wait until a host has told what it is, for a moment, once."""
    backend.wait(LONGEST_WAIT_S)
    backend.is_waited_for = True


async def wait_for_answer_async(backend: Backend) -> None:
    """Wait as `wait_for_answer` does, without holding up the event loop."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is None or asyncio._get_running_loop() is None:
        wait_for_answer(backend)
        return
    deadline_s = time.monotonic() + LONGEST_WAIT_S
    while not backend.is_decided and time.monotonic() < deadline_s:
        await asyncio.sleep(POLL_S)
    backend.is_waited_for = True


def _headers(backend: Backend) -> tuple[dict[str, str], Session]:
    strand = _scope.current_strand()
    program = strand.program
    session = strand.session or current_session()
    call_id = ids.make("call")
    parents = strand.advance(call_id)
    program.origins.add(backend)
    headers = {
        names.SESSION_ID: session.session_id,
        names.PROGRAM_ID: program.program_id,
        names.THREAD_ID: str(strand.thread_id),
        names.CALL_ID: call_id,
    }
    if program.name is not None:
        headers[names.PROGRAM_NAME] = program.name
    _add_expectations(headers, program)
    if parents is not None:
        headers[names.PARENT_IDS] = format_parents(parents)
    interceptions = strand.collect_interceptions()
    if interceptions:
        headers[names.INTERCEPTIONS] = format_interceptions(interceptions)
    flags = [IMPLICIT] * program.is_implicit + [TRUNCATED] * strand.is_truncated
    strand.is_truncated = False
    if flags:
        headers[names.FLAGS] = ",".join(flags)
    return headers, session


def _add_expectations(headers: dict[str, str], program: Program) -> None:
    """Say what the program expects yet: calls count down here; tokens are told once and count down there."""
    made = program.calls_made
    program.calls_made = made + 1
    if program.expected_calls is not None and program.expected_calls > made:
        headers[names.EXPECTED_CALLS] = str(program.expected_calls - made)
    if program.expected_tokens is not None and made == 0:
        headers[names.EXPECTED_TOKENS] = str(program.expected_tokens)
