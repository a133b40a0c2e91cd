"""Copying KV blocks between memories: the binding of the native library, and an equal fallback."""
