"""How much of a request's context is its own: what its program has computed before, and what others share.

vLLM hashes each full block of a request together with all blocks before it. Where two requests have equal
hashes at one place, they are equal up to there, so the length of a common beginning is found by bisection.
Without prefix caching there are no hashes, and every context is private.

Programs of one kind begin alike: the same system prompt, the same tools. The end of such a prefix differs by
some blocks from pair to pair, with the words that happen to follow; so a prefix that is known already is
preferred to a slightly longer one, else each pair would count the same blocks under another name.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Container, Hashable, Sequence
from dataclasses import dataclass, field

from autellix_backend.core.arrival import Context

MAX_PROGRAMS = 4096
"""Programs that are remembered; those without a request for longest are forgotten first."""
MAX_KEPT_BLOCKS = 1 << 17
"""Hashes that are kept of all prompts, of about two hundred bytes each."""
MAX_CONTEXTS = 4
"""The last contexts of a program that are kept, for programs with several strands."""
MAX_PREFIX_BLOCKS = 1 << 12
"""The longest beginning of a first prompt that others can share."""
_NEAR = 0.75
"""A beginning that is equal in this share counts as the whole."""

Hashes = Sequence[Hashable]


@dataclass(slots=True)
class _Strand:
    hashes: Hashes
    """Block hashes of its last context, which grows while the call runs."""
    blocks: int
    """Blocks of the prompt."""
    request_id: str


@dataclass(slots=True)
class _Known:
    first: Hashes
    """The beginning of its first prompt."""
    prefix: Hashable
    prefix_blocks: int
    strands: list[_Strand] = field(default_factory=list)


class ContextIndex:
    """The blocks of the programs on one engine."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._programs: dict[str, _Known] = {}
        """Programs, those with the latest requests last."""
        self._firsts: Counter[Hashable] = Counter()
        """Programs by the hash of the first block of their first prompt."""
        self._prefixes: Counter[Hashable] = Counter()
        """Programs by the id of their prefix."""
        self._kept_blocks = 0

    def arrive(self, program_id: str, request_id: str, hashes: Hashes, tokens: int) -> Context:
        """Return the context of a request that arrives, and remember its blocks.

        Args:
            program_id: The program of the request.
            request_id: The engine's id of the request.
            hashes: Those of its full blocks; the sequence may grow later.
            tokens: The length of its prompt.
        """
        if not hashes:
            return Context(tokens)
        known = self._programs.pop(program_id, None) or self._meet(hashes)
        if not known.prefix_blocks:
            self._find_prefix(known, own=1)
        # The program seen last goes to the end, so that the first is the one to forget.
        self._programs[program_id] = known
        shared_blocks, follows = self._follow(known, request_id, hashes)
        while len(self._programs) > MAX_PROGRAMS or (
            self._kept_blocks > MAX_KEPT_BLOCKS and len(self._programs) > 1
        ):
            self._forget(next(iter(self._programs)))
        prefix_blocks = known.prefix_blocks
        # A later call of the program may begin otherwise.
        if prefix_blocks > len(hashes) or (prefix_blocks and hashes[prefix_blocks - 1] != known.prefix):
            prefix_blocks = 0
        return Context(
            tokens=tokens,
            shared_tokens=shared_blocks * self._block_tokens,
            follows=follows,
            prefix=known.prefix if prefix_blocks else None,
            prefix_tokens=prefix_blocks * self._block_tokens,
        )

    def last_context(self, program_id: str) -> Hashes:
        """Return the hashes of a program's latest request and its answer; empty if there are none."""
        known = self._programs.get(program_id)
        return () if known is None or not known.strands else known.strands[-1].hashes

    def end(self, program_id: str) -> None:
        """Drop the contexts of a program that is over; others may still share its first prompt."""
        known = self._programs.get(program_id)
        if known is not None:
            self._drop_strands(known)

    def lose_contexts(self, live: Container[str]) -> None:
        """Drop all contexts, which KV memory has lost, but those of live requests, which are computed yet."""
        for known in self._programs.values():
            kept = [strand for strand in known.strands if strand.request_id in live]
            self._drop_strands(known)
            known.strands = kept
            self._kept_blocks += sum(strand.blocks for strand in kept)

    def _meet(self, hashes: Hashes) -> _Known:
        """Note the first prompt of a program, and what it shares with those of others."""
        known = _Known(tuple(hashes[:MAX_PREFIX_BLOCKS]), None, 0)
        self._find_prefix(known)
        self._kept_blocks += len(known.first)
        self._firsts.update(known.first)
        return known

    def _find_prefix(self, known: _Known, *, own: int = 0) -> None:
        """Set the prefix of a program that has none: the first of its kind learns of it from the second.

        Args:
            known: The program.
            own: 1 if its own first prompt is counted already.
        """
        first = known.first
        common = bisect_left(first, True, key=lambda block: self._firsts[block] <= own)
        blocks = self._prefix_blocks(first, common)
        if blocks:
            known.prefix, known.prefix_blocks = first[blocks - 1], blocks
            self._prefixes[known.prefix] += 1

    def _prefix_blocks(self, first: Hashes, common: int) -> int:
        """Return the length of the known prefix that most programs have, or else of all that is common."""
        near = range(max(1, math.ceil(_NEAR * common)), common + 1)
        return max(near, key=lambda blocks: (self._prefixes[first[blocks - 1]], blocks), default=0)

    def _follow(self, known: _Known, request_id: str, hashes: Hashes) -> tuple[int, str | None]:
        """Add a context to its program's; return the most blocks in common with one of them, and which."""
        common, best = 0, None
        for strand in known.strands:
            blocks = _common(strand.hashes, hashes)
            if best is None or blocks > common:
                common, best = blocks, strand
        if best is not None and common >= _NEAR * best.blocks:
            known.strands.remove(best)
            self._kept_blocks -= best.blocks
        known.strands.append(_Strand(hashes, len(hashes), request_id))
        self._kept_blocks += len(hashes)
        if len(known.strands) > MAX_CONTEXTS:
            self._kept_blocks -= known.strands.pop(0).blocks
        return common, None if best is None else best.request_id

    def _forget(self, program_id: str) -> None:
        known = self._programs.pop(program_id)
        self._drop_strands(known)
        self._kept_blocks -= len(known.first)
        _take(self._firsts, known.first)
        if known.prefix_blocks:
            _take(self._prefixes, (known.prefix,))

    def _drop_strands(self, known: _Known) -> None:
        self._kept_blocks -= sum(strand.blocks for strand in known.strands)
        known.strands = []

    def check(self) -> None:
        """Assert the invariants."""
        programs = self._programs.values()
        assert self._firsts == Counter(block for known in programs for block in known.first)
        assert self._prefixes == Counter(known.prefix for known in programs if known.prefix_blocks)
        kept = sum(len(known.first) + sum(strand.blocks for strand in known.strands) for known in programs)
        assert self._kept_blocks == kept


def _common(hashes: Hashes, others: Hashes) -> int:
    """Return the length of the common beginning: behind the first difference, all hashes differ."""
    length = min(len(hashes), len(others))
    if length and hashes[length - 1] == others[length - 1]:
        return length
    places = range(length)
    return bisect_left(places, True, key=lambda place: hashes[place] != others[place])


def _take(counter: Counter[Hashable], items: Hashes) -> None:
    for item in items:
        counter[item] -= 1
        if not counter[item]:
            del counter[item]
