"""The scheduling policies by name."""

from __future__ import annotations

from autellix_backend.core.errors import UnknownPolicyError
from autellix_backend.core.policies.atlas import Atlas
from autellix_backend.core.policies.base import Policy
from autellix_backend.core.policies.fcfs import Fcfs
from autellix_backend.core.policies.mlfq import Mlfq
from autellix_backend.core.policies.plas import Plas

__all__ = ["POLICY_NAMES", "Policy", "make_policy"]

_POLICIES: dict[str, type[Policy]] = {policy.name: policy for policy in (Atlas, Fcfs, Mlfq, Plas)}
POLICY_NAMES = tuple(_POLICIES)


def make_policy(name: str) -> Policy:
    """Return the policy of this name.

    Raises:
        UnknownPolicyError: no policy has this name; the message lists those that exist.
    """
    try:
        return _POLICIES[name]()
    except KeyError:
        raise UnknownPolicyError(name, POLICY_NAMES) from None
