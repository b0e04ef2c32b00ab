"""The response of the read API."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import JSONResponse


class Answer(JSONResponse):
    """A response whose content, types of `slurm_gpu.wire.answers` included, becomes JSON."""

    def render(self, content: Any) -> bytes:
        """Return the body."""
        return msgspec.json.encode(content)
