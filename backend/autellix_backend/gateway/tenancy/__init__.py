"""Tenants, their API keys, quotas and rate limits."""
