"""A KV connector that finds the blocks that the runner has computed in host memory, and loads them."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from tests.vllm_plugin.fuzz.model import blocks_of
from tests.vllm_plugin.fuzz.scripts import Setup
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata


@dataclass(slots=True)
class Load:
    """Blocks of one request to load, and what each is to hold."""

    request: str
    contents: dict[int, list[int]]
    is_later: bool
    """Whether it takes more than the step."""
    failure: str
    """What of it fails: nothing, its later `blocks`, or the load of this `request` as a whole."""


@dataclass(slots=True)
class Loads(KVConnectorMetadata):
    """The loads that begin in a step."""

    loads: list[Load] = field(default_factory=list)


class HostConnector(KVConnectorBase_V1):
    """The scheduler's side; the other one is the runner."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._loads = Loads()
        self._found: dict[str, int] = {}
        """The blocks that a request has without a load."""
        self._loading: dict[str, set[int]] = {}
        """What loads of several steps are under way, by request."""
        self._given_up: set[str] = set()
        """Requests whose load fails: vLLM counts its blocks against another one, which may never begin."""
        self.is_strict = False
        """Whether to fail if a load of a request begins that is preempted for the step, as vLLM does."""

    def set_up(self, setup: Setup, host: set[int], number: int, seed: int) -> None:
        """Load what is in host memory; of several connectors each has its part of that."""
        self._setup, self._host, self._number = setup, host, number
        self._generator = random.Random(seed + number)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """Return the tokens to load behind those that are computed, and whether the load takes steps."""
        is_later, block_tokens = self._setup.loads == "later", self._setup.block_tokens
        first = found = num_computed_tokens // block_tokens
        values = [*self._blocks(request)]
        for value in values[first:]:
            if value not in self._host or (value + self._number) % 5 == 0:
                break
            found += 1
        under_way = set[int]().union(*self._loading.values())
        if is_later and (not under_way.isdisjoint(values[first:found]) or self._generator.random() < 0.05):
            # vLLM's own connector does not load again what it is loading; another one may not know yet.
            return None, False
        if request.request_id in self._given_up:
            return 0, False
        self._found[request.request_id] = first
        # The last token is always computed.
        found = min(found, (request.num_tokens - 1) // block_tokens)
        tokens = max(0, found * block_tokens - num_computed_tokens)
        return tokens, is_later and tokens > 0

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Begin a load into the blocks that a request has got."""
        if num_external_tokens:
            first, is_later = self._found[request.request_id], self._setup.loads == "later"
            places = range(first, first + num_external_tokens // self._setup.block_tokens)
            held, values = blocks.get_block_ids()[0], [*self._blocks(request).items()]
            fails = self._setup.failures and self._generator.random() < 0.3
            if fails:
                self._given_up.add(request.request_id)
            kinds = ["blocks", "request"] if is_later else ["blocks"]
            self._loads.loads.append(
                Load(
                    request=request.request_id,
                    contents={held[place]: values[place][1] for place in places},
                    is_later=is_later,
                    failure=self._generator.choice(kinds) if fails else "",
                )
            )
            if is_later:
                self._loading[request.request_id] = {values[place][0] for place in places}

    def update_connector_output(self, connector_output: Any) -> None:
        """Note the loads that have ended."""
        for name in connector_output.finished_recving or ():
            self._loading.pop(name, None)

    def build_connector_meta(self, scheduler_output: Any) -> Loads:
        """Return the loads that begin in this step."""
        loading = {load.request for load in self._loads.loads}
        preempted = set(scheduler_output.preempted_req_ids or ())
        assert not (self.is_strict and loading & preempted), "a load of a preempted request begins"
        loads, self._loads = self._loads, Loads()
        return loads

    def _blocks(self, request: Any) -> dict[int, list[int]]:
        adapter = request.lora_request.lora_int_id if request.lora_request else 0
        return blocks_of(list(request.all_token_ids), adapter, self._setup.block_tokens)

    # What the runner does in its place.

    def start_load_kv(self, *_: Any, **__: Any) -> None:
        """Do nothing."""

    def wait_for_layer_load(self, *_: Any) -> None:
        """Do nothing."""

    def save_kv_layer(self, *_: Any, **__: Any) -> None:
        """Do nothing."""

    def wait_for_save(self) -> None:
        """Do nothing."""
