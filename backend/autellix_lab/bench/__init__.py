"""Replay programs against a live backend and compare policies; talks HTTP only."""
