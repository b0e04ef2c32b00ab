"""Create a Content-Security-Policy that allows a self-contained page only its own parts, by hash."""

from __future__ import annotations

import base64
import hashlib


def content_policy(style: str, script: str, *others: str) -> str:
    """Return the policy for a page with one style and one script; `others` are additional directives.

    Source: Content Security Policy Level 3, and Trusted Types (W3C).
    """
    directives = (
        "default-src 'none'",
        *others,
        f"script-src {_hash(script)}",
        f"style-src {_hash(style)}",
        "base-uri 'none'",
        "form-action 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
    return "; ".join(directives)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
