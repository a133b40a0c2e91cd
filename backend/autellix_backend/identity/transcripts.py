"""Content chain: a call without an id that extends a known transcript joins its program.

A chat client sends the whole conversation with every call. So if a call's messages, or items of its input,
begin with all of an earlier call, followed by the model's answer to them, it is that program's next call.
Only hashes are kept, under a secret of this process, over the raw messages, the model, the tools and the
tenant: no content.

Two transcripts do not identify: one without an answer (thousands of programs share a system prompt, or even
the first question), and one that two programs have sent, which then counts for neither. So a program's first
call stands alone, and its calls are linked from the second on. Only where the client says which calls another
one depends on, the first is linked too.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from autellix_backend.core.recent import RecentMap
from autellix_backend.identity.billing_line import without_billing_line
from autellix_backend.raw_json import MAX_READ_BYTES, decoded_or, has_many_objects

MAX_TRANSCRIPTS = 65536
SECRET_BYTES = 32

_TRANSCRIPT_FIELDS = ("messages", "input")
_SEED_FIELDS = ("model", "system", "instructions", "tools", "previous_response_id")
"""Fields that stay the same within a program; some dialects have the system prompt in one of its own."""

_AMBIGUOUS = None


@dataclass(frozen=True, slots=True)
class Transcript:
    """A call's transcript, and the program that it belongs to."""

    digest: bytes
    program: str


class Reading(NamedTuple):
    """The digests of one call's transcript."""

    prefixes: tuple[bytes, ...]
    """Digests of what comes before each answer, any of which may be an earlier call's whole transcript."""
    whole: bytes


class _Message(msgspec.Struct):
    role: str | None = None
    type: str = ""

    @property
    def is_answer(self) -> bool:
        """Whether the model made it; of items without a role, that is all but the results of tools."""
        if self.role:
            return self.role == "assistant"
        return bool(self.type) and not self.type.endswith("_output")


_messages_decoder = msgspec.json.Decoder(list[msgspec.Raw])
_heads_decoder = msgspec.json.Decoder(list[_Message])


class TranscriptChain:
    """Known transcripts and their programs; bounded, and forgotten when unused for `ttl_s` seconds."""

    def __init__(
        self, *, ttl_s: float, max_transcripts: int = MAX_TRANSCRIPTS, secret: bytes | None = None
    ) -> None:
        self._secret = secret or secrets.token_bytes(SECRET_BYTES)
        self._programs: RecentMap[bytes, str | None] = RecentMap(ttl_s=ttl_s, max_entries=max_transcripts)

    def __len__(self) -> int:
        return len(self._programs)

    def find(
        self, scope: str, fields: Mapping[str, msgspec.Raw], newcomer: str, now: float
    ) -> Transcript | None:
        """Return a call's transcript and its program; nothing is remembered yet.

        Args:
            scope: The tenant; transcripts of different ones never meet, nor displace each other.
            fields: The call's body.
            newcomer: The program that the call starts if it extends no known transcript.
            now: Monotonic seconds.

        Returns:
            None if the call is not a chat, or holds no answer yet.
        """
        reading = self.read(scope, fields)
        if reading is None or not reading.prefixes:
            return None
        return Transcript(reading.whole, self.program_of(scope, reading, now) or newcomer)

    def program_of(self, scope: str, reading: Reading, now: float) -> str | None:
        """Return the program of the longest known transcript that one extends; None if several sent it."""
        self._programs.expire_of(scope, now)
        # Without its first answer it does not identify.
        earlier = reversed(reading.prefixes[1:])
        known = next((digest for digest in earlier if self._programs.has(scope, digest)), None)
        return None if known is None else self._programs.use(scope, known, now)

    def remember(self, scope: str, transcript: Transcript, now: float) -> None:
        """Remember the transcript of a call that was admitted."""
        digest, program = transcript.digest, transcript.program
        is_shared = self._programs.has(scope, digest) and self._programs.use(scope, digest, now) != program
        self._programs.put(scope, digest, _AMBIGUOUS if is_shared else program, now)

    def expire(self, now: float) -> None:
        """Drop the transcripts that have not been used for `ttl_s`."""
        self._programs.expire(now)

    def read(
        self, scope: str, fields: Mapping[str, msgspec.Raw], *, needs_answer: bool = True
    ) -> Reading | None:
        """Return the digests of a call's transcript; None for no chat, or one without an answer it needs."""
        raw = next((fields[name] for name in _TRANSCRIPT_FIELDS if name in fields), None)
        if raw is None or self._is_too_long(fields) or has_many_objects(raw):
            return None
        are_answers = [head.is_answer for head in decoded_or([], _heads_decoder, raw, MAX_READ_BYTES)]
        if not are_answers or (needs_answer and True not in are_answers):
            return None
        messages = _messages_decoder.decode(raw)
        rolling = hashlib.sha256(self._seed(scope, fields))
        digests = []
        for index, message in enumerate(messages):
            if are_answers[index]:
                digests.append(rolling.copy().digest())
            # JSON objects delimit themselves, so no separator is needed.
            rolling.update(message if index else without_billing_line(bytes(message)))
        return Reading(tuple(digests), rolling.digest())

    def _is_too_long(self, fields: Mapping[str, msgspec.Raw]) -> bool:
        hashed = (*_TRANSCRIPT_FIELDS, *_SEED_FIELDS)
        return sum(memoryview(fields[name]).nbytes for name in hashed if name in fields) > MAX_READ_BYTES

    def _seed(self, scope: str, fields: Mapping[str, msgspec.Raw]) -> bytes:
        parts = [self._secret, scope.encode()]
        parts += [
            without_billing_line(bytes(fields[name])) if name in fields else b"" for name in _SEED_FIELDS
        ]
        # A hash of each, so that no part can continue another.
        return b"".join(hashlib.sha256(part).digest() for part in parts)
