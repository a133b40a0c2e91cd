"""Decides which origins receive headers: configured ones, else nearby hosts that answered as Autellix."""

from __future__ import annotations

import threading

from autellix._environment import PORTS
from autellix._faults import log_warning

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autellix._environment import Origin

    Credentials = tuple[bytes | None, ...]
    """The values of KEY_HEADERS."""

UNKNOWN = "unknown"
KNOWN = "known"
FOREIGN = "foreign"

KEY_HEADERS = (b"authorization", b"x-api-key", b"api-key")
"""The headers that may carry an API key, in lower case."""
NO_KEY: Credentials = (None, None, None)
MAX_ACCOUNTS = 1024
LOOPBACK = ("127.0.0.1", "localhost", "::1")
MAX_MISSED = 20
"""Calls without an identity after which a warning is logged."""
MAX_DISCOVERED = 16
"""Backends that are known by their answers alone; each gets connections, heartbeats and identities."""
MAX_SEEN = 4096
"""Origins that are remembered."""
PATIENCE_S = 2.0
"""The time limit of a whole exchange, from the connection to the last byte."""
MIN_PATIENCE_S = 0.5

PRIVATE_NETWORKS = (
    "127.0.0.0/8",
    "0.0.0.0/32",
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "169.254.0.0/16",
    "::1/128",
    "fc00::/7",
    "fe80::/10",
)


class Backend:
    """An origin that calls go to; `state` is UNKNOWN, KNOWN or FOREIGN.

    A configured origin is known from the start. Any other is probed: its first call waits briefly for the
    answer, and no call carries headers before it.
    """

    def __init__(self, origin: Origin, root: str, *, is_configured: bool, uds: str | None = None) -> None:
        self.origin = origin
        self.root = root
        self.uds = uds
        """The path of the unix socket by which it is reached, in place of the origin's host and port."""
        self.is_configured = is_configured
        self.patience_s = PATIENCE_S
        """How long an exchange with it may take."""
        self._accounts: dict[Credentials, Account] = {}
        self.reset_probe()

    def reset_probe(self) -> None:
        self.state = KNOWN if self.is_configured else UNKNOWN
        self.has_waited = self.is_configured
        self._is_probed = threading.Event()

    def account(self, credentials: Credentials) -> Account:
        """Return the account of an API key, given by the values of KEY_HEADERS."""
        if (found := self._accounts.get(credentials)) is not None:
            return found
        while len(self._accounts) >= MAX_ACCOUNTS:
            self._accounts.pop(next(iter(self._accounts)), None)
        # setdefault: two threads that make their first call at once share one account.
        return self._accounts.setdefault(credentials, Account(self, credentials))

    def finish_probe(self, state: str) -> None:
        """Record the result of a probe, UNKNOWN if there was no answer, and release those who wait for it."""
        self.state = state
        self._is_probed.set()

    def lose_patience(self) -> None:
        """Halve the time limit of a discovered backend that did not answer: it must not delay others."""
        if not self.is_configured:
            self.patience_s = max(MIN_PATIENCE_S, self.patience_s / 2)

    @property
    def is_probed(self) -> bool:
        """Whether the first probe has finished."""
        return self._is_probed.is_set()

    @property
    def needs_wait(self) -> bool:
        """Whether a call should wait for the first probe."""
        return self.state == UNKNOWN and not self.is_probed and not self.has_waited

    def wait(self, limit_s: float) -> None:
        self._is_probed.wait(limit_s)


class Account:
    """One API key at one backend: a session is registered for each."""

    __slots__ = ("backend", "headers")

    def __init__(self, backend: Backend, credentials: Credentials) -> None:
        self.backend = backend
        self.headers: dict[str, str] = {}
        """What the requests of the sessions API carry: the calls' own key."""
        for name, value in zip(KEY_HEADERS, credentials, strict=True):
            if value is not None:
                self.headers[name.decode("ascii")] = value.decode("latin-1")


def key_headers(api_key: str | None) -> Credentials:
    """Return the values of KEY_HEADERS for a key of the OpenAI API, or for none."""
    return NO_KEY if api_key is None else (f"Bearer {api_key}".encode(), None, None)


def is_near(host: str) -> bool:
    """Return whether a host is local, in a private network, or a name without dots."""
    host = host.strip("[]").rstrip(".").lower()
    if host == "localhost" or host.endswith(".localhost"):
        return True
    if "." not in host and ":" not in host:
        # A label that starts with a digit may be an address written as one number (134744072 is 8.8.8.8).
        return host[:1].isalpha()
    return _is_private_address(host)


def _is_private_address(host: str) -> bool:
    import ipaddress

    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    address = getattr(address, "ipv4_mapped", None) or address
    return any(address in ipaddress.ip_network(network) for network in PRIVATE_NETWORKS)


class BackendRegistry:
    """The origins seen so far, and the rule that admits them."""

    def __init__(self) -> None:
        self._missed = 0
        self._has_warned = False
        self.has_reached = False
        """Whether a call has carried an identity to a backend."""
        self.configure({})

    def configure(self, roots: dict[Origin, str]) -> None:
        """Admit these origins only, or nearby hosts if there are none; drop all results of probes."""
        self._configured = roots
        self._discovered = 0
        self._seen: dict[tuple[str, str, int, str | None], Backend | None] = {}
        self.generation = object()
        """A new object after each change of the rule, for caches."""

    def find(
        self, scheme: str, host: str, port: int | None, path: str, uds: str | None = None
    ) -> Backend | None:
        """Return the backend at an origin, or behind a unix socket; None if it gets no headers."""
        origin = (scheme, host, port or PORTS.get(scheme, 0))
        try:
            backend = self._seen[*origin, uds]
        except KeyError:
            self._forget_some()
            # setdefault: two threads that see an origin first share one record.
            backend = self._seen.setdefault((*origin, uds), self._admit(origin, path, uds))
        return None if backend is None or backend.state == FOREIGN else backend

    def _admit(self, origin: Origin, path: str, uds: str | None) -> Backend | None:
        if self._configured:
            root = self._configured_root(origin)
            return None if root is None else Backend(origin, root, is_configured=True, uds=uds)
        # A unix socket is on this machine, whatever the address says.
        if origin[0] not in PORTS or not (uds or is_near(origin[1])):
            return None
        return _discovered(origin, path, uds)

    def _configured_root(self, origin: Origin) -> str | None:
        scheme, host, port = origin
        # The names of this machine: which of them a client uses is chance.
        names = LOOPBACK if host in LOOPBACK else (host,)
        roots = (self._configured.get((scheme, name, port)) for name in (host, *names))
        return next((root for root in roots if root is not None), None)

    def discover(self, scheme: str, host: str, port: int | None, path: str) -> bool:
        """Admit an origin that has answered as Autellix; return False where others are configured."""
        origin = (scheme, host, port or PORTS.get(scheme, 0))
        backend = self._seen.get((*origin, None))
        if backend is None:
            if self._configured or scheme not in PORTS:
                self._warn_unlisted(origin)
                return False
            if self._is_full():
                return False
            self._forget_some()
            backend = self._seen[*origin, None] = _discovered(origin, path)
            self.generation = object()
        return self.confirm(backend)

    def confirm(self, backend: Backend) -> bool:
        """Note that a host has answered as Autellix; return False if too many others have."""
        if backend.state == KNOWN:
            return True
        if self._is_full():
            backend.finish_probe(FOREIGN)
            return False
        self._discovered += 1
        backend.finish_probe(KNOWN)
        return True

    def _is_full(self) -> bool:
        if self._discovered < MAX_DISCOVERED:
            return False
        if not self._has_warned:
            self._has_warned = True
            log_warning(
                "%d hosts have answered as Autellix backends; calls to further ones are in no program. Set "
                "AUTELLIX_BASE_URL to the backends",
                MAX_DISCOVERED,
            )
        return True

    def _forget_some(self) -> None:
        """Forget the oldest origins that get no identity, if there are many."""
        if len(self._seen) >= MAX_SEEN:
            for key, backend in list(self._seen.items())[: MAX_SEEN // 2]:
                if backend is None or backend.state != KNOWN:
                    self._seen.pop(key, None)

    def miss(self, host: str) -> None:
        """Count a call without an identity; warn once after MAX_MISSED of them if none reached a backend."""
        if self._has_warned or self.has_reached:
            return
        self._missed += 1
        if self._missed >= MAX_MISSED:
            self._has_warned = True
            log_warning(
                "%d calls, and none to an Autellix backend (the last to %s): they are in no program. %s",
                self._missed,
                host,
                self._remedy(),
            )

    def _remedy(self) -> str:
        if not self._configured:
            return (
                "If a gateway is there, set AUTELLIX_BASE_URL to its address; "
                "if not, AUTELLIX_DISABLED=1 ends this."
            )
        origins = ", ".join(f"{scheme}://{name}:{port}" for scheme, name, port in self._configured)
        return f"AUTELLIX_BASE_URL or autellix.configure() name {origins}: is that the clients' base_url?"

    def _warn_unlisted(self, origin: Origin) -> None:
        if not self._has_warned:
            self._has_warned = True
            log_warning(
                "%s://%s:%s is an Autellix backend, but AUTELLIX_BASE_URL or configure() name others: its "
                "calls are in no program",
                *origin,
            )

    def configured(self) -> list[Origin]:
        """List the origins that the user has set."""
        return list(self._configured)

    def admitted(self) -> list[Backend]:
        """List the admitted origins."""
        return [backend for backend in list(self._seen.values()) if backend is not None]


def _discovered(origin: Origin, path: str, uds: str | None = None) -> Backend:
    """Return a backend that is not configured; its root is what precedes `/v1/` in a call's path."""
    root, found, _ = path.partition("/v1/")
    return Backend(origin, root if found else "", is_configured=False, uds=uds)


backends = BackendRegistry()
