"""The values of the header `X-Autellix-Priority`: how urgent a program is to its tenant."""

from __future__ import annotations

INTERACTIVE = "interactive"
"""It counts as having arrived earlier, within bounds."""
DEFAULT = "default"
BATCH = "batch"
"""It fills what the others leave free, within bounds."""
PRIORITIES = (INTERACTIVE, DEFAULT, BATCH)
