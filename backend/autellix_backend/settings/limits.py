"""What one tenant may take of a backend: caps, rates and budgets, each of them optional."""

from __future__ import annotations

from dataclasses import dataclass, fields

from autellix_backend.settings.base import check_positive


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantLimits:
    """The limits of each tenant, and of the one tenant that there is without a tenants file.

    None is no limit, and costs nothing.
    """

    max_programs: int | None = None
    """Programs in the table at once."""
    max_calls: int | None = None
    """Calls between their arrival and their settlement."""
    max_call_bytes: int | None = None
    """Bytes of the bodies of those calls, added up."""
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    """Prompt and output tokens, charged when a call is settled."""
    program_calls: int | None = None
    """Calls of one program."""
    program_tokens: int | None = None
    """Prompt and output tokens of one program."""
    program_service_s: float | None = None
    """Service by engines that one program may attain."""
    day_tokens: int | None = None
    """Prompt and output tokens in one day, which begins at midnight UTC."""
    day_service_s: float | None = None
    """Service by engines in one day."""
    max_messages: int | None = None
    """Messages in one request."""
    max_output_tokens: int | None = None
    """Output tokens that one request may ask for, and what it gets if it asks for none."""

    def __post_init__(self) -> None:
        for item in fields(self):
            if getattr(self, item.name) is not None:
                check_positive("limits", self, item.name)
