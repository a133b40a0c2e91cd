"""Engines: servers that answer calls, started here or elsewhere, and a fake one for tests."""
