"""In place of a model: a runner that keeps what each KV slot holds, and checks it before it is read.

What the runner keeps of a token, and so the next token, follows from all tokens before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm.v1.outputs import ModelRunnerOutput

TOKENS = 997
END = 0
"""The token that ends an answer."""
NULL_BLOCK = 0
_START = 7
"""What is kept before any token."""
_MODULUS = (1 << 61) - 1


class WrongKVError(AssertionError):
    """The scheduler has a request read what nobody has computed, or write where it must not."""


@dataclass(slots=True)
class RunnerRequest:
    """What the runner knows of a request."""

    prompt: list[int]
    blocks: list[list[int]]
    """The blocks of each group of layers."""
    computed: int
    adapter: int = 0
    output: list[int] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        """All of them."""
        return self.prompt + self.output


class TrialRunner:
    """Executes steps by the protocol of vLLM's model runners, old and new."""

    def __init__(self, block_tokens: int, groups: int = 1) -> None:
        """Keep nothing yet.

        Args:
            block_tokens: The tokens of a block.
            groups: The groups of layers.
        """
        self._block_tokens = block_tokens
        self._slots: list[dict[tuple[int, int], int]] = [{} for _ in range(groups)]
        """What is in each slot of a block, by group."""
        self._requests: dict[str, RunnerRequest] = {}
        self._batch: frozenset[str] = frozenset()
        self._reads: list[tuple[str, RunnerRequest, list[int]]] = []

    def execute(self, output: Any) -> ModelRunnerOutput:
        """Execute a step.

        Raises:
            WrongKVError: a request reads what it has not computed, or lacks a block.
        """
        self._update(output)
        drafts: Mapping[str, Sequence[int]] = output.scheduled_spec_decode_tokens
        sampled = {
            name: self._run(name, self._requests[name], count, drafts.get(name, ()))
            for name, count in output.num_scheduled_tokens.items()
        }
        # Nobody reads before all have written.
        reads, self._reads = self._reads, []
        for name, request, tokens in reads:
            self._check(name, request, tokens)
        return ModelRunnerOutput(
            req_ids=[*sampled],
            req_id_to_index={name: place for place, name in enumerate(sampled)},
            sampled_token_ids=[*sampled.values()],
        )

    def _update(self, output: Any) -> None:
        for name in output.finished_req_ids:
            self._requests.pop(name, None)
        for new in output.scheduled_new_reqs:
            request = self._requests[new.req_id] = RunnerRequest(
                prompt=list(new.prompt_token_ids),
                blocks=[list(blocks) for blocks in new.block_ids],
                computed=new.num_computed_tokens,
                adapter=new.lora_request.lora_int_id if new.lora_request else 0,
            )
            # The new runner gets a resumed request as a new one.
            request.output = list((getattr(new, "prefill_token_ids", None) or [])[len(request.prompt) :])
        cached = output.scheduled_cached_reqs
        for place, name in enumerate(cached.req_ids):
            self._update_cached(cached, place, name, self._requests[name])
        self._batch = frozenset(output.num_scheduled_tokens)

    def _update_cached(self, cached: Any, place: int, name: str, request: RunnerRequest) -> None:
        outputs, blocks = cached.num_output_tokens[place], cached.new_block_ids[place]
        del request.output[outputs:]
        if name in cached.resumed_req_ids:
            if blocks is None:
                raise WrongKVError(f"call {name} resumes without blocks")
            request.blocks = [list(each) for each in blocks]
        elif blocks is not None:
            for own, more in zip(request.blocks, blocks, strict=True):
                own.extend(more)
        request.computed = cached.num_computed_tokens[place]
        if name not in self._batch and name in cached.all_token_ids and outputs:
            # The persistent batch of the old runner has forgotten it.
            request.output = list(cached.all_token_ids[name][-outputs:])

    def _run(self, name: str, request: RunnerRequest, count: int, drafts: Sequence[int]) -> list[int]:
        """Compute some tokens; return those that follow, if the context is complete."""
        tokens, end = request.tokens, request.computed + count
        self._reads.append((name, request, tokens))
        known = len(tokens)
        if end > known + len(drafts):
            raise WrongKVError(f"call {name} is to compute tokens to {end} and has {known + len(drafts)}")
        self._write(name, request, [*tokens, *drafts], end)
        if end < known:
            return []
        value = kept_of(tokens, request.adapter)
        sampled = [next_token(value)]
        for draft in drafts:
            if draft != sampled[-1]:
                break
            value = kept(value, draft)
            sampled.append(next_token(value))
        request.output.extend(sampled)
        return sampled

    def _write(self, name: str, request: RunnerRequest, tokens: list[int], end: int) -> None:
        """Write what is kept of the tokens that are computed up to an end."""
        value = kept_of(tokens[: request.computed], request.adapter)
        for position in range(request.computed, end):
            value = kept(value, tokens[position])
            for group, slots in enumerate(self._slots):
                slots[self._slot(name, request, group, position)] = value

    def _check(self, name: str, request: RunnerRequest, tokens: list[int]) -> None:
        """Check what a request has read of the tokens before those that it has just computed."""
        for group, slots in enumerate(self._slots):
            first = self._first_read(group, request)
            value = kept_of(tokens[:first], request.adapter)
            for position in range(first, request.computed):
                value = kept(value, tokens[position])
                if slots.get(slot := self._slot(name, request, group, position)) != value:
                    raise WrongKVError(f"call {name} reads a wrong token {position} in block {slot[0]}")

    def _first_read(self, group: int, request: RunnerRequest) -> int:  # noqa: ARG002 -- windows begin later
        """Return the first token that a group of layers reads for a request's next one."""
        return 0

    def _slot(self, name: str, request: RunnerRequest, group: int, position: int) -> tuple[int, int]:
        place, offset = divmod(position, self._block_tokens)
        if place >= len(request.blocks[group]) or request.blocks[group][place] == NULL_BLOCK:
            raise WrongKVError(f"call {name} has no block for token {position}")
        return request.blocks[group][place], offset


def kept(before: int, token: int) -> int:
    """Return what is kept of a token behind others, of whose last one `before` was kept."""
    return (before * 6364136223846793005 + (token + 1) * 1442695040888963407 + 12345) % _MODULUS


def kept_of(tokens: Iterable[int], adapter: int = 0) -> int:
    """Return what is kept of the last of some tokens, with an adapter."""
    value = _START + adapter
    for token in tokens:
        value = kept(value, token)
    return value


def next_token(value: int) -> int:
    """Return the token that follows one of which this is kept."""
    number = (value >> 7) % (3 * TOKENS)
    return END if number % 41 == 0 else number % TOKENS or 1


def answer(prompt: Iterable[int], most: int, *, ignores_end: bool, adapter: int = 0) -> list[int]:
    """Return the answer to a prompt."""
    value, tokens = kept_of(prompt, adapter), list[int]()
    while len(tokens) < most:
        tokens.append(next_token(value))
        value = kept(value, tokens[-1])
        if tokens[-1] == END and not ignores_end:
            break
    return tokens
