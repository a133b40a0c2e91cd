"""The cluster in play: its pods, the node that plays them, and where results go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp
from tests.deploy.drill.contract import Backend, are_all_well, until
from tests.deploy.drill.node import Node
from tests.deploy.drill.pods import Part, Pod, of_part
from tests.deploy.drill.table import Table

START_S = 900.0


@dataclass(frozen=True, slots=True)
class Cluster:
    """Pods on a node."""

    node: Node
    pods: Sequence[Pod]
    table: Table

    @property
    def backend(self) -> Backend:
        """Its gateways, and how many engines they share."""
        gateways = [self.node.playing(pod.name) for pod in of_part(self.pods, Part.GATEWAY)]
        return Backend(gateways=gateways, engines=len(of_part(self.pods, Part.ENGINE)))

    def start(self) -> None:
        """Play all pods, and return once they are ready."""
        self.node.play(self.pods)
        self.node.await_ready([pod.name for pod in self.pods], START_S)

    def first(self, part: Part) -> Pod:
        """Return the first pod of a part."""
        return of_part(self.pods, part)[0]

    def last(self, part: Part) -> Pod:
        """Return the last pod of a part."""
        return of_part(self.pods, part)[-1]

    async def is_well(self, session: aiohttp.ClientSession) -> None:
        """Wait until all engines report to all gateways."""
        await until("all is well", lambda: are_all_well(session, self.backend), START_S)
