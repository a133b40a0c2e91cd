"""Recorded traffic as program traces: counts and timings, never text."""
