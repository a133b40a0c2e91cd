"""One call from its request to its settlement."""
