"""Which replicas of a Ray Serve deployment a request should go to; knows nothing of Ray itself.

Ray Serve shows its routers requests, not answers, and has no process table. So the lengths of prompts are
estimates, how fast replicas are is not learnt, and a program is over when it says so or has been idle.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from autellix_backend.core.balance import EngineLoad, make_balancer
from autellix_backend.core.balance.locality import DEFAULT_THRESHOLD_TOKENS
from autellix_backend.core.balance.speed import DECODE_GUESS_S, PREFILL_GUESS_S
from autellix_backend.gateway.identity.aliases import resolve_aliases
from autellix_wire import InvalidIdError

BYTES_PER_TOKEN = 4
PROMPT_FIELDS = ("messages", "prompt", "input")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedCall:
    """What a request to a deployment tells of itself."""

    program_id: str | None
    """None if it names no program."""
    prompt_tokens: int
    is_final: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One replica of the deployment, at one moment."""

    name: str
    calls: int
    """That it has, as far as is known."""
    slots: int
    """Calls that it takes at once."""


class Placing:
    """A balancer, and when its programs were last seen."""

    def __init__(
        self,
        balancer: str = "locality",
        threshold_tokens: int = DEFAULT_THRESHOLD_TOKENS,
        program_idle_s: float = 600.0,
    ) -> None:
        """Begin without programs.

        Raises:
            UnknownBalancerError: no balancer has this name.
        """
        self._balancer = make_balancer(balancer, threshold_tokens)
        self._program_idle_s = program_idle_s
        self._seen_s: OrderedDict[str, float] = OrderedDict()

    def ranked(self, call: ServedCall, replicas: Iterable[Replica], now: float) -> list[str]:
        """Return the replicas' names, the best first; the others follow for when that one is full.

        There must be one at least.
        """
        self._forget_idle(now)
        # Ray's order is none, and the first of equals wins.
        loads = [_load(replica) for replica in sorted(replicas, key=lambda replica: replica.name)]
        others = [load.name for load in sorted(loads, key=lambda load: load.calls)]
        if call.program_id is None:
            return others
        self._seen_s[call.program_id] = now
        self._seen_s.move_to_end(call.program_id)
        best = self._balancer.assign(call.program_id, call.prompt_tokens, loads)
        return [best, *(name for name in others if name != best)]

    def sent(self, call: ServedCall) -> None:
        """Learn that a replica has taken the call."""
        if call.is_final and call.program_id is not None:
            self._forget(call.program_id)

    def __len__(self) -> int:
        return len(self._seen_s)

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
    """Read a request from the arguments that it is passed on with.

    They are a request object with its prompt and one with its headers (Ray Serve's LLM deployments), or an
    HTTP request (a deployment that is its own ingress).

    Args:
        args: The arguments.
        session_id: What Ray Serve itself takes for the session, "" if there is none.
    """
    headers = next(filter(None, map(_headers, args)), {})
    try:
        aliases = resolve_aliases(headers, {})
    except InvalidIdError:
        # The engine, or a gateway, refuses it; here it is nobody's.
        return ServedCall(program_id=None, prompt_tokens=_prompt_tokens(args, headers))
    program_id = aliases.program.value if aliases.program is not None else session_id or None
    return ServedCall(
        program_id=program_id,
        prompt_tokens=_prompt_tokens(args, headers),
        is_final=aliases.final is not None,
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


def _load(replica: Replica) -> EngineLoad:
    running = min(replica.calls, replica.slots)
    return EngineLoad(
        name=replica.name,
        running=running,
        waiting=replica.calls - running,
        slots=replica.slots,
        prefill_s_per_token=PREFILL_GUESS_S,
        decode_s_per_token=DECODE_GUESS_S,
    )
