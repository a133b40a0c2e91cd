"""Programs without an id, known by what they say: a call that extends a known transcript joins its program.

A chat client sends the whole conversation with every call. So if a call's messages begin with all messages of
an earlier call, followed by the assistant's answer to them, it is that program's next call. Only hashes are
kept, under a secret of this process, over the raw messages, the model, the tools and the tenant: no content.

What does not identify: a transcript without an answer in it (a system prompt, or it and a first question,
which thousands of programs share), and a transcript that two programs have sent; that one is forgotten for
both. So a program's first call stands alone, and from its second on the program is one.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Mapping

import msgspec

MAX_TRANSCRIPTS = 65536
MAX_MESSAGES_BYTES = 2 * 2**20
"""Longer transcripts are not looked at: hashing them would hold up other calls."""
SECRET_BYTES = 32

_SEED_FIELDS = ("model", "system", "tools")
"""What has to stay the same; Anthropic's system prompt is a field of its own."""

_AMBIGUOUS = None


class _Message(msgspec.Struct):
    role: str = ""


_messages_decoder = msgspec.json.Decoder(list[msgspec.Raw])
_roles_decoder = msgspec.json.Decoder(list[_Message])


class TranscriptChain:
    """Known transcripts and their programs; bounded, and forgotten when unused for `ttl_s` seconds."""

    def __init__(
        self, *, ttl_s: float, max_transcripts: int = MAX_TRANSCRIPTS, secret: bytes | None = None
    ) -> None:
        self._ttl_s = ttl_s
        self._max_transcripts = max_transcripts
        self._secret = secret or secrets.token_bytes(SECRET_BYTES)
        # In the order of their last use, so that the oldest leave from one end.
        self._programs: OrderedDict[bytes, tuple[str | None, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._programs)

    def join(self, scope: str, fields: Mapping[str, msgspec.Raw], newcomer: str, now: float) -> str | None:
        """Return the program that a call belongs to, and remember the call's transcript as that program's.

        Args:
            scope: The tenant; transcripts of different ones never meet.
            fields: The call's body.
            newcomer: The program that the call begins if it extends no known transcript.
            now: Seconds that only grow.

        Returns:
            The program; None where the call is no chat, or holds no answer yet.
        """
        self.expire(now)
        digests = self._digests(scope, fields)
        if not digests:
            return None
        *earlier, whole = digests
        program = self._find(earlier, now) or newcomer
        self._learn(whole, program, now)
        return program

    def expire(self, now: float) -> None:
        """Forget the transcripts that have not been used for `ttl_s`."""
        while self._programs:
            digest, (_, used_at) = next(iter(self._programs.items()))
            if now - used_at < self._ttl_s:
                return
            del self._programs[digest]

    def _find(self, earlier: list[bytes], now: float) -> str | None:
        """Return the program of the longest known transcript; None without one, or if several sent it."""
        for digest in reversed(earlier):
            if digest in self._programs:
                program, _ = self._programs[digest]
                self._put(digest, program, now)
                return program
        return None

    def _learn(self, digest: bytes, program: str, now: float) -> None:
        known, _ = self._programs.get(digest, (program, now))
        self._put(digest, program if known == program else _AMBIGUOUS, now)

    def _put(self, digest: bytes, program: str | None, now: float) -> None:
        self._programs[digest] = (program, now)
        self._programs.move_to_end(digest)
        if len(self._programs) > self._max_transcripts:
            self._programs.popitem(last=False)

    def _digests(self, scope: str, fields: Mapping[str, msgspec.Raw]) -> list[bytes]:
        """Hash the beginnings that may be an earlier call's whole transcript, and last this call's."""
        raw = fields.get("messages")
        if raw is None or memoryview(raw).nbytes > MAX_MESSAGES_BYTES:
            return []
        try:
            roles = [message.role for message in _roles_decoder.decode(raw)]
        except msgspec.DecodeError:
            return []
        if "assistant" not in roles:
            return []
        messages = _messages_decoder.decode(raw)
        first_answer = roles.index("assistant")
        rolling = hashlib.sha256(self._seed(scope, fields))
        digests = []
        for index, message in enumerate(messages):
            if index > first_answer and roles[index] == "assistant":
                digests.append(rolling.copy().digest())
            # JSON objects end by themselves, so no separator is needed.
            rolling.update(message)
        return [*digests, rolling.digest()]

    def _seed(self, scope: str, fields: Mapping[str, msgspec.Raw]) -> bytes:
        parts = [self._secret, scope.encode()]
        parts += [bytes(fields[name]) if name in fields else b"" for name in _SEED_FIELDS]
        # A hash of each, so that no part can pass for the end of another.
        return b"".join(hashlib.sha256(part).digest() for part in parts)
