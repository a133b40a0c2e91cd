"""The messages of a report link: the ZeroMQ connection of a gateway to an engine that others run.

The engine listens, and gateways connect: a gateway says hello once a second, and the engine answers each
hello with its facts. Between them it sends reports and snapshots. All messages have two frames, kind and
content.

Both sides name the protocol that they speak. Fields may be added to a message within one protocol, with a
default: each side ignores what it does not know. Anything else makes a new protocol, and sides of different
ones exchange nothing but hellos and facts, from which each learns that.

The connection is CurveZMQ, which encrypts, and refuses replayed frames. Both sides derive the engine's key
pair from the secret that they share; the secret itself never travels. Without it, nobody can compute the
engine's public key, or get past the handshake.
"""

from __future__ import annotations

import functools
import hashlib
from typing import Annotated

import msgspec

from autellix_backend.reports.decoding import ReportError, decode

PROTOCOL = 1
"""Of reports, snapshots and this module's messages; increased when one side could misread the other."""

HELLO = b"hello"
"""The kind of a gateway's message."""
ENGINE = b"engine"
"""The kind of the answer to it."""
MESSAGE = b"message"
"""The kind of a report or a snapshot."""
HELLO_PERIOD_S = 1.0
LOST_S = 10.0
"""How long the other side may be silent before it counts as gone."""
MAX_HELLO_BYTES = 4096
_SALT = b"autellix report link 1"
_MAX_ID = 64


class OtherProtocolError(ReportError):
    """The other side speaks another protocol of reports."""

    def __init__(self, protocol: int, version: str) -> None:
        super().__init__(f"version {version} speaks protocol {protocol} of reports, not {PROTOCOL}")


class _Speaker(msgspec.Struct, frozen=True):
    """The facts that messages of all protocols hold."""

    protocol: int
    version: str = "unknown"


class GatewayHello(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of a gateway."""

    gateway: str
    """The id that its calls name."""
    version: str
    protocol: int = PROTOCOL

    def to_bytes(self) -> bytes:
        """Return the message's content."""
        return msgspec.json.encode(self)

    @classmethod
    def from_bytes(cls, content: bytes) -> GatewayHello:
        """Read a hello; keys of a later version are ignored.

        Raises:
            OtherProtocolError: it is of another protocol.
            ReportError: the content is none, or its id is empty or too long.
        """
        _check_protocol(content)
        hello = decode(_hello_decoder, content, "a gateway's hello")
        if not 0 < len(hello.gateway) <= _MAX_ID:
            raise ReportError(f"a gateway's id has 1 to {_MAX_ID} characters, not {len(hello.gateway)}")
        return hello


Rank = Annotated[int, msgspec.Meta(ge=0, lt=1024)]
"""A rank of an engine, for each of which something is kept."""


class EngineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of an engine with our scheduler."""

    engine: str
    """An id that is new with every start of its process."""
    rank: Rank = 0
    """Its data-parallel rank; each rank is a process with a report port of its own."""
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
    """Whether our scheduler has failed there, so that calls are in order of arrival."""
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
        _check_protocol(content)
        return decode(_facts_decoder, content, "an engine's facts")


def _check_protocol(content: bytes) -> None:
    try:
        speaker = _speaker_decoder.decode(content)
    except (msgspec.DecodeError, RecursionError):
        # The reader of the whole message names what is wrong.
        return
    if speaker.protocol != PROTOCOL:
        raise OtherProtocolError(speaker.protocol, speaker.version)


@functools.lru_cache(maxsize=4)
def link_key(secret: str) -> bytes:
    """Return the engine's private key (32 bytes), from which its public key follows.

    Scrypt makes guesses at a weak secret expensive: it takes 50 ms and 16 MiB, once.
    """
    return hashlib.scrypt(secret.encode(), salt=_SALT, n=2**14, r=8, p=1, dklen=32)


_speaker_decoder = msgspec.json.Decoder(_Speaker)
_hello_decoder = msgspec.json.Decoder(GatewayHello)
_facts_decoder = msgspec.json.Decoder(EngineFacts)
