"""Headers of the page's files: no content from other hosts, no foreign scripts, no framing."""

from __future__ import annotations


def content_policy(source: str, style_source: str, *more: str) -> str:
    """Return a Content-Security-Policy that allows scripts and styles of these sources, and no others."""
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {source}",
            f"style-src {style_source}",
            *more,
            "base-uri 'none'",
            "form-action 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        )
    )


_OWN = ("img-src 'self'", "connect-src 'self'", "frame-ancestors 'none'")
PAGE_HEADERS = {
    "content-security-policy": content_policy("'self'", "'self'", *_OWN),
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    # The next answer at this address may come from another version.
    "cache-control": "no-cache",
}
