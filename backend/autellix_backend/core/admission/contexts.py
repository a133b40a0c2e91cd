"""The contexts of one program in KV memory; a beginning that several have in common counts once.

The contexts of live calls count; without any, the context that the last call left. Counting the last contexts
of other strands too, to which a tree search returns, was tried: programs then collect contexts until they
displace each other, and the tail of tree searches in scarce memory grows.

A program may have thousands of live calls, so what they hold together is kept as running sums: a call that
arrives, grows or leaves costs as much as a search in a sorted list.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

KvFill = Callable[[int, int], int]
"""Returns the KV memory (tokens) that a context fills, from its tokens and how many of the first of them are
counted elsewhere."""


def fill_blocks(block_tokens: int) -> KvFill:
    """Return the fill of a model whose layers all keep whole contexts, in blocks of that size (tokens)."""

    def fill(tokens: int, counted: int) -> int:
        blocks = -(-tokens // block_tokens) - counted // block_tokens
        return max(0, blocks) * block_tokens

    return fill


count_tokens = fill_blocks(1)
"""The fill where blocks are small enough to be left out of account."""


@dataclass(slots=True)
class _Held:
    tokens: int
    shared: int
    """Leading tokens in common with the context that it follows."""
    follows: str | None
    own: int = 0
    """The KV memory that it fills beyond these and beyond the prefix."""

    @property
    def begin(self) -> int:
        """The leading tokens that it may share with others."""
        return min(self.shared, self.tokens)


@dataclass(slots=True)
class _Followers:
    """The live calls that follow one context."""

    ids: dict[str, None] = field(default_factory=dict)
    begins: list[int] = field(default_factory=list)
    """Their leading tokens in common with it, the least first."""


class ProgramContexts:
    """The contexts of a program by the ids of their calls."""

    def __init__(self, fill: KvFill = count_tokens) -> None:
        self._fill = fill
        # A plain dict keeps holes where calls left, and the search for the latest would visit them all.
        self._live: OrderedDict[str, _Held] = OrderedDict()
        self._followers: dict[str, _Followers] = {}
        """Followers by the id of the context that they follow, which may have left."""
        self._prefix = 0
        """The prefix that the sums below leave out."""
        self._own_tokens = 0
        """What live calls hold beyond their common beginnings."""
        self._begin_tokens = 0
        """The longest common beginnings with contexts that have left, which their followers hold once."""
        self._last_id: str | None = None
        self._last_tokens = 0
        """The context that the last call left."""

    def add(self, call_id: str, tokens: int, *, shared: int, follows: str | None) -> None:
        """Add the context of a call that arrives.

        Args:
            call_id: The call.
            tokens: Its prompt.
            shared: The leading tokens that it has in common with the context that it follows.
            follows: The call of that context, which may have left; None for the latest one known here.
        """
        if follows is None and shared:
            follows = next(reversed(self._live), self._last_id)
            if follows is None:
                # The program has lost its place since: nothing here holds that beginning.
                shared = 0
        self._begin_tokens -= self._begun(call_id)
        self._live[call_id] = _Held(tokens, shared, follows)
        self._count(call_id)

    def resize(self, call_id: str, tokens: int) -> None:
        """Set the present length of a live call's context."""
        held = self._live[call_id]
        if tokens > held.tokens >= held.shared:
            # As it decodes: what it shares with others stays.
            self._own_tokens -= held.own
            held.tokens = tokens
            self._own_tokens += self._fill_own(held)
        elif tokens != held.tokens:
            self._uncount(call_id)
            held.tokens = tokens
            self._count(call_id)

    def leave(self, call_id: str, tokens: int) -> None:
        """Remove a call; nothing is left of its context without tokens."""
        self._uncount(call_id)
        left = self._live.pop(call_id)
        self._begin_tokens += self._begun(call_id)
        if tokens:
            self._last_id, self._last_tokens = call_id, tokens
        followers = self._followers.get(call_id)
        if followers is not None and len(followers.ids) == 1 and left.follows is not None:
            # It alone still holds the beginning of the call that left.
            (follower_id,) = followers.ids
            self._uncount(follower_id)
            follower = self._live[follower_id]
            follower.follows, follower.shared = left.follows, min(follower.shared, left.shared)
            self._count(follower_id)

    def forget_left(self) -> None:
        """Forget what the last call left: KV memory has lost it."""
        self._last_tokens = 0

    def tokens(self, prefix: int) -> int:
        """Return the KV memory of the program, beside the prefix that other programs hold as well."""
        if not self._live:
            return self._fill(self._last_tokens, prefix)
        if prefix != self._prefix:
            self._prefix = prefix
            self._own_tokens = sum(map(self._fill_own, self._live.values()))
            self._begin_tokens = sum(map(self._begun, self._followers.keys() - self._live.keys()))
        return self._own_tokens + self._begin_tokens

    def length(self, prefix: int) -> int:
        """Return the tokens themselves beside the prefix: what to prefill after an eviction."""
        if not self._live:
            return count_tokens(self._last_tokens, prefix)
        return self._sum(self._live, prefix, count_tokens)

    def tokens_of(self, call_ids: Iterable[str], prefix: int) -> int:
        """Return the KV memory of some of the live calls beside the prefix."""
        return self._sum(call_ids, prefix, self._fill)

    def _sum(self, call_ids: Iterable[str], prefix: int, fill: KvFill) -> int:
        counted = {call_id: self._live[call_id] for call_id in call_ids}
        own_tokens = 0
        begins: dict[str, int] = {}
        for held in counted.values():
            own_tokens += fill(held.tokens, max(held.shared, prefix))
            if held.begin > prefix and held.follows is not None and held.follows not in counted:
                # The context that it follows has left; the calls that share that beginning hold it once.
                begins[held.follows] = max(begins.get(held.follows, 0), held.begin)
        return own_tokens + sum(fill(begin, prefix) for begin in begins.values())

    def check(self) -> None:
        """Assert the invariants."""
        if self._live:
            assert self.tokens(self._prefix) == self.tokens_of(self._live, self._prefix)
        for followed, followers in self._followers.items():
            held = [self._live[call_id] for call_id in followers.ids]
            assert all(each.follows == followed for each in held), followed
            assert followers.begins == sorted(each.begin for each in held), followed
        assert sum(len(each.ids) for each in self._followers.values()) == sum(
            held.follows is not None for held in self._live.values()
        )

    def _fill_own(self, held: _Held) -> int:
        held.own = self._fill(held.tokens, max(held.shared, self._prefix))
        return held.own

    def _begun(self, followed: str) -> int:
        """Return the longest beginning beyond the prefix that live calls share with a context."""
        followers = self._followers.get(followed)
        if followers is None or followers.begins[-1] <= self._prefix:
            return 0
        return self._fill(followers.begins[-1], self._prefix)

    def _count(self, call_id: str) -> None:
        held = self._live[call_id]
        self._own_tokens += self._fill_own(held)
        if held.follows is not None:
            before = self._begun(held.follows)
            followers = self._followers.setdefault(held.follows, _Followers())
            followers.ids[call_id] = None
            insort(followers.begins, held.begin)
            self._add_begun(held.follows, before)

    def _uncount(self, call_id: str) -> None:
        held = self._live[call_id]
        self._own_tokens -= held.own
        if held.follows is not None:
            before = self._begun(held.follows)
            followers = self._followers[held.follows]
            del followers.ids[call_id]
            del followers.begins[bisect_left(followers.begins, held.begin)]
            if not followers.ids:
                del self._followers[held.follows]
            self._add_begun(held.follows, before)

    def _add_begun(self, followed: str, before: int) -> None:
        if followed not in self._live:
            self._begin_tokens += self._begun(followed) - before
