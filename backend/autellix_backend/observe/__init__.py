"""Metrics, the call log and traces."""
