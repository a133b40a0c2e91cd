"""Moving KV blocks between memories: the binding of the native library, and a fallback that equals it."""
