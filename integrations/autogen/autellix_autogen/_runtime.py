"""Patches of autogen_core: messages carry the past of their sender, and an agent's turn starts from it."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple

from autellix.integration import Strand, current_strand, hang, safely, strand_on, swap
from autellix_autogen._turns import Handling, Past, catch_up, follow, lend_thread, past_of, start, turn_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from autellix.integration import Patches

LETTER = "_autellix_letter"
"""The attribute of an envelope that holds what is ours."""


class Letter(NamedTuple):
    """What travels with a message: who sent it, and what the sender had come to at that moment."""

    sender: Strand
    past: Past


class Delivery:
    """One envelope on its way to its recipients: in force until `finish`."""

    __slots__ = ("_before", "_envelope", "_letter", "_strand")

    def __init__(self, envelope: Any, letter: Letter) -> None:
        self._envelope = envelope
        self._letter = letter
        sender = letter.sender
        self._strand = turn_of(sender, sender)
        start(self._strand, letter.past)
        self._before = swap(self._strand)

    def finish(self) -> None:
        """Let the sender follow the answer, if it still waits for one."""
        self._strand.is_closed = True
        swap(self._before)
        future = getattr(self._envelope, "future", None)
        if future is not None and not future.cancelled():
            follow(self._letter.sender, past_of(self._strand))


def _sign(envelope: Any) -> None:
    sender = current_strand()
    setattr(envelope, LETTER, Letter(sender, past_of(sender)))


def _deliver(envelope: Any) -> Delivery | None:
    letter = getattr(envelope, LETTER, None)
    return None if letter is None else Delivery(envelope, letter)


def _make_envelope(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - the name it replaces
        original(self, *args, **kwargs)
        safely(_sign, self)

    return __init__


def _make_process(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    async def process(self: Any, message_envelope: Any) -> None:
        delivery = safely(_deliver, message_envelope)
        try:
            await original(self, message_envelope)
        finally:
            if delivery is not None:
                safely(delivery.finish)

    return process


def _make_on_message(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    async def on_message(self: Any, *args: Any, **kwargs: Any) -> Any:
        handling = safely(Handling, self)
        try:
            return await original(self, *args, **kwargs)
        finally:
            if handling is not None:
                safely(handling.finish)

    return on_message


def _make_on_message_impl(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    async def on_message_impl(self: Any, *args: Any, **kwargs: Any) -> Any:
        # Agents that take one message after the other have waited for their turn before they come here.
        safely(catch_up, self)
        return await original(self, *args, **kwargs)

    return on_message_impl


def _make_link_future(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def link_future(self: Any, future: Any) -> Any:
        safely(_continue_thread, future)
        return original(self, future)

    return link_future


def _continue_thread(future: Any) -> None:
    """Keep a task that exists only to be cancelled on the thread of its maker, who awaits it at once."""
    strand = strand_on(future)
    maker = current_strand()
    if strand is None or strand.is_joined or not strand.ancestors or strand.ancestors[0]() is not maker:
        return
    turn = lend_thread(maker, future)
    if turn is not None:
        turn.ancestors = strand.ancestors
        turn.frontier = turn.inherited = strand.frontier
        hang(future, turn)


def _make_create(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def create(self: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("cancellation_token") is None:
            # One that nobody cancels: with it the client links the task that it makes for each call.
            kwargs["cancellation_token"] = safely(_make_token)
        return original(self, *args, **kwargs)

    return create


def _make_token() -> Any:
    from autogen_core import CancellationToken

    return CancellationToken()


def instrument_core(patches: Patches, module: ModuleType) -> None:
    """Let the messages of the runtime carry causality, and make each agent a thread of its program."""
    implementation = getattr(module, "_single_threaded_agent_runtime", None)
    for name in ("SendMessageEnvelope", "PublishMessageEnvelope"):
        envelope = getattr(implementation, name, None)
        if envelope is not None:
            patches.apply(envelope, "__init__", _make_envelope)
    runtime = getattr(module, "SingleThreadedAgentRuntime", None)
    patches.apply(runtime, "_process_send", _make_process)
    patches.apply(runtime, "_process_publish", _make_process)
    patches.apply(getattr(module, "BaseAgent", None), "on_message", _make_on_message)
    patches.apply(getattr(module, "RoutedAgent", None), "on_message_impl", _make_on_message_impl)
    patches.apply(getattr(module, "CancellationToken", None), "link_future", _make_link_future)


def instrument_model_client(patches: Patches, module: ModuleType) -> None:
    """Let each call be made on the thread of the agent that asked for it."""
    client = getattr(module, "BaseOpenAIChatCompletionClient", None)
    patches.apply(client, "create", _make_create)
    patches.apply(client, "create_stream", _make_create)
