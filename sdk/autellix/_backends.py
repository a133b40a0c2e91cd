"""Owns which origins get headers: configured ones, else near hosts that have answered as Autellix."""

from __future__ import annotations

import threading

from autellix import _config

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autellix._config import Origin

ASKED = "asked"
KNOWN = "known"
FOREIGN = "foreign"

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
    """What is known of one origin; `state` is one of the three constants above.

    A configured origin is known from the start. Another one is asked: its first call waits for the answer,
    for a moment, and no call carries headers before it.
    """

    __slots__ = ("_is_decided", "authorization", "is_configured", "is_waited_for", "origin", "root", "state")

    def __init__(self, origin: Origin, root: str, *, is_configured: bool) -> None:
        self.origin = origin
        self.root = root
        self.is_configured = is_configured
        self.authorization: str | None = None
        self.renew()

    def renew(self) -> None:
        """Forget that this origin was asked; what it is does not change with the session."""
        self.state = KNOWN if self.is_configured else ASKED
        self.is_waited_for = self.is_configured
        self._is_decided = threading.Event()

    def decide(self, state: str) -> None:
        """Record what the origin has turned out to be; ASKED if it did not answer. Ends the wait for it."""
        self.state = state
        self._is_decided.set()

    @property
    def is_decided(self) -> bool:
        """Whether the first attempt to ask has come to an end."""
        return self._is_decided.is_set()

    def wait(self, limit_s: float) -> None:
        """Wait until the first attempt to ask has come to an end."""
        self._is_decided.wait(limit_s)


def is_near(host: str) -> bool:
    """Tell whether a host is this machine, in a private network, or a single label; names no public host."""
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


class Backends:
    """The origins seen so far, and the rule that admits them."""

    def __init__(self) -> None:
        self._configured: dict[Origin, str] = {}
        self._seen: dict[Origin, Backend | None] = {}
        self.origins = object()
        """Another object after each change of what is admitted."""

    def configure(self, roots: dict[Origin, str]) -> None:
        """Admit these origins only, or near hosts if there are none; forget what was learned of origins."""
        self._configured = roots
        self._seen = {}
        self.origins = object()

    def find(self, scheme: str, host: str, port: int | None, path: str) -> Backend | None:
        """Return the backend at an origin, or None if it is none and gets no headers."""
        origin = (scheme, host, port or _config.PORTS.get(scheme, 0))
        try:
            backend = self._seen[origin]
        except KeyError:
            # setdefault: of two threads that meet an origin first, both get the same record.
            backend = self._seen.setdefault(origin, self._admit(origin, path))
        return None if backend is None or backend.state == FOREIGN else backend

    def _admit(self, origin: Origin, path: str) -> Backend | None:
        if self._configured:
            if origin not in self._configured:
                return None
            return Backend(origin, self._configured[origin], is_configured=True)
        if origin[0] not in _config.PORTS or not is_near(origin[1]):
            return None
        root, found, _ = path.partition("/v1/")
        return Backend(origin, root if found else "", is_configured=False)

    def known(self) -> list[Backend]:
        """List the admitted origins."""
        return [backend for backend in list(self._seen.values()) if backend is not None]


backends = Backends()
