"""What a limiter counts, and its invariants."""

from __future__ import annotations

from autellix_backend.gateway.tenancy.limiter import Limiter


def counted_programs(limiter: Limiter) -> int:
    """Return the number of programs with usage."""
    return len(limiter._programs)


def reserved_calls(limiter: Limiter) -> int:
    """Return the number of calls that hold a reservation."""
    return sum(usage.calls for usage in limiter._tenants.values())


def check_usage(limiter: Limiter) -> None:
    """Assert every invariant."""
    in_programs = [each for each in limiter._reservations.values() if each.program_id is not None]
    assert len(in_programs) == sum(program.running for program in limiter._programs.values())
    assert len(limiter._reservations) == reserved_calls(limiter)
    for usage in limiter._tenants.values():
        assert usage.calls >= 0
        assert usage.call_bytes >= 0
        assert usage.calls or not (usage.call_bytes or usage.reserved_tokens)
