"""Durations for people."""

from __future__ import annotations


def seconds(value: float) -> str:
    """Format a duration (s) for people."""
    if 0 < value < 0.0005:
        return "< 1 ms"
    if 0 < value < 0.0995:
        return f"{value * 1000:.0f} ms"
    if 0 < value < 0.995:
        return f"{value:.2f} s"
    return f"{value:.1f} s" if 0 < value < 99.95 else f"{value:.0f} s"
