"""Engines for tests and fault injection."""
