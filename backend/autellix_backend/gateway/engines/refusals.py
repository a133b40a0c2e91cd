"""Whose fault a failed answer is, and the pause of an engine that fails calls by its own fault.

| answer | whose fault | may it have run? |
|---|---|---|
| 401, 402, 403, 407 | the engine's; with the client's own key only if another engine takes it | no |
| 404 for a model that the engine lists | the engine's | no |
| 429, 503 | the engine's | no; a proxy's 503 for a connection that broke: yes |
| 500, 502, 504 and other 5xx | the engine's | yes |
| 501, 505 and other 4xx | the client's | |
| 200 with an error object, an error event before a token | by the error's `code`, else as 500 | as there |

A call that cannot have run is sent once to another engine. An engine that fails several programs in a row is
paused for a growing time, and then tried with one call at a time (a circuit breaker). One that has answered
nothing since the gateway met it, or states a Retry-After, is paused at once. If all faults are those of one
tenant, or of one model, the pause is for that one. A pause is a preference: where no other engine takes the
call, this one gets it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from autellix_backend.raw_json import JSON_ERRORS

MAX_FAULTS = 3
"""Programs in a row that an engine fails before it is paused: one program's calls may be what fails."""
PAUSE_S = 5.0
"""The first pause; it doubles."""
MAX_PAUSE_S = 60.0
MAX_STATED_PAUSE_S = 600.0
"""The longest that an engine can ask for."""
MAX_WORDS = 200
"""Characters of an engine's words that are kept."""

_KEYS = frozenset({401, 402, 403, 407})
"""Answers about the key, or the account that it belongs to."""
_REFUSED = frozenset({404, 429, 503})
"""Answers that say that the engine has not begun with the call."""
_BROKEN_BEHIND = b"reset reason: connection termination"
"""Envoy answers 503 too when the engine behind it closes a connection, and may have run the call."""
_FAILED = 500


class Failure(NamedTuple):
    """What a failed answer says."""

    is_engines: bool
    """Whether the engine is at fault, not the client."""
    can_repeat: bool
    """Whether the call cannot have run, and another engine may answer it."""
    is_gateways_key: bool = False
    """Whether it is about the gateway's key, so that its words are none of the client's business."""


class Caller(NamedTuple):
    """Whose call it is, as far as an engine's faults may depend on that."""

    program_id: str
    tenant: str
    model: str | None

    @property
    def traits(self) -> dict[str, str | None]:
        """What its program has in common with others."""
        return {"tenant": self.tenant, "model": self.model}


class _ErrorBody(msgspec.Struct):
    error: dict[str, Any] | str | None = None
    id: str | None = None
    detail: Any = None
    message: str | None = None


def fault_of(status: int, content: bytes, *, lists_model: bool, has_clients_key: bool) -> Failure:
    """Return whose fault an answer is that failed.

    Args:
        status: Its status, or the one in its error object.
        content: Its body.
        lists_model: Whether the engine lists the model of the call, and the call names no other thing there.
        has_clients_key: Whether the engine saw the client's own key.
    """
    if status in _KEYS:
        # A 403 can also be about what the call says.
        is_gateways_key = not has_clients_key and status != 403
        return Failure(is_engines=not has_clients_key, can_repeat=True, is_gateways_key=is_gateways_key)
    if status == 404 and not lists_model:
        return Failure(is_engines=False, can_repeat=False)
    if status in _REFUSED:
        return Failure(is_engines=True, can_repeat=_BROKEN_BEHIND not in content)
    return Failure(is_engines=status >= _FAILED and status not in (501, 505), can_repeat=False)


def error_status(content: bytes) -> int | None:
    """Return the status that a body with an error object stands for; None if it holds an answer."""
    # Within JSON text, quotes are escaped.
    if b'"error"' not in content:
        return None
    found = _decode(content)
    if found is None or not found.error or found.id is not None:
        return None
    code = found.error.get("code") if isinstance(found.error, dict) else None
    return code if isinstance(code, int) and 400 <= code < 600 else _FAILED


def words_of(content: bytes) -> str:
    """Return an engine's words in one line: the message of its error object, else the body."""
    found = _decode(content)
    words: object = None
    if found is not None:
        error = found.error
        words = (error.get("message") if isinstance(error, dict) else error) or found.message or found.detail
    text = str(words) if words else content[: 8 * MAX_WORDS].decode(errors="replace")
    return cut(text)


def cut(text: str) -> str:
    """Return a text in one line of at most MAX_WORDS characters."""
    line = " ".join(text[: 8 * MAX_WORDS].split())
    line = "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in line)
    return line if len(line) <= MAX_WORDS else line[: MAX_WORDS - 1] + "…"


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that an answer asks to wait, None if it states none in seconds."""
    try:
        seconds = float(headers.get("retry-after", ""))
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds > 0 else None


def _decode(content: bytes) -> _ErrorBody | None:
    try:
        return msgspec.json.decode(content, type=_ErrorBody)
    except JSON_ERRORS:
        return None


class Refusals:
    """The calls that an engine has failed by its own fault since it last answered one."""

    def __init__(self, clock: Callable[[], float], on_change: Callable[[bool], None]) -> None:
        """Begin with an engine of which nothing is known.

        Args:
            clock: Monotonic seconds.
            on_change: Is called with whether it refuses calls, when that changes.
        """
        self._clock = clock
        self._on_change = on_change
        self._has_answered = False
        self._pauses = 0
        self.until_s = -math.inf
        """Until when calls of some should go elsewhere; -inf unless it was paused since it answered."""
        self._is_trial = False
        """Whether it is paused for others while one call tries it."""
        self._since_at_s = 0.0
        self._reason = ""
        self._programs: set[str] = set()
        """Programs whose calls it has failed since, up to MAX_FAULTS."""
        self._shared: dict[str, str | None] = {}
        """The traits that all of them have in common: others may well be answered."""
        self._answers_others = False
        """Whether it has answered others since."""

    def __len__(self) -> int:
        """Return the programs that it has failed in a row, which count as calls there."""
        return 0 if self._pauses else len(self._programs)

    @property
    def is_refusing(self) -> bool:
        """Whether it was paused, and has answered no call since."""
        return self._pauses > 0

    @property
    def is_paused(self) -> bool:
        """Whether calls of some should go to other engines at present."""
        return self._clock() < self.until_s

    def pauses(self, caller: Caller) -> bool:
        """Return whether these calls should go to other engines at present."""
        return self.is_paused and self._concerns(caller)

    @property
    def shared(self) -> Mapping[str, str | None]:
        """The tenant and the model of its faults, as far as they are those of one."""
        return self._shared

    @property
    def problem(self) -> str | None:
        """What it answers since when, None if it is not refusing."""
        if not self._pauses:
            return None
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._since_at_s))
        return f"refusing since {since}: {self._reason}"

    def has_failed(self, program_id: str) -> bool:
        """Return whether it has failed a call of a program since it last answered one."""
        return program_id in self._programs

    def on_fault(self, caller: Caller, reason: str, after_s: float | None = None) -> None:
        """Count a call that it failed; `after_s` is when it asks for the next one."""
        if self._answers_others and not self._concerns(caller):
            # Of others, this is the first one in a row.
            self.reset()
        if not self._programs and not self._pauses:
            self._since_at_s, self._shared = time.time(), caller.traits
        self._shared = dict(self._shared.items() & caller.traits.items())
        self._reason = reason
        if len(self._programs) < MAX_FAULTS:
            self._programs.add(caller.program_id)
        is_known = self._has_answered and after_s is None and not self._pauses
        if is_known and len(self._programs) < MAX_FAULTS:
            return
        asked_s = min(after_s or 0.0, MAX_STATED_PAUSE_S)
        if self.is_paused and not self._is_trial:
            # Calls that were sent before the pause say nothing new.
            self.until_s = max(self.until_s, self._clock() + asked_s)
            return
        self._pauses += 1
        self._is_trial = False
        self.until_s = self._clock() + max(self._pause_s, asked_s)
        if self._pauses == 1:
            self._on_change(True)

    def on_sent(self, caller: Caller) -> None:
        """Note that a call is sent: after a pause it is a trial, which others wait for."""
        if self._pauses and not self.is_paused and self._concerns(caller):
            self._is_trial = True
            self.until_s = self._clock() + self._pause_s

    def on_answered(self, caller: Caller) -> None:
        """Note that it answered a call."""
        self._has_answered = True
        if not self._pauses and not self._programs:
            return
        if self._concerns(caller):
            self.reset()
        else:
            self._answers_others = True

    def reset(self) -> None:
        """Forget its faults, because it answered, or was started again."""
        was_refusing, self._pauses, self.until_s, self._is_trial = self._pauses > 0, 0, -math.inf, False
        self._programs.clear()
        self._shared, self._answers_others = {}, False
        if was_refusing:
            self._on_change(False)

    def _concerns(self, caller: Caller) -> bool:
        # A request that names no model may be for any.
        is_model = caller.model is None or self._shared.get("model") in (None, caller.model)
        return is_model and self._shared.get("tenant", caller.tenant) == caller.tenant

    @property
    def _pause_s(self) -> float:
        return min(MAX_PAUSE_S, PAUSE_S * 2.0 ** (min(self._pauses, 10) - 1))
