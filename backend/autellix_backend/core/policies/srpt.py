"""Shortest remaining processing time, over programs.

Rule: the program with the least service still to come runs first.
Formula: p(c) = the true service of all calls of the program that have not completed.
When to choose it: never live, since no engine knows it; in the simulator, as the bound of what is possible.
Cost: large programs wait as long as smaller ones keep coming.
"""

from __future__ import annotations

from typing import ClassVar

from autellix_backend.core.policies.hinted import Hinted


class Srpt(Hinted):
    """Favour programs that need the least from now on, as only a simulator can know."""

    name: ClassVar[str] = "srpt"
    is_clairvoyant: ClassVar[bool] = True
