"""A model runner without a model: it keeps what each KV slot holds, and checks it before it is read."""

from __future__ import annotations

import random
from collections.abc import Container
from dataclasses import dataclass, field
from typing import Any

from tests.vllm_plugin.fuzz.scripts import WINDOW, Setup
from tests.vllm_plugin.fuzz.tokens import TOKENS, kept, kept_of, next_token
from vllm.v1.outputs import DraftTokenIds, KVConnectorOutput, ModelRunnerOutput

NULL_BLOCK = 0


class WrongKVError(AssertionError):
    """The scheduler has a request read what nobody has computed, or write where it must not."""


@dataclass(slots=True)
class _Request:
    prompt: list[int]
    adapter: int
    blocks: list[list[int]]
    computed: int
    images: list[Any] = field(default_factory=list)
    output: list[int] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.output


class KVRunner:
    """Executes scheduler outputs by the protocol of vLLM's model runners."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._slots: list[dict[tuple[int, int], int]] = [{} for _ in setup.layers]
        """What is in each slot of a block, by group of layers."""
        self._requests: dict[str, _Request] = {}
        self._batch: set[str] = set()
        self.host: set[int] = set()
        """What the last token of each block in host memory has; it stands for all before it."""
        self._loading: list[tuple[int, Any]] = []
        """Each with the step in which it ends."""
        self._steps = 0
        self._images: set[str] = set()
        """The images that the encoder's cache has."""
        self._failed_before: set[int] = set()
        """The blocks whose loads failed in the step before."""
        self.has_failed = False
        """Whether a load has failed."""

    def lose_memory(self) -> None:
        """Forget what is in all blocks and of all images, as an engine does to sleep."""
        for slots in self._slots:
            slots.clear()
        self._images.clear()

    def execute(self, output: Any) -> ModelRunnerOutput:
        """Execute a step."""
        self._steps += 1
        loaded = self._load(output.kv_connector_metadata)
        self._update(output)
        sampled, reads = {}, []
        failed = loaded.invalid_block_ids if loaded is not None else set()
        # A step that overlaps with the one in which a load failed still has the request, which fails for it.
        is_failing = self._setup.failures == "fail" and self._setup.mode != "sync"
        failed, self._failed_before = failed | self._failed_before, failed if is_failing else set()
        for name, count in output.num_scheduled_tokens.items():
            request = self._requests[name]
            drafts = output.scheduled_spec_decode_tokens.get(name, [])
            if self._is_garbled(request, failed):
                # The scheduler learns of it with the step, and is to drop what comes of it.
                sampled[name] = self._garble(name, request, count)
                continue
            # Nobody reads before all have written.
            reads.append((name, request, len(request.tokens)))
            sampled[name] = self._compute(name, request, count, drafts)
        for name, request, known in reads:
            self._check(name, request, request.tokens[:known])
        return ModelRunnerOutput(
            req_ids=[*sampled],
            req_id_to_index={name: place for place, name in enumerate(sampled)},
            sampled_token_ids=[*sampled.values()],
            kv_connector_output=loaded,
        )

    def draft(self, generator: random.Random) -> DraftTokenIds:
        """Draft tokens for the requests of the last step, some of them wrong."""
        names = [name for name in self._batch if name in self._requests]
        return DraftTokenIds(names, [self._drafts_of(self._requests[name], generator) for name in names])

    def _drafts_of(self, request: _Request, generator: random.Random) -> list[int]:
        value, drafts = kept_of(request.tokens, request.adapter), list[int]()
        for _ in range(generator.randint(0, self._setup.drafts)):
            token = next_token(value)
            drafts.append(token if generator.random() < 0.65 else (token + 1) % TOKENS)
            value = kept(value, drafts[-1])
        return drafts

    def _update(self, output: Any) -> None:
        is_v2 = self._setup.mode.startswith("v2")
        # Model runner V2 forgets a request that was preempted, and gets a resumed one as a new one.
        for name in output.finished_req_ids | (output.preempted_req_ids or set() if is_v2 else set()):
            self._requests.pop(name, None)
        self._images -= set(output.free_encoder_mm_hashes)
        for new in output.scheduled_new_reqs:
            adapter = new.lora_request.lora_int_id if new.lora_request else 0
            request = self._requests[new.req_id] = _Request(
                prompt=list(new.prompt_token_ids),
                adapter=adapter,
                blocks=[list(blocks) for blocks in new.block_ids],
                computed=new.num_computed_tokens,
                images=list(new.mm_features),
            )
            request.output = list((new.prefill_token_ids or [])[len(request.prompt) :])
        cached = output.scheduled_cached_reqs
        for place, name in enumerate(cached.req_ids):
            self._update_cached(cached, place, self._requests[name], name)
        self._batch = set(output.num_scheduled_tokens)
        for name, numbers in output.scheduled_encoder_inputs.items():
            self._images.update(self._requests[name].images[number].identifier for number in numbers)

    def _update_cached(self, cached: Any, place: int, request: _Request, name: str) -> None:
        outputs, blocks = cached.num_output_tokens[place], cached.new_block_ids[place]
        del request.output[outputs:]
        if name in cached.resumed_req_ids:
            if blocks is None:
                raise WrongKVError(f"{name} resumes without blocks")
            request.blocks = [list(each) for each in blocks]
        elif blocks is not None:
            for own, more in zip(request.blocks, blocks, strict=True):
                own.extend(more)
        request.computed = cached.num_computed_tokens[place]
        if name not in self._batch and not self._setup.mode.startswith("v2"):
            # The persistent batch has forgotten it.
            if name not in cached.all_token_ids:
                raise WrongKVError(f"{name} was not in the previous batch and comes without its tokens")
            if self._setup.mode == "async" and outputs:
                request.output = list(cached.all_token_ids[name][-outputs:])

    def _compute(self, name: str, request: _Request, count: int, drafts: list[int]) -> list[int]:
        """Write what some tokens have; return those that follow, if the context is complete."""
        tokens = request.tokens
        end, known = request.computed + count, len(tokens)
        if end > known + len(drafts):
            raise WrongKVError(f"{name} is to compute tokens to {end} and has {known + len(drafts)}")
        for image in request.images:
            place = image.mm_position
            is_read = place.offset < end and request.computed < place.offset + place.length
            if is_read and image.identifier not in self._images:
                raise WrongKVError(f"{name} needs {image.identifier}, which no encoder has")
        with_drafts = tokens + drafts
        value = kept_of(tokens[: request.computed], request.adapter)
        for position in range(request.computed, end):
            value = kept(value, with_drafts[position])
            for group in range(len(self._slots)):
                self._slots[group][self._slot(name, request, group, position)] = value
            if (position + 1) % self._setup.block_tokens == 0 and position < known:
                self.host.add(value)
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

    def _is_garbled(self, request: _Request, failed: Container[int]) -> bool:
        """Whether a request reads blocks whose load has failed in this step."""
        read = request.blocks[0][: -(-request.computed // self._setup.block_tokens)]
        return any(block in failed for block in read)

    def _garble(self, name: str, request: _Request, count: int) -> list[int]:
        """Write what nobody may read; return the token that comes of it, if the context is complete."""
        known = len(request.tokens)
        for position in range(request.computed, request.computed + count):
            self._slots[0].pop(self._slot(name, request, 0, position), None)
        sampled = [1] if request.computed + count >= known else []
        request.output.extend(sampled)
        return sampled

    def _slot(self, name: str, request: _Request, group: int, position: int) -> tuple[int, int]:
        place, offset = divmod(position, self._setup.block_tokens)
        if place >= len(request.blocks[group]) or request.blocks[group][place] == NULL_BLOCK:
            raise WrongKVError(f"{name} has no block for token {position} in group {group}")
        return request.blocks[group][place], offset

    def _check(self, name: str, request: _Request, tokens: list[int]) -> None:
        """Check what a request has read of the tokens before those that it has just computed."""
        for group, kind in enumerate(self._setup.layers):
            first = {
                "full": 0,
                "window": max(0, request.computed - WINDOW + 1),
                "local": request.computed // WINDOW * WINDOW,
            }[kind]
            value = kept_of(tokens[:first], request.adapter)
            for position in range(first, request.computed):
                value = kept(value, tokens[position])
                slot = self._slot(name, request, group, position)
                if self._slots[group].get(slot) != value:
                    raise WrongKVError(f"{name} reads a wrong token {position} in block {slot[0]} of {kind}")

    # Loads.

    def _load(self, begun: Any) -> KVConnectorOutput | None:
        if not self._setup.loads:
            return None
        # A `MultiConnector` has one for each of those behind it.
        parts = begun.metadata if self._setup.connectors else (begun,)
        loads = [load for part in parts for load in part.loads]
        self._loading += [(self._steps + 2 * load.is_later, load) for load in loads]
        ended = [load for step, load in self._loading if step <= self._steps]
        self._loading = [(step, load) for step, load in self._loading if step > self._steps]
        failed = set[int]()
        for load in ended:
            blocks = list(load.contents)
            # All from some block on.
            first = {"": len(blocks), "blocks": len(blocks) // 2, "request": 0}[load.failure]
            failed.update(blocks[first:] if load.failure == "blocks" else ())
            self.has_failed |= bool(load.failure)
            for block in blocks[:first]:
                values = load.contents[block]
                self._slots[0].update({(block, offset): value for offset, value in enumerate(values)})
        return KVConnectorOutput(
            finished_recving={load.request for load in ended if load.is_later},
            invalid_block_ids=failed,
            failed_recving={load.request for load in ended if load.failure == "request"},
        )


def blocks_of(tokens: list[int], adapter: int, block_tokens: int) -> dict[int, list[int]]:
    """Return what the tokens of each full block have, by that of the block's last token, in their order."""
    blocks, values = dict[int, list[int]](), list[int]()
    value = kept_of((), adapter)
    for token in tokens:
        value = kept(value, token)
        values.append(value)
        if len(values) == block_tokens:
            blocks[value] = values
            values = []
    return blocks
