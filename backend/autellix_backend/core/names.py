"""The names of policies and admission rules: what a configuration may say, without what implements it."""

from __future__ import annotations

from collections.abc import Collection

LIVE_POLICY_NAMES = (
    "boost",
    "plas",
    "atlas",
    "atlas_dag",
    "fcfs",
    "sjf",
    "round_robin",
    "mlfq",
)
"""The policies that an engine can run."""
POLICY_NAMES = (*LIVE_POLICY_NAMES, "srpt")
ADMISSION_NAMES = ("working_set", "none")
USUAL_ADMISSION = {"boost": "working_set"}
"""The admission rule that "auto" stands for, by policy; "none" for the others."""


def present_name(name: str, names: Collection[str]) -> str:
    """Return a choice as these names spell it: version 0.2 wrote `working-set` for `working_set`.

    Accepted until version 0.4.
    """
    spelled = name.replace("-", "_")
    return spelled if spelled in names else name
