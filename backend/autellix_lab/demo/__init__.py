"""The demo and its model."""
