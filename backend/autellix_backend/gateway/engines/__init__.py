"""The engines behind the gateway: the pool, one handle per engine, its queue, and what it reports."""
