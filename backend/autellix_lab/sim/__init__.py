"""Discrete-event simulator over the live scheduler's code."""
