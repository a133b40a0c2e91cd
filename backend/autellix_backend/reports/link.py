"""The messages of a report link: the ZeroMQ connection of a gateway to an engine with our scheduler.

The engine publishes and gateways subscribe: each to the engine's facts, to its snapshots, and to the reports
of its own calls. A message is one frame: its topic, a zero byte, and its content. A gateway sends the ends of
programs the other way, each as soon as it happens; they go with later calls as well, as frames may be lost.

Both sides name the protocol that they speak. Fields may be added to a message within one protocol, with a
default: each side ignores what it does not know. Anything else makes a new protocol, and a gateway reads
nothing but the facts of an engine that speaks another one.

Engines that a gateway has started on its machine listen at a socket in a private folder. To all others the
connection is CurveZMQ, which encrypts, and refuses replayed frames. Both sides derive the engine's key pair
from the secret that they share; the secret itself never travels. Without it, nobody can compute the engine's
public key, or get past the handshake.
"""

from __future__ import annotations

import functools
import hashlib
from typing import Annotated

import msgspec

from autellix_backend.reports.decoding import ReportError, decode

PROTOCOL = 2
"""Version of the protocol; increased when one side could misread the other."""

FACTS_TOPIC = b"facts"
SNAPSHOT_TOPIC = b"snapshot"
END_TOPIC = b"end"
"""The topic of a message to the engine whose content is the id of a program that has ended."""
MAX_UPSTREAM_BYTES = 4096
"""The longest frame that an engine reads; a longer one ends the connection."""
END_OF_TOPIC = b"\0"
"""Ends a topic, so that none is the start of another."""
IPC = "ipc://"
_SALT = b"autellix report link 2"


def report_topic(gateway: str) -> bytes:
    """Return the topic of the reports for a gateway."""
    return b"report " + gateway.encode()


def address_of_rank(address: str, rank: int) -> str:
    """Return the address of a data-parallel rank: the first one's port plus the rank, or its own socket."""
    if address.startswith(IPC):
        return f"{address}.{rank}" if rank else address
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) + rank}"


class OtherProtocolError(ReportError):
    """An engine speaks another protocol of reports."""

    def __init__(self, protocol: int, version: str) -> None:
        side = "the engine" if protocol < PROTOCOL else "this gateway"
        super().__init__(
            f"version {version} speaks protocol {protocol} of reports, not {PROTOCOL}: upgrade {side}"
        )


class _Speaker(msgspec.Struct, frozen=True):
    """The facts that messages of all protocols hold."""

    protocol: int
    version: str = "unknown"


Rank = Annotated[int, msgspec.Meta(ge=0, lt=1024)]
"""A rank of an engine, for each of which something is kept."""


class EngineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of an engine with our scheduler."""

    engine: str
    """An id that is new with every start of its process."""
    rank: Rank = 0
    """Its data-parallel rank; each rank is a process with a report address of its own."""
    version: str
    """The scheduler's."""
    protocol: int = PROTOCOL
    vllm: str
    policy: str
    has_admission: bool
    """Whether only programs run whose contexts fit into KV memory together."""
    slots: int
    """The calls that it runs at once."""
    kv_tokens: int | None
    """The tokens that fit into its KV memory; None if contexts take none."""
    is_degraded: bool = False
    """Whether calls are in vLLM's own order, because our scheduler does not fit it or has failed.

    Such an engine sends no reports and no snapshots.
    """
    problem: str = ""
    """Why; empty if the engine's log has it."""
    dropped: int = 0
    """The messages that it could not send so far."""

    def to_bytes(self) -> bytes:
        """Return the message's content."""
        return msgspec.json.encode(self)

    @classmethod
    def from_bytes(cls, content: bytes) -> EngineFacts:
        """Read the facts; keys of a later version are ignored.

        Raises:
            OtherProtocolError: they are of another protocol.
            ReportError: the content is not a JSON object with every field of its type.
        """
        speaker = decode(_speaker_decoder, content, "an engine's facts")
        if speaker.protocol != PROTOCOL:
            raise OtherProtocolError(speaker.protocol, speaker.version)
        return decode(_facts_decoder, content, "an engine's facts")


@functools.lru_cache(maxsize=4)
def link_key(secret: str) -> bytes:
    """Return the engine's private key (32 bytes), from which its public key follows.

    Scrypt makes guesses at a weak secret expensive: it takes 50 ms and 16 MiB, once.
    """
    return hashlib.scrypt(secret.encode(), salt=_SALT, n=2**14, r=8, p=1, dklen=32)


_speaker_decoder = msgspec.json.Decoder(_Speaker)
_facts_decoder = msgspec.json.Decoder(EngineFacts)
