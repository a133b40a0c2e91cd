"""The scheduling policies by name."""

from __future__ import annotations

from autellix_backend.core.errors import UnknownPolicyError
from autellix_backend.core.names import POLICY_NAMES, present_name
from autellix_backend.core.policies.atlas import Atlas
from autellix_backend.core.policies.atlas_dag import AtlasDag
from autellix_backend.core.policies.base import Policy
from autellix_backend.core.policies.boost import Boost
from autellix_backend.core.policies.fcfs import Fcfs
from autellix_backend.core.policies.mlfq import Mlfq
from autellix_backend.core.policies.plas import Plas
from autellix_backend.core.policies.round_robin import Rotation
from autellix_backend.core.policies.sjf import Sjf
from autellix_backend.core.policies.srpt import Srpt

__all__ = ["Policy", "make_policy"]

_ALL: tuple[type[Policy], ...] = (Boost, Plas, Atlas, AtlasDag, Fcfs, Sjf, Rotation, Mlfq, Srpt)
_POLICIES: dict[str, type[Policy]] = {policy.name: policy for policy in _ALL}


def make_policy(name: str) -> Policy:
    """Return the policy of this name.

    Raises:
        UnknownPolicyError: no policy has this name; the message lists those that exist.
    """
    try:
        return _POLICIES[present_name(name, POLICY_NAMES)]()
    except KeyError:
        raise UnknownPolicyError(name, POLICY_NAMES) from None
