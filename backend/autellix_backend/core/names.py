"""The names of policies and admission rules: what a configuration may say, without what implements it."""

from __future__ import annotations

LIVE_POLICY_NAMES = (
    "boost",
    "plas",
    "atlas",
    "atlas-dag",
    "hinted",
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
