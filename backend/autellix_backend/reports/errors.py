"""The error of a malformed message."""

from __future__ import annotations


class ReportError(ValueError):
    """A datagram holds neither the report of a call nor the snapshot of an engine."""
