"""Makes a call's headers once, keeps them for its retries, and adds them to requests to backends."""

from __future__ import annotations

from autellix._faults import safely
from autellix._ids import ids
from autellix._programs.registry import programs
from autellix._programs.running import running_thread
from autellix._propagation import propagation
from autellix._scopes.scopes import quote_name
from autellix._sessions.backends import KEY_HEADERS, backends, key_headers
from autellix._sessions.keeper import keeper
from autellix._sessions.route import route_of, socket_of
from autellix_wire import headers as names
from autellix_wire.flags import IMPLICIT, TRUNCATED
from autellix_wire.ids import format_interceptions, format_parents

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from autellix._programs.program import ClientProgram
    from autellix._programs.thread import ProgramThread
    from autellix._sessions.backends import Account, Backend, Credentials
    from autellix._sessions.session import ClientSession, Registration

CALL_PATHS = (
    *("/completions", "/responses", "/v1/messages"),
    *("/embeddings", "/score", "/rerank", "/classify", "/pooling"),
)
"""How the paths end whose requests are calls, as the gateway has them."""
CALL_EXTENSION = "autellix"
"""The extension of a request that holds its call, for the response: httpx leaves extensions out of copies."""
VERSION_NAME = names.VERSION.lower().encode("ascii")
PREFIX = "x-autellix-"
"""Of all our headers."""
RAW_NAMES = {
    name: (name.encode("ascii"), name.lower().encode("ascii"))
    for constant, name in vars(names).items()
    if constant.isupper()
}
"""Our header names, as sent and in lower case."""


unsafe_packages: set[str] = set()
"""Versions of httpx whose redirects we cannot keep from carrying ids: their requests get none."""


class CallHeaders:
    """The headers of one call, made at the first attempt and kept for the retries."""

    __slots__ = ("credentials", "headers", "is_call", "registration", "session")

    registration: Registration
    """Of the session, where the latest attempt went."""
    credentials: Credentials
    """The key of the latest attempt."""

    def __init__(self, *, is_call: bool = True) -> None:
        self.headers: dict[str, str] | None = None
        self.session = keeper.process_session
        self.is_call = is_call
        """Whether the request makes a call; any other carries where it belongs, and changes nothing."""

    def for_attempt(self, account: Account, credentials: Credentials) -> dict[str, str]:
        """Return the headers of an attempt by an account, with one of its keys."""
        if self.headers is None:
            self.headers, self.session = _make_headers(account, is_call=self.is_call)
        self.registration, self.credentials = self.session.registration(account), credentials
        # At each attempt: the session may be another one by then.
        self.headers[names.SESSION_ID] = self.registration.session_id
        return self.headers


class Destination:
    """Where an httpx client sends requests: a backend, and the way there."""

    __slots__ = ("_account", "_route", "backend")

    def __init__(self, backend: Backend, client: Any, url: Any) -> None:
        self.backend = backend
        self._route = None if client is None else safely(route_of, client, url)
        self._account: Account | None = None

    def account(self, credentials: Credentials, *, is_clients: bool) -> Account:
        """Return the account of a key.

        Args:
            credentials: The values of KEY_HEADERS.
            is_clients: Whether the key is the client's own, of which one follows the other.
        """
        account = self._account if is_clients else None
        if account is None or account.mark != hash(credentials):
            account = self.backend.account(credentials, account)
            account.route = account.route or self._route
            if is_clients:
                self._account = account
        return account


def destination_of(url: Any, client: Any = None) -> Destination | None:
    """Return where a URL leads, as an httpx client reaches it; None if that gets no headers."""
    backend = backends.find(url.scheme, url.host, url.port, url.path, socket_of(client))
    return None if backend is None else Destination(backend, client, url)


def makes_call(path: str) -> bool:
    """Return whether a POST to a path makes a call, and does not only ask or upload something."""
    return path.endswith(CALL_PATHS) or path.partition("?")[0].endswith(CALL_PATHS)


def annotate(destination: Destination, call: CallHeaders, request: Any, *, is_clients: bool = False) -> None:
    """Add our headers to one attempt of a call.

    Args:
        destination: Where the request goes.
        call: The call, whose earlier attempts had the same headers.
        request: An httpx request.
        is_clients: Whether the key in it is the client's own.
    """
    if unsafe_packages and type(request).__module__.partition(".")[0] in unsafe_packages:
        return
    entries = _entries(request.headers)
    present = _present(request.headers, entries)
    credentials = tuple(map(present.get, KEY_HEADERS))
    ours = call.for_attempt(destination.account(credentials, is_clients=is_clients), credentials)
    _add(request.headers, entries, present, ours)
    request.extensions[CALL_EXTENSION] = call


def _present(headers: Any, entries: list[tuple[bytes, bytes, bytes]] | None) -> dict[bytes, bytes]:
    """Return the headers of a request by lower-case name."""
    if entries is not None:
        return {entry[1]: entry[2] for entry in entries}
    return {name.lower().encode("latin-1"): value.encode("latin-1") for name, value in headers.items()}


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


def headers_for(url: str, credentials: Credentials, *, is_call: bool = True) -> dict[str, str]:
    """Return the headers of one request; none for a host that is no backend."""
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    backend = backends.find(parts.scheme, parts.hostname or "", parts.port, parts.path)
    if backend is None or not propagation.is_on:
        return {}
    return CallHeaders(is_call=is_call).for_attempt(backend.account(credentials), credentials)


def is_annotated(request: Any) -> bool:
    """Return whether a request carries our headers already."""
    return CALL_EXTENSION in request.extensions or names.CALL_ID in request.headers


def observe(response: Any, client: Any = None, call: CallHeaders | None = None) -> None:
    """Learn from the response to one attempt of a call: where a backend is, and that it knows our key.

    Args:
        response: An httpx response.
        client: The httpx client that got it, if that is known.
        call: The call, unless its request carries it.
    """
    if not propagation.is_on:
        return
    is_ours = _has(response.headers, VERSION_NAME)
    call = call or _answered_call(response)
    if call is not None:
        if not is_ours:
            backends.reject(call.registration.account.backend)
        elif response.status_code != 401:
            keeper.on_answer(call.registration, call.credentials)
        elif response.headers.get("x-should-retry") == "true":
            # The key is right, and the session another key's.
            call.session.renew(call.registration)
        return
    url = response.request.url
    if response.history and response.history[0].url.host != url.host:
        # Another host has sent it here, by a path of its own choice.
        return
    is_call = response.request.method == "POST" and makes_call(url.path)
    if is_ours and is_call and destination_of(url, client) is not None:
        backends.count_unidentified(url.host)
    elif is_ours:
        backends.discover(url.scheme, url.host, url.port, url.path, socket_of(client))
    elif is_call:
        backends.miss(url.host)


def _answered_call(response: Any) -> CallHeaders | None:
    """Return the call that a response answers; None if it answers a redirect, which copies the extensions."""
    history = response.history
    if history and history[-1].request is not response.request:
        return None
    call: CallHeaders | None = response.request.extensions.get(CALL_EXTENSION)
    return call


def drop_identity(headers: Any, request: Any, target: Any) -> None:
    """Remove our headers from a redirected request, unless it goes to the same backend."""
    call: CallHeaders | None = request.extensions.get(CALL_EXTENSION)
    sender = request.url
    is_same_host = sender.host == target.host and (sender.port == target.port or target.scheme == "https")
    if is_same_host and call is not None and call.registration.account.backend.serves(target.path):
        return
    for name in [name for name in headers if name.lower().startswith(PREFIX)]:
        del headers[name]


def _has(headers: Any, name: bytes) -> bool:
    entries = _entries(headers)
    if entries is None:
        return name.decode("ascii") in headers
    for entry in entries:  # noqa: SIM110 - a generator would take as long as the rest
        if entry[1] == name:
            return True
    return False


def _entries(headers: Any) -> list[tuple[bytes, bytes, bytes]] | None:
    """Return the list inside httpx's headers (name, lower-case name, value), or None if there is none.

    Their public methods take ten times as long, and would be most of the client's cost per call.
    """
    entries = getattr(headers, "_list", None)
    return entries if type(entries) is list and entries and len(entries[0]) == 3 else None


def _make_headers(account: Account, *, is_call: bool) -> tuple[dict[str, str], ClientSession]:
    thread = running_thread()
    program = thread.program
    # Most threads are in no session of the user's.
    session = (thread.session and thread.open_session()) or keeper.process_session
    backends.has_reached = True
    # A value that a header cannot carry would make the user's call fail: each is checked where it enters.
    headers = {
        names.SESSION_ID: "",
        names.SESSION_PROOF: account.backend.proof,
        names.PROGRAM_ID: program.program_id,
        names.THREAD_ID: str(thread.thread_id),
    }
    if program.name is not None:
        headers[names.PROGRAM_NAME] = program.name
    program.hints.add_lasting(headers)
    # This one is checked here, because users may rename tasks and threads at any time.
    thread_name = thread.thread_name
    if thread_name and (thread_name := quote_name(thread_name)):
        headers[names.THREAD_NAME] = thread_name
    if is_call:
        if program is not programs.implicit:
            # The process's own program is never ended.
            program.note_registration(session.registration(account))
        _add_call(headers, thread, program)
    elif _is_outside(program):
        headers[names.FLAGS] = IMPLICIT
    return headers, session


def _add_call(headers: dict[str, str], thread: ProgramThread, program: ClientProgram) -> None:
    """Record a call, and add its id and what it depends on."""
    call_id = headers[names.CALL_ID] = ids.make("call")
    parents = thread.record_call(call_id)
    program.hints.add_expected(headers, program.calls_made)
    program.calls_made += 1
    if parents is not None:
        headers[names.PARENT_IDS] = format_parents(parents)
    interceptions = thread.take_interceptions()
    if interceptions:
        headers[names.INTERCEPTIONS] = format_interceptions(interceptions)
    if thread.is_truncated:
        thread.is_truncated = False
        headers[names.FLAGS] = f"{IMPLICIT},{TRUNCATED}" if _is_outside(program) else TRUNCATED
    elif _is_outside(program):
        headers[names.FLAGS] = IMPLICIT


def _is_outside(program: ClientProgram) -> bool:
    # A web request's program, for example, is implicit for frameworks, but has a scope.
    return program.is_implicit and program is programs.implicit
