"""Makes a call's headers once, keeps them for its retries, and adds them to requests to backends."""

from __future__ import annotations

import sys
import time

from autellix._faults import safely
from autellix._ids import ids
from autellix._programs.registry import programs
from autellix._programs.running import running_thread
from autellix._propagation import propagation
from autellix._scopes.scopes import quote_name
from autellix._sessions.backends import FOREIGN, KEY_HEADERS, KNOWN, UNKNOWN, backends, key_headers
from autellix._sessions.keeper import keeper
from autellix._sessions.session import REGISTERED
from autellix_wire import headers as names
from autellix_wire.flags import IMPLICIT, TRUNCATED
from autellix_wire.ids import format_interceptions, format_parents

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from autellix._programs.program import ClientProgram
    from autellix._sessions.backends import Account, Backend, Credentials
    from autellix._sessions.session import ClientSession, Registration

PROBE_WAIT_S = 0.05
"""How long the first call to a host that is not configured waits for its probe."""
POLL_S = 0.001
CALL_EXTENSION = "autellix"
"""The extension of a request that holds its call, for the response: httpx leaves extensions out of copies."""
VERSION_NAME = names.VERSION.lower().encode("ascii")
IDENTITY_SOURCE_NAME = names.IDENTITY_SOURCE.lower().encode("ascii")
PREFIX = "x-autellix-"
"""Of all our headers."""
FOREIGN_TOKEN = b"foreign-token"
"""The identity source of a call whose token the backend refused."""
RAW_NAMES = {
    name: (name.encode("ascii"), name.lower().encode("ascii"))
    for constant, name in vars(names).items()
    if constant.isupper()
}
"""Our header names, as sent and in lower case."""


class CallHeaders:
    """The headers of one call, made at the first attempt and kept for the retries."""

    __slots__ = ("headers", "registration", "session")

    registration: Registration
    """Of the session, where the latest attempt went."""

    def __init__(self) -> None:
        self.headers: dict[str, str] | None = None
        self.session = keeper.process_session

    def for_attempt(self, account: Account) -> dict[str, str]:
        """Return the headers of an attempt, none for an unknown host; register the session if that is due."""
        if account.backend.state == UNKNOWN:
            self.registration = keeper.on_call(account, self.session)
            return {}
        if self.headers is None:
            self.headers, self.session = _make_headers(account)
        registration = self.registration = keeper.on_call(account, self.session)
        if registration.state != REGISTERED or registration.token is None:
            return self.headers
        # Not kept with the other headers: a retry sends a token that has arrived since.
        return {**self.headers, names.SESSION_TOKEN: registration.token}


def backend_of(url: Any, client: Any = None) -> Backend | None:
    """Return the backend at a URL, as an httpx client reaches it; None if it gets no headers."""
    return backends.find(url.scheme, url.host, url.port, url.path, _socket_of(client))


def _socket_of(client: Any) -> str | None:
    """Return the path of the unix socket that an httpx client calls, if it does."""
    pool = getattr(getattr(client, "_transport", None), "_pool", None)
    path = getattr(pool, "_uds", None)
    return path if isinstance(path, str) else None


def annotate(backend: Backend, call: CallHeaders, request: Any) -> None:
    """Add our headers to one attempt of a call, and register the session if that is due."""
    if backend.state == FOREIGN:
        # The probe finished while the call waited for it.
        return
    entries = _entries(request.headers)
    present = _present(request.headers, entries)
    ours = call.for_attempt(_account(backend, present))
    _add(request.headers, entries, present, ours)
    request.extensions[CALL_EXTENSION] = call


def _present(headers: Any, entries: list[tuple[bytes, bytes, bytes]] | None) -> dict[bytes, bytes]:
    """Return the headers of a request by lower-case name."""
    if entries is not None:
        return {entry[1]: entry[2] for entry in entries}
    return {name.lower().encode("latin-1"): value.encode("latin-1") for name, value in headers.items()}


def _account(backend: Backend, present: dict[bytes, bytes]) -> Account:
    """Return the account of the API key in a request's headers."""
    return backend.account(tuple(map(present.get, KEY_HEADERS)))


def _add(
    headers: Any,
    entries: list[tuple[bytes, bytes, bytes]] | None,
    present: dict[bytes, bytes],
    ours: dict[str, str],
) -> None:
    """Add headers to an httpx request; one that the user has set stays."""
    if entries is None:
        for name, value in ours.items():
            headers.setdefault(name, value)
        return
    for name, value in ours.items():
        raw = RAW_NAMES[name]
        if raw[1] not in present:
            entries.append((*raw, value.encode("ascii")))


def headers(url: str, *, api_key: str | None = None) -> dict[str, str]:
    """Return the headers of one call made here and now, for an HTTP client that the client does not patch.

    Each result is one call: use it once, and again only to retry that call.

    Args:
        url: where the call will go; a host that is no backend gets no headers.
        api_key: the key that the call will carry as `Authorization: Bearer`, if any.

    Raises:
        TypeError: if the address or the key is not text.
    """
    if not isinstance(url, str) or not isinstance(api_key, str | None):
        raise TypeError("headers() takes an address and a key as text")
    return safely(headers_for, url, key_headers(api_key)) or {}


def headers_for(url: str, credentials: Credentials) -> dict[str, str]:
    """Return the headers of one call; none for a host that is no backend."""
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    backend = backends.find(parts.scheme, parts.hostname or "", parts.port, parts.path)
    if backend is None or not propagation.is_on:
        return {}
    return CallHeaders().for_attempt(backend.account(credentials))


def observe(response: Any) -> None:
    """Learn from the response to one attempt of a call: where a backend is, and whether our session holds."""
    request, headers = response.request, response.headers
    if request.method != "POST" or not propagation.is_on:
        return
    call = _answered_call(response)
    is_ours = _value(headers, VERSION_NAME) is not None
    if call is not None:
        backend = call.registration.account.backend
        if is_ours and backend.state != KNOWN:
            backends.confirm(backend)
        is_refused = _value(headers, IDENTITY_SOURCE_NAME) == FOREIGN_TOKEN
        keeper.on_answer(call.registration, response.status_code, is_ours=is_ours, is_refused=is_refused)
        return
    url = request.url
    if response.history and response.history[0].url.host != url.host:
        # Another host has sent it here, by a path of its own choice.
        return
    if is_ours:
        backends.discover(url.scheme, url.host, url.port, url.path)
    else:
        backends.miss(url.host)


def _answered_call(response: Any) -> CallHeaders | None:
    """Return the call that a response answers; None if it answers a redirect, which copies the extensions."""
    history = response.history
    if history and history[-1].request is not response.request:
        return None
    call: CallHeaders | None = response.request.extensions.get(CALL_EXTENSION)
    return call


def drop_identity(headers: Any, sender: Any, target: Any) -> None:
    """Remove our headers from a request that a backend redirects to another host."""
    if (sender.host, sender.port) == (target.host, target.port):
        return
    if sender.host == target.host and target.scheme == "https":
        return
    for name in [name for name in headers if name.lower().startswith(PREFIX)]:
        del headers[name]


def _value(headers: Any, name: bytes) -> bytes | None:
    entries = _entries(headers)
    if entries is None:
        found = headers.get(name.decode("ascii"))
        return None if found is None else found.encode("latin-1")
    for _, lower, value in entries:
        if lower == name:
            return value
    return None


def _entries(headers: Any) -> list[tuple[bytes, bytes, bytes]] | None:
    """Return the list inside httpx's headers (name, lower-case name, value), or None if there is none.

    Their public methods take ten times as long, and would be most of the client's cost per call.
    """
    entries = getattr(headers, "_list", None)
    return entries if type(entries) is list and entries and len(entries[0]) == 3 else None


def probe(backend: Backend, headers: Any) -> None:
    """Ask a host that is not configured whether it is an Autellix backend; `headers` may hold the key."""
    present = {} if headers is None else _present(headers, _entries(headers))
    keeper.on_call(_account(backend, present), keeper.process_session)


def wait_for_probe(backend: Backend) -> None:
    """Wait for the probe of a host, briefly and once."""
    backend.wait(PROBE_WAIT_S)
    backend.has_waited = True


async def wait_for_probe_async(backend: Backend) -> None:
    """Wait as `wait_for_probe` does, without blocking the event loop."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is None or asyncio._get_running_loop() is None:
        wait_for_probe(backend)
        return
    deadline_s = time.monotonic() + PROBE_WAIT_S
    while not backend.is_probed and time.monotonic() < deadline_s:
        await asyncio.sleep(POLL_S)
    backend.has_waited = True


def _make_headers(account: Account) -> tuple[dict[str, str], ClientSession]:
    thread = running_thread()
    program = thread.program
    session = thread.open_session() or keeper.process_session
    call_id = ids.make("call")
    parents = thread.record_call(call_id)
    backends.has_reached = True
    registration = session.registration(account)
    program.registrations.add(registration)
    # A value that a header cannot carry would make the user's call fail: each is checked where it enters.
    headers = {
        names.SESSION_ID: registration.session_id,
        names.PROGRAM_ID: program.program_id,
        names.THREAD_ID: str(thread.thread_id),
        names.CALL_ID: call_id,
    }
    if program.name is not None:
        headers[names.PROGRAM_NAME] = program.name
    # This one is checked here, because users may rename tasks and threads at any time.
    thread_name = thread.thread_name
    if thread_name and (thread_name := quote_name(thread_name)):
        headers[names.THREAD_NAME] = thread_name
    _add_expectations(headers, program)
    if parents is not None:
        headers[names.PARENT_IDS] = format_parents(parents)
    interceptions = thread.take_interceptions()
    if interceptions:
        headers[names.INTERCEPTIONS] = format_interceptions(interceptions)
    # A web request's program, for example, is implicit for frameworks, but has a scope.
    is_outside = program.is_implicit and program is programs.implicit
    flags = [IMPLICIT] * is_outside + [TRUNCATED] * thread.is_truncated
    thread.is_truncated = False
    if flags:
        headers[names.FLAGS] = ",".join(flags)
    return headers, session


def _add_expectations(headers: dict[str, str], program: ClientProgram) -> None:
    """Add the expected calls, counted down here, and once the tokens, counted down by the backend."""
    made = program.calls_made
    program.calls_made = made + 1
    if program.expected_calls is not None and program.expected_calls > made:
        headers[names.EXPECTED_CALLS] = str(program.expected_calls - made)
    if program.expected_tokens is not None and made == 0:
        headers[names.EXPECTED_TOKENS] = str(program.expected_tokens)
