"""A KV connector that finds the blocks that the runner has computed in host memory, and loads them."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from tests.vllm_plugin.fuzz.model import blocks_of
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata


@dataclass(slots=True)
class Load:
    """Blocks of one request to load, and what each is to hold."""

    request: str
    contents: dict[int, list[int]]
    is_later: bool
    """Whether it takes more than the step."""
    is_failing: bool


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

    def set_up(self, kind: str, host: set[int], block_tokens: int, seed: int) -> None:
        """Load by `scripts.Setup.loads` what is in host memory."""
        self._kind, self._host, self._block_tokens = kind, host, block_tokens
        self._generator = random.Random(seed)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """Return the tokens to load behind those that are computed, and whether the load takes steps."""
        is_later = self._kind != "now"
        if is_later and self._generator.random() < 0.1:
            # Not known yet.
            return None, False
        found = self._found[request.request_id] = num_computed_tokens // self._block_tokens
        for value in [*self._blocks(request)][found:]:
            if value not in self._host:
                break
            found += 1
        # The last token is always computed.
        found = min(found, (request.num_tokens - 1) // self._block_tokens)
        tokens = max(0, found * self._block_tokens - num_computed_tokens)
        return tokens, is_later and tokens > 0

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Begin a load into the blocks that a request has got."""
        if num_external_tokens:
            first = self._found[request.request_id]
            places = range(first, first + num_external_tokens // self._block_tokens)
            held, values = blocks.get_block_ids()[0], [*self._blocks(request).values()]
            self._loads.loads.append(
                Load(
                    request=request.request_id,
                    contents={held[place]: values[place] for place in places},
                    is_later=self._kind != "now",
                    is_failing=self._kind == "failing" and self._generator.random() < 0.3,
                )
            )

    def build_connector_meta(self, scheduler_output: Any) -> Loads:
        """Return the loads that begin in this step."""
        del scheduler_output
        loads, self._loads = self._loads, Loads()
        return loads

    def _blocks(self, request: Any) -> dict[int, list[int]]:
        adapter = request.lora_request.lora_int_id if request.lora_request else 0
        return blocks_of(list(request.all_token_ids), adapter, self._block_tokens)

    # What the runner does in its place.

    def start_load_kv(self, *_: Any, **__: Any) -> None:
        """Do nothing."""

    def wait_for_layer_load(self, *_: Any) -> None:
        """Do nothing."""

    def save_kv_layer(self, *_: Any, **__: Any) -> None:
        """Do nothing."""

    def wait_for_save(self) -> None:
        """Do nothing."""
