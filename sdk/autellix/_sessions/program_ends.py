"""Reports ended programs to their backends, in batches on the control thread."""

from __future__ import annotations

from collections import deque

from autellix._sessions.backends import KNOWN
from autellix._sessions.exchange import exchange_all
from autellix._sessions.session import PENDING, REGISTERED
from autellix_wire.paths import PROGRAMS_PATH

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autellix._sessions.backends import Account
    from autellix._sessions.connection import Request
    from autellix._sessions.control_thread import ControlThread
    from autellix._sessions.session import Registration

MAX_ENDED = 4096
"""Ended programs that wait for the control thread; older ones end when they have been idle."""
BATCH = 128
"""Programs whose ends are sent together."""


class ProgramEnds:
    """The programs whose ends are still to be sent."""

    def __init__(self, control: ControlThread) -> None:
        self._control = control
        self._ended: deque[tuple[Registration, str]] = deque(maxlen=MAX_ENDED)
        self._will_send = False

    def __len__(self) -> int:
        return len(self._ended)

    def add(self, registration: Registration, program_id: str) -> None:
        """End a program at a backend. Never blocks."""
        if registration.state in (REGISTERED, PENDING):
            self._ended.append((registration, program_id))
            self._ensure_sent()

    def _ensure_sent(self) -> None:
        if not self._will_send:
            self._will_send = True
            self._control.post(self._send)

    def _send(self) -> None:
        """Send one batch; the rest follows after what is more urgent."""
        from urllib.parse import quote

        # Before the queue is read: a program that is added later posts another step.
        self._will_send = False
        batches: dict[Account, list[Request]] = {}
        for _ in range(min(len(self._ended), BATCH)):
            registration, program_id = self._ended.popleft()
            account = registration.account
            if account.backend.state == KNOWN:
                path = f"{PROGRAMS_PATH}/{quote(program_id, safe='')}"
                batches.setdefault(account, []).append(("DELETE", path, None, registration.proof()))
        for account, requests in batches.items():
            exchange_all(account, requests)
        if self._ended:
            self._ensure_sent()
