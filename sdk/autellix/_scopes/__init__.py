"""The `with` blocks that open programs, threads and sessions."""
