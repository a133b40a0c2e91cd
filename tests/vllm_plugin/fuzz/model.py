"""A model runner without a model for scripts: with drafts, images, windows, and loads from host memory."""

from __future__ import annotations

import random
from collections.abc import Container, Sequence
from typing import Any

from tests.vllm_plugin.fuzz.scripts import WINDOW, Setup
from vllm.v1.outputs import DraftTokenIds, KVConnectorOutput, ModelRunnerOutput

from autellix_backend.vllm_plugin.trial_runner import (
    TOKENS,
    RunnerRequest,
    TrialRunner,
    WrongKVError,
    kept,
    kept_of,
    next_token,
)


class KVRunner(TrialRunner):
    """Executes scheduler outputs by the protocol of the model runner that a setup has."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup.block_tokens, len(setup.layers))
        self._setup = setup
        self.host: set[int] = set()
        """What the last token of each block in host memory has; it stands for all before it."""
        self._loading: list[tuple[int, Any]] = []
        """Each with the step in which it ends."""
        self._steps = 0
        self._images: set[str] = set()
        """The images that the encoder's cache has."""
        self._images_of: dict[str, list[Any]] = {}
        self._failed: set[int] = set()
        """The blocks whose loads have failed, and that nobody may read in this step."""
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
        failed = loaded.invalid_block_ids if loaded is not None else set()
        # A step that overlaps with the one in which a load failed still has the request, which fails for it.
        is_failing = self._setup.failures == "fail" and self._setup.mode != "sync"
        self._failed = failed | self._failed_before
        self._failed_before = failed if is_failing else set()
        results = super().execute(output)
        results.kv_connector_output = loaded
        return results

    def draft(self, generator: random.Random) -> DraftTokenIds:
        """Draft tokens for the requests of the last step, some of them wrong."""
        # The order of a set differs between processes.
        names = sorted(name for name in self._batch if name in self._requests)
        return DraftTokenIds(names, [self._drafts_of(self._requests[name], generator) for name in names])

    def _drafts_of(self, request: RunnerRequest, generator: random.Random) -> list[int]:
        value, drafts = kept_of(request.tokens, request.adapter), list[int]()
        for _ in range(generator.randint(0, self._setup.drafts)):
            token = next_token(value)
            drafts.append(token if generator.random() < 0.65 else (token + 1) % TOKENS)
            value = kept(value, drafts[-1])
        return drafts

    def _update(self, output: Any) -> None:
        if self._setup.mode.startswith("v2"):
            # Model runner V2 forgets a request that was preempted, and gets a resumed one as a new one.
            for name in output.preempted_req_ids or ():
                self._requests.pop(name, None)
        self._images -= set(output.free_encoder_mm_hashes)
        self._images_of.update((new.req_id, list(new.mm_features)) for new in output.scheduled_new_reqs)
        super()._update(output)
        for name, numbers in output.scheduled_encoder_inputs.items():
            self._images.update(self._images_of[name][number].identifier for number in numbers)

    def _update_cached(self, cached: Any, place: int, name: str, request: RunnerRequest) -> None:
        is_forgotten = name not in self._batch and not self._setup.mode.startswith("v2")
        if is_forgotten and name not in cached.all_token_ids:
            raise WrongKVError(f"{name} was not in the previous batch and comes without its tokens")
        super()._update_cached(cached, place, name, request)

    def _run(self, name: str, request: RunnerRequest, count: int, drafts: Sequence[int]) -> list[int]:
        if self._is_garbled(request, self._failed):
            # The scheduler learns of it with the step, and is to drop what comes of it.
            return self._garble(name, request, count)
        for image in self._images_of[name]:
            place = image.mm_position
            is_read = (
                place.offset < request.computed + count and request.computed < place.offset + place.length
            )
            if is_read and image.identifier not in self._images:
                raise WrongKVError(f"{name} needs {image.identifier}, which no encoder has")
        known = len(request.tokens)
        sampled = super()._run(name, request, count, drafts)
        for position in range(request.computed, min(request.computed + count, known)):
            if (position + 1) % self._setup.block_tokens == 0:
                self.host.add(self._slots[0][self._slot(name, request, 0, position)])
        return sampled

    def _is_garbled(self, request: RunnerRequest, failed: Container[int]) -> bool:
        """Whether a request reads blocks whose load has failed in this step."""
        read = request.blocks[0][: -(-request.computed // self._setup.block_tokens)]
        return any(block in failed for block in read)

    def _garble(self, name: str, request: RunnerRequest, count: int) -> list[int]:
        """Write what nobody may read; return the token that comes of it, if the context is complete."""
        known = len(request.tokens)
        for position in range(request.computed, request.computed + count):
            self._slots[0].pop(self._slot(name, request, 0, position), None)
        sampled = [1] if request.computed + count >= known else []
        request.output.extend(sampled)
        return sampled

    def _first_read(self, group: int, request: RunnerRequest) -> int:
        return {
            "full": 0,
            "window": max(0, request.computed - WINDOW + 1),
            "local": request.computed // WINDOW * WINDOW,
        }[self._setup.layers[group]]

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
