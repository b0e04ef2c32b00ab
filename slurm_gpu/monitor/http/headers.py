"""Headers that keep a browser from doing what no page of ours asks for.

The server itself puts them on each answer: no part of the application can forget one, nor allow more, as a
browser keeps to all of several policies. The server's own answers, as to what is no request, have them too.
"""

from __future__ import annotations

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
)
"""Nothing inline, nothing from elsewhere, in nobody's frame."""
HEADERS = (
    ("content-security-policy", POLICY),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("x-frame-options", "DENY"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
)
