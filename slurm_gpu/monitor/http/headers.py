"""Define headers that restrict browsers to the features that the pages need.

The server adds them to each answer, including its own answers to invalid requests. No part of the application
can therefore omit a header, or allow more by adding another policy, since browsers apply every policy.
"""

from __future__ import annotations

# Allow nothing inline, nothing from other origins, and no frame around the page.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
)
HEADERS = (
    ("content-security-policy", POLICY),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("x-frame-options", "DENY"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
)
