"""Messages as vLLM publishes them, read one by one and over a socket."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.waiting import PATIENCE_S

from autellix_backend.core.balance.cache_map import CacheMap
from autellix_backend.engines.kv_events import KvEventListener, KvEventReader


def stored(*hashes: int | bytes, program: str | None = "p", **changes: Any) -> dict[str, Any]:
    return {
        "type": "BlockStored",
        "block_hashes": list(hashes),
        "parent_block_hash": None,
        "token_ids": [7] * 16,
        "block_size": 16,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "session_id": program,
        **changes,
    }


def removed(*hashes: int | bytes, **changes: Any) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": "GPU", **changes}


def message(*events: dict[str, Any]) -> bytes:
    return msgspec.msgpack.encode([1.5, events, 0])


def read(*payloads: bytes, first: int = 0) -> CacheMap:
    cache = CacheMap()
    reader = KvEventReader(cache)
    for number, payload in enumerate(payloads, first):
        reader.read(number, payload)
    cache.check()
    return cache


def test_reads_stored_and_removed_blocks() -> None:
    cache = read(message(stored(b"a", b"b"), stored(b"c", program="q")), message(removed(b"a")))
    assert [cache.held_tokens(program) for program in ("p", "q", "r")] == [16, 16, 0]


def test_a_cleared_cache_holds_nothing() -> None:
    assert read(message(stored(1)), message({"type": "AllBlocksCleared"})).held_tokens("p") == 0


@pytest.mark.parametrize(
    "event",
    [
        stored(1, medium="CPU"),
        stored(1, group_idx=1),
        stored(1, program=None),
    ],
    ids=["host memory", "another group of layers", "nobody's"],
)
def test_blocks_without_a_program_are_skipped(event: dict[str, Any]) -> None:
    cache = read(message(event, stored(2)), message(removed(2, medium="CPU"), removed(2, group_idx=1)))
    assert (cache.held_tokens("p"), len(cache)) == (16, 1)


def test_after_a_gap_only_later_blocks_are_known() -> None:
    cache = CacheMap()
    reader = KvEventReader(cache)
    reader.read(0, message(stored(1)))
    reader.read(2, message(stored(2, program="q")))
    assert (cache.held_tokens("p"), cache.held_tokens("q")) == (None, 16)
    # The engine has started anew.
    reader.read(0, message(stored(3, program="r")))
    assert [cache.held_tokens(program) for program in "pqr"] == [0, 0, 16]


def test_a_late_subscriber_knows_only_later_blocks() -> None:
    cache = read(message(stored(1)), first=7)
    assert (cache.held_tokens("p"), cache.held_tokens("q")) == (16, None)


@pytest.mark.parametrize(
    "payload", [b"", b"\xc1", msgspec.msgpack.encode({"a": 1}), message({"type": "New"})]
)
def test_an_unreadable_message_clears_the_map(payload: bytes) -> None:
    assert read(message(stored(1)), payload).held_tokens("p") is None


async def test_a_subscription_outlives_the_publisher(tmp_path: Path) -> None:
    zmq = pytest.importorskip("zmq")
    sockets = pytest.importorskip("zmq.asyncio")
    endpoint = f"ipc://{tmp_path}/events"

    async def publish(events: bytes, cache: CacheMap, expected: dict[str, int]) -> None:
        """Start a publisher that says the same until it is heard, as no subscriber is there at first."""
        context = sockets.Context()
        socket = context.socket(zmq.PUB)
        socket.bind(endpoint)
        try:
            async with asyncio.timeout(PATIENCE_S):
                while {name: cache.held_tokens(name) for name in expected} != expected:
                    await socket.send_multipart([b"", (0).to_bytes(8, "big"), events])
                    await asyncio.sleep(0.01)
        finally:
            context.destroy(linger=0)

    cache = CacheMap()
    listener = KvEventListener(endpoint, cache)
    listener.open()
    await publish(message(stored(1, 2)), cache, {"p": 32, "q": 0})
    await publish(message(stored(3, program="q")), cache, {"p": 0, "q": 16})
    await listener.close()
    await listener.close()
