"""The admission rules by name: which programs may run on an engine."""

from __future__ import annotations

import math
from collections.abc import Callable

from autellix_backend.core.admission.base import Admission, AdmissionInputs
from autellix_backend.core.admission.working_set import WorkingSetAdmission

__all__ = ["Admission", "AdmissionInputs", "make_admission"]

_RULES: dict[str, Callable[[AdmissionInputs], Admission]] = {
    "working_set": WorkingSetAdmission,
    "none": lambda _: Admission(),
}


def make_admission(inputs: AdmissionInputs) -> Admission:
    """Return the configured admission of an engine; with unbounded KV memory, every program may run."""
    rule = "none" if inputs.kv_tokens == math.inf else inputs.config.admission_rule
    return _RULES[rule](inputs)
