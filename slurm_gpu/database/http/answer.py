"""The response of the read API."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import JSONResponse


class Answer(JSONResponse):
    """A response whose content is encoded as JSON; it may have types of `slurm_gpu.wire.answers`."""

    def render(self, content: Any) -> bytes:
        """Return the body."""
        return msgspec.json.encode(content)
