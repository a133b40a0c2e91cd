"""The environment variables that begin as ours do are known, or said to mean nothing."""

from __future__ import annotations

import re
from pathlib import Path

from autellix_backend.settings import unknown_variables

ROOT = Path(__file__).parents[2]
NAME = re.compile(r"\bAUTELLIX_[A-Z]+(?:_[A-Z]+)*\b(?!_)")
SUFFIXES = (".py", ".yaml", ".env", ".service", ".tpl")
PLACEHOLDERS = {"AUTELLIX_SECTION_FIELD", "AUTELLIX_GATEWAY"}
"""Names in texts that stand for others."""


def test_every_variable_that_we_read_or_set_is_known() -> None:
    """In the client, the backend, the scripts and what deploys them."""
    files = [path for place in ("sdk", "backend", "scripts", "deploy") for path in (ROOT / place).rglob("*")]
    texts = [path.read_text("utf-8") for path in files if path.suffix in SUFFIXES]
    named = {name for text in texts for name in NAME.findall(text)} - PLACEHOLDERS
    assert {"AUTELLIX_BASE_URL", "AUTELLIX_GATEWAY_PORT", "AUTELLIX_SESSION_PROOF"} <= named
    assert unknown_variables(dict.fromkeys(named, "1")) == []


def test_a_misspelt_one_names_the_nearest() -> None:
    # The settings themselves refuse one of a section.
    environ = {"AUTELLIX_GATWAY_PORT": "1", "AUTELLIX_GATEWAY_PROT": "1", "PATH": "/bin", "AUTELLIXES": "1"}
    assert unknown_variables(environ) == [
        "AUTELLIX_GATWAY_PORT is not a variable of Autellix; did you mean AUTELLIX_GATEWAY_PORT?"
    ]
