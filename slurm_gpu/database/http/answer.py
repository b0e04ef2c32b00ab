"""JSON responses of slurm-gpudbd's API."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import JSONResponse


class Answer(JSONResponse):
    """A JSON response whose content may contain types from `slurm_gpu.wire.answers`."""

    def render(self, content: Any) -> bytes:
        """Return the encoded body."""
        return msgspec.json.encode(content)
