"""The choice of a Ray Serve replica for a request, without any import of Ray.

Ray Serve shows its routers requests, not answers, and has no process table. So prompt lengths are estimates,
replicas' speeds are not learned, and a program ends with its final call or when it has been idle.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from autellix_backend.core.balance import ArrivingCall, EngineLoad, make_balancer
from autellix_backend.core.balance.locality import DEFAULT_THRESHOLD_TOKENS
from autellix_backend.core.balance.speed import DECODE_GUESS_S, PREFILL_GUESS_S
from autellix_backend.identity.aliases import resolve_aliases
from autellix_wire.ids import InvalidIdError

BYTES_PER_TOKEN = 4
PROMPT_FIELDS = ("messages", "prompt", "input")
MAX_PROGRAMS = 65_536
"""The programs that are remembered: clients choose the names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedCall:
    """The facts of a request to a deployment."""

    program_id: str | None
    """The program's id; None if the request names no program."""
    prompt_tokens: int
    is_final: bool = False


def replica_load(name: str, calls: int, slots: int) -> EngineLoad:
    """Return the load of a replica by its known calls and its greatest number of concurrent ones."""
    running = min(calls, slots)
    return EngineLoad(
        name=name,
        running=running,
        waiting=calls - running,
        slots=slots,
        prefill_s_per_token=PREFILL_GUESS_S,
        decode_s_per_token=DECODE_GUESS_S,
    )


class ServePlacement:
    """A balancer with the last moment of each program."""

    def __init__(
        self,
        balancer: str = "locality",
        threshold_tokens: int = DEFAULT_THRESHOLD_TOKENS,
        program_idle_s: float = 600.0,
    ) -> None:
        """Start without programs.

        Raises:
            UnknownBalancerError: no balancer has this name.
        """
        self._balancer = make_balancer(balancer, threshold_tokens)
        self._program_idle_s = program_idle_s
        self._seen_s: OrderedDict[str, float] = OrderedDict()

    def ranked(self, call: ServedCall, replicas: Iterable[EngineLoad], now: float) -> list[str]:
        """Return the names of one or more replicas, the best first, the others in case it is full."""
        self._forget_idle(now)
        # Ray lists them in no order, and the first of equals wins.
        loads = sorted(replicas, key=lambda replica: replica.name)
        others = [load.name for load in sorted(loads, key=lambda load: load.calls)]
        if call.program_id is None:
            return others
        self._seen_s[call.program_id] = now
        self._seen_s.move_to_end(call.program_id)
        if len(self._seen_s) > MAX_PROGRAMS:
            self._forget(next(iter(self._seen_s)))
        best = self._balancer.assign(ArrivingCall(call.program_id, call.prompt_tokens), loads)
        return [best, *(name for name in others if name != best)]

    def sent(self, call: ServedCall) -> None:
        """Note that a replica accepted the call."""
        if call.is_final and call.program_id is not None:
            self._forget(call.program_id)

    def _forget_idle(self, now: float) -> None:
        while self._seen_s:
            program_id, seen_s = next(iter(self._seen_s.items()))
            if now - seen_s < self._program_idle_s:
                return
            self._forget(program_id)

    def _forget(self, program_id: str) -> None:
        self._seen_s.pop(program_id, None)
        self._balancer.forget(program_id)


def read_call(args: Sequence[object], session_id: str = "") -> ServedCall:
    """Read a request from the arguments that Ray Serve forwards.

    They are a request object with its prompt and one with its headers (Ray Serve's LLM deployments), or an
    HTTP request (a deployment that is its own ingress).

    `session_id` is Ray Serve's own id of the session, "" if there is none.
    """
    headers = next(filter(None, map(_headers, args)), {})
    try:
        aliases = resolve_aliases(headers, {})
    except InvalidIdError:
        # The engine, or a gateway, rejects it; here it has no program.
        return ServedCall(program_id=None, prompt_tokens=_prompt_tokens(args, headers))
    program_id = aliases.program or session_id or None
    return ServedCall(
        program_id=program_id, prompt_tokens=_prompt_tokens(args, headers), is_final=aliases.final is not None
    )


def _headers(argument: object) -> dict[str, str]:
    scope = getattr(argument, "asgi_scope", None)
    if isinstance(scope, Mapping):
        pairs = scope.get("headers", ())
        return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in pairs}
    headers = getattr(argument, "headers", None)
    if isinstance(headers, Mapping):
        return {str(name).lower(): str(value) for name, value in headers.items()}
    return {}


def _prompt_tokens(args: Sequence[object], headers: Mapping[str, str]) -> int:
    prompts = (getattr(argument, name, None) for argument in args for name in PROMPT_FIELDS)
    prompt = next((prompt for prompt in prompts if prompt), None)
    if prompt is not None:
        return len(str(prompt)) // BYTES_PER_TOKEN
    length = headers.get("content-length", "")
    return int(length) // BYTES_PER_TOKEN if length.isdecimal() else 0
