"""Patches autogen_core: messages carry the past of their sender, and an agent's turn starts from it."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, NamedTuple

from autellix.integration import (
    ProgramThread,
    around_async,
    attach,
    before,
    finished_receipt,
    on_init,
    running_thread,
    safely,
    switch_to,
    thread_of,
)
from autellix_autogen._causality import (
    CausalPast,
    Handling,
    catch_up,
    follow,
    lend_thread,
    past_of,
    start,
    turn_of,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from types import ModuleType
    from typing import Any

    from autellix.integration import Patches

TOKEN = "cancellation_token"
ATTRIBUTE = "_autellix_context"
"""The attribute of an envelope that holds its propagation context."""


class MessageContext(NamedTuple):
    """The propagation context of a message: its sender, and the sender's past when it was sent."""

    sender: ProgramThread
    past: CausalPast


class Delivery:
    """One envelope on its way to its recipients, until `close`."""

    __slots__ = ("_before", "_context", "_envelope", "_thread")

    def __init__(self, envelope: Any, context: MessageContext) -> None:
        self._envelope = envelope
        self._context = context
        self._thread = turn_of(context.sender, context.sender)
        start(self._thread, context.past)
        self._before = switch_to(self._thread)

    def close(self) -> None:
        """Let the sender depend on the answer, if it still waits for one."""
        self._thread.is_closed = True
        switch_to(self._before)
        future = getattr(self._envelope, "future", None)
        if future is not None and not future.cancelled():
            follow(self._context.sender, past_of(self._thread))


def _attach_context(envelope: Any) -> None:
    sender = running_thread()
    setattr(envelope, ATTRIBUTE, MessageContext(sender, past_of(sender)))


def _deliver(_runtime: Any, message_envelope: Any) -> Delivery | None:
    context = getattr(message_envelope, ATTRIBUTE, None)
    return None if context is None else Delivery(message_envelope, context)


def _handle(agent: Any, *_args: object, **_kwargs: object) -> Handling:
    return Handling(agent)


def _patch_on_message_impl(original: Callable[..., Any]) -> Callable[..., Any]:
    async def on_message_impl(self: Any, *args: Any, **kwargs: Any) -> Any:
        # An agent that handles one message at a time has waited for its turn before it comes here.
        safely(catch_up, self)
        return await original(self, *args, **kwargs)

    return on_message_impl


def _continue_thread(_token: Any, future: Any) -> None:
    """Keep a task that exists only to be cancellable on its creator's thread, which awaits it at once."""
    thread = thread_of(future)
    creator = running_thread()
    if thread is None or thread.is_joined or not thread.ancestors or thread.ancestors[0]() is not creator:
        return
    turn = lend_thread(creator, future)
    if turn is not None:
        turn.ancestors = thread.ancestors
        turn.frontier = turn.inherited = thread.frontier
        attach(future, turn)


def _patch_create(original: Callable[..., Any]) -> Callable[..., Any]:
    takes_token = _takes_token(original)

    async def create(self: Any, *args: Any, **kwargs: Any) -> Any:
        if takes_token and kwargs.get(TOKEN) is None:
            # A token that nobody cancels: with it AutoGen links the task of each call.
            kwargs[TOKEN] = safely(_make_token)
        result = await original(self, *args, **kwargs)
        safely(_add_receipt, result)
        return result

    return create


def _patch_create_stream(original: Callable[..., Any]) -> Callable[..., Any]:
    takes_token = _takes_token(original)

    async def create_stream(self: Any, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        if takes_token and kwargs.get(TOKEN) is None:
            kwargs[TOKEN] = safely(_make_token)
        async for item in original(self, *args, **kwargs):
            if not isinstance(item, str):
                safely(_add_receipt, item)
            yield item

    return create_stream


def _add_receipt(result: Any) -> None:
    # AutoGen hands this object on, to the message of the agent.
    vars(result.usage)["_autellix_receipt"] = finished_receipt()


def _takes_token(function: Callable[..., Any]) -> bool:
    return TOKEN in inspect.signature(function).parameters


def _make_token() -> Any:
    from autogen_core import CancellationToken

    return CancellationToken()


def instrument_core(patches: Patches, module: ModuleType) -> None:
    """Let the runtime's messages carry causality, and make each agent a thread of its program."""
    for name in ("SendMessageEnvelope", "PublishMessageEnvelope"):
        envelope = f"_single_threaded_agent_runtime.{name}"
        patches.apply(module, f"{envelope}.__init__", on_init(_attach_context))
    for name in ("_process_send", "_process_publish"):
        patches.apply(module, f"SingleThreadedAgentRuntime.{name}", around_async(_deliver))
    patches.apply(module, "BaseAgent.on_message", around_async(_handle))
    patches.apply(module, "RoutedAgent.on_message_impl", _patch_on_message_impl)
    patches.apply(module, "CancellationToken.link_future", before(_continue_thread))


def instrument_model_client(patches: Patches, module: ModuleType) -> None:
    """Make each call on the thread of the agent that asked for it."""
    patches.apply(module, "BaseOpenAIChatCompletionClient.create", _patch_create)
    patches.apply(module, "BaseOpenAIChatCompletionClient.create_stream", _patch_create_stream)
