"""A listener to a vLLM engine's KV events: blocks stored and evicted (`--kv-events-config`).

Messages arrive over ZeroMQ, numbered from the engine's start. A missing message invalidates everything that
earlier ones reported.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from autellix_backend.core.balance.cache_map import CacheMap

logger = logging.getLogger(__name__)

DEVICE_MEDIUM = "GPU"
"""vLLM's name for the memory of the computing device, even of a CPU."""
RECONNECT_MS = 2000
"""The longest delay between two attempts to connect."""
_PARTS = 3
"""A message's parts: topic, number, events."""


class _Stored(msgspec.Struct, tag="BlockStored"):
    block_hashes: list[int | bytes]
    block_size: int
    medium: str | None = None
    group_idx: int | None = None
    session_id: str | None = None


class _Removed(msgspec.Struct, tag="BlockRemoved"):
    block_hashes: list[int | bytes]
    medium: str | None = None
    group_idx: int | None = None


class _Cleared(msgspec.Struct, tag="AllBlocksCleared"):
    pass


class _Batch(msgspec.Struct, array_like=True):
    ts: float
    events: list[_Stored | _Removed | _Cleared]


_decode = msgspec.msgpack.Decoder(_Batch).decode


class KvEventReader:
    """Updates a map of an engine's prefix cache from its messages."""

    def __init__(self, cache: CacheMap) -> None:
        self._cache = cache
        self._next: int | None = None

    def read(self, number: int, payload: bytes) -> None:
        """Apply a message; an unreadable one invalidates the map."""
        if number != self._next or number == 0:
            # The engine has just started, or messages are missing.
            self._cache.begin(is_complete=number == 0)
        self._next = number + 1
        try:
            events = _decode(payload).events
        except msgspec.DecodeError as error:
            logger.warning("cannot read KV events: %s", error)
            self._cache.begin(is_complete=False)
            return
        for event in events:
            self._take(event)

    def _take(self, event: _Stored | _Removed | _Cleared) -> None:
        if isinstance(event, _Cleared):
            self._cache.begin(is_complete=True)
            return
        # The first group of a hybrid model's layers stands for all; other media are slower memories.
        if event.group_idx or event.medium not in {None, DEVICE_MEDIUM}:
            return
        if isinstance(event, _Removed):
            self._cache.removed(event.block_hashes)
        elif event.session_id is not None:
            self._cache.stored(event.block_hashes, event.block_size, event.session_id)


class KvEventListener:
    """A subscription to one engine that survives the engine's restarts."""

    def __init__(self, endpoint: str, cache: CacheMap) -> None:
        """Note the engine's address (`tcp://10.0.0.1:5557`, `ipc:///path`) and the map to update."""
        self._endpoint = endpoint
        self._reader = KvEventReader(cache)
        self._task: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Subscribe; must be called in the event loop."""
        self._task = asyncio.create_task(self._listen())

    async def close(self) -> None:
        """End the subscription."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _listen(self) -> None:
        context = zmq.asyncio.Context()
        socket: Any = context.socket(zmq.SUB)
        try:
            socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MS)
            socket.connect(self._endpoint)
            socket.setsockopt(zmq.SUBSCRIBE, b"")
            while True:
                parts = await socket.recv_multipart()
                if len(parts) == _PARTS:
                    self._reader.read(int.from_bytes(parts[1], "big"), parts[2])
        finally:
            context.destroy(linger=0)
