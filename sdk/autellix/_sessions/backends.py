"""Decides which addresses receive headers: the configured ones, else those that have answered as Autellix."""

from __future__ import annotations

import weakref

from autellix._environment import PORTS
from autellix._faults import log_warning

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from autellix._environment import Address, Origin
    from autellix._sessions.route import Route

    Credentials = tuple[bytes | None, ...]
    """The values of KEY_HEADERS."""

KEY_HEADERS = (b"authorization", b"x-api-key", b"api-key")
"""The headers that may carry an API key, in lower case."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")
DEFAULT_PORT = 8000
"""Where `autellix serve` listens on this machine, and where a backend is expected without configuration."""
CALLS = "/v1/"
"""What follows a backend's root in the path of a call."""
MAX_MISSED = 20
"""Calls without an identity after which a warning is logged."""
MAX_DISCOVERED = 16
"""Backends that are known by their answers alone; each gets a thread, heartbeats and identities."""
PROOF_VARIABLE = "AUTELLIX_SESSION_PROOF"


class Backend:
    """An address that calls go to: an origin, and the root path below which a gateway serves."""

    def __init__(self, origin: Origin, root: str, *, is_configured: bool) -> None:
        self.origin = origin
        self.root = root
        self.is_configured = is_configured
        self.has_answered = False
        """Whether an answer to a call carried the mark."""
        self._accounts: weakref.WeakValueDictionary[int, Account] = weakref.WeakValueDictionary()
        self._proof = ""

    def serves(self, path: str) -> bool:
        """Return whether a path is below the root, and not below that of another service there."""
        if not path.startswith(self.root + "/"):
            return False
        rest = path[len(self.root) :]
        return rest.startswith(CALLS) or CALLS not in rest

    def account(self, credentials: Credentials, earlier: Account | None = None) -> Account:
        """Return the account of an API key; a new key of a client continues its `earlier` account."""
        # Not by the key itself, which is kept only where it is needed.
        mark = hash(credentials)
        if (found := self._accounts.get(mark)) is not None:
            return found
        account = Account(self) if earlier is None else earlier
        self._accounts.pop(account.mark, None)
        account.mark = mark
        # setdefault: two threads that make their first call at once share one account.
        return self._accounts.setdefault(mark, account)

    @property
    def url(self) -> str:
        """The address of the root."""
        scheme, host, port = self.origin
        shown_host = f"[{host}]" if ":" in host else host
        shown_port = "" if port == PORTS.get(scheme) else f":{port}"
        return f"{scheme}://{shown_host}{shown_port}{self.root}"

    @property
    def proof(self) -> str:
        """The secret by which a strict backend knows this process and its children.

        A host that the user has not named gets one of its own, which proves nothing to another host.
        """
        if not self._proof:
            import hashlib
            import os

            secret = os.environ.get(PROOF_VARIABLE) or os.urandom(16).hex()
            secret = os.environ.setdefault(PROOF_VARIABLE, secret)
            _, host, port = self.origin
            # A child may call this machine by another of its names.
            host = "localhost" if host in LOOPBACK else host
            scope = "" if self.is_configured else f" {host}:{port}"
            self._proof = hashlib.sha256(f"{secret}{scope}".encode()).hexdigest()[:32]
        return self._proof


class Account:
    """One user of a backend: an API key, or the keys that one client object has had in turn."""

    __slots__ = ("__weakref__", "backend", "credentials", "mark", "route")

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.mark = 0
        """Tells keys apart."""
        self.credentials: Credentials | None = None
        """The latest key that the backend has taken; None until then."""
        self.route: Route | None = None
        """The way that its calls take; None where nothing but calls may go."""


def key_headers(api_key: str | None) -> Credentials:
    """Return the values of KEY_HEADERS for a key of the OpenAI API, or for none."""
    return (None if api_key is None else f"Bearer {api_key}".encode(), None, None)


class BackendRegistry:
    """The backends known so far, and the rule that admits them."""

    def __init__(self) -> None:
        self._missed = 0
        self._unidentified = 0
        self._has_warned = False
        self.has_reached = False
        """Whether a call has carried an identity to a backend."""
        self.configure(())

    def configure(self, addresses: Iterable[Address]) -> None:
        """Admit these addresses; if there are none, the default one and those that answer as Autellix."""
        self._roots: dict[Origin, list[str]] = {}
        for origin, root in addresses:
            self._roots.setdefault(origin, []).append(root)
        self._backends: dict[tuple[str, str, int, str | None], tuple[Backend, ...]] = {}
        self.generation = object()
        """A new object after each change of the rule, for caches."""

    def find(
        self, scheme: str, host: str, port: int | None, path: str, uds: str | None = None
    ) -> Backend | None:
        """Return the backend that serves a path at an origin, or behind a unix socket; None if none does."""
        key = (scheme, host, port or PORTS.get(scheme, 0), uds)
        found = self._backends.get(key)
        if found is None and (backends := self._expected(key[:3], uds)):
            # setdefault: two threads that see an origin first share its backends.
            found = self._backends.setdefault(key, backends)
        serving = [backend for backend in found or () if backend.serves(path)]
        return max(serving, key=lambda backend: len(backend.root), default=None)

    def _expected(self, origin: Origin, uds: str | None) -> tuple[Backend, ...]:
        """Return the backends at an origin that are known before any answer."""
        scheme, host, port = origin
        # The names of this machine: which of them a client uses is chance.
        names = (host, *LOOPBACK) if host in LOOPBACK else (host,)
        roots = next(filter(None, (self._roots.get((scheme, name, port)) for name in names)), [])
        if not self._roots and host in LOOPBACK and (scheme, port, uds) == ("http", DEFAULT_PORT, None):
            return (Backend(origin, "", is_configured=False),)
        return tuple(Backend(origin, root, is_configured=True) for root in roots)

    def reject(self, backend: Backend) -> None:
        """Note that a server has answered without the mark: the one at the default address is no backend."""
        if not (backend.is_configured or backend.has_answered):
            self._backends[*backend.origin, None] = ()
            self.has_reached, self.generation = False, object()

    def discover(self, scheme: str, host: str, port: int | None, path: str, uds: str | None = None) -> None:
        """Admit an address that has answered a call as Autellix, unless the user has configured others."""
        key = (scheme, host, port or PORTS.get(scheme, 0), uds)
        root, is_call, _ = path.partition(CALLS)
        if self.find(*key[:3], path, uds) is not None:
            return
        if self._roots:
            self._warn_once(
                "%s://%s:%s%s is an Autellix backend, but AUTELLIX_BASE_URL or configure() name others: its "
                "calls are in no program",
                *key[:3],
                root,
            )
        elif is_call and scheme in PORTS:
            if len(self.known()) >= MAX_DISCOVERED:
                self._warn_once(
                    "%d hosts have answered as Autellix backends; calls to further ones are in no program. "
                    "Set AUTELLIX_BASE_URL to the backends",
                    MAX_DISCOVERED,
                )
                return
            backend = Backend(key[:3], root, is_configured=False)
            backend.has_answered = True
            self._backends[key] = (*self._backends.get(key, ()), backend)
            self.generation = object()

    def count_unidentified(self, host: str) -> None:
        """Count a call that a backend has answered although it carried nothing of ours; warn once of them.

        After MAX_MISSED: the calls that were under way when it was discovered carried nothing either.
        """
        self._unidentified += 1
        if self._unidentified == MAX_MISSED:
            self._warn_once(
                "%d calls to %s, an Autellix backend, were in no program: the client does not know this "
                "version of the library that made them. What that lacks is in autellix.status().missing",
                MAX_MISSED,
                host,
            )

    def miss(self, host: str) -> None:
        """Count a call without an identity; warn once after MAX_MISSED of them if none reached a backend."""
        if self._has_warned or self.has_reached:
            return
        self._missed += 1
        if self._missed >= MAX_MISSED:
            self._warn_once(
                "%d calls, and none to an Autellix backend (the last to %s): they are in no program. %s",
                self._missed,
                host,
                self._remedy(),
            )

    def _remedy(self) -> str:
        if not self._roots:
            return (
                "If a gateway is there, set AUTELLIX_BASE_URL to its address; "
                "if not, AUTELLIX_DISABLED=1 ends this."
            )
        urls = ", ".join(self.configured())
        return f"AUTELLIX_BASE_URL or autellix.configure() name {urls}: is that the clients' base_url?"

    def _warn_once(self, message: str, *args: object) -> None:
        if not self._has_warned:
            self._has_warned = True
            log_warning(message, *args)

    def configured(self) -> list[str]:
        """List the addresses that the user has set."""
        return [
            Backend(origin, root, is_configured=True).url
            for origin, roots in self._roots.items()
            for root in roots
        ]

    def known(self) -> list[Backend]:
        """List the backends that calls may go to, as far as one has been made or discovered."""
        return [backend for found in list(self._backends.values()) for backend in found]


backends = BackendRegistry()
