"""Draw matrices of numbers as small indexed PNG pictures in accessible colours, encoded as `data:` URLs."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.diagnose.robust import Matrix

# A colour as red, green, blue and alpha, each from 0 to 255.
Colour = tuple[int, int, int, int]

# The number of levels of a scale: one for each percentage from 0 to 100.
N_LEVELS = 101
_GAP = (128, 132, 140, 70)
# Colours from dark blue through grey to yellow. Colour-blind users can recognise their order by brightness.
_SEQUENTIAL = (
    (0.0, (11, 29, 81)),
    (0.25, (58, 82, 122)),
    (0.5, (116, 124, 126)),
    (0.75, (184, 166, 96)),
    (1.0, (254, 232, 74)),
)
_BELOW, _ABOVE = (0, 119, 187), (238, 119, 51)


def sequential() -> list[Colour]:
    """Return the colours from low (dark) to high (bright), followed by one for missing values."""
    at = np.linspace(0, 1, N_LEVELS)
    stops = [stop for stop, _ in _SEQUENTIAL]
    parts = [np.interp(at, stops, [colour[part] for _, colour in _SEQUENTIAL]) for part in range(3)]
    return [(round(r), round(g), round(b), 255) for r, g, b in zip(*parts, strict=True)] + [_GAP]


def diverging() -> list[Colour]:
    """Return the colours from below (blue) through equal (clear) to above (orange), then one for NaN."""
    levels = np.linspace(-1, 1, N_LEVELS)
    return [
        (*(_BELOW if level < 0 else _ABOVE), round(255 * min(1.0, abs(level) ** 0.8))) for level in levels
    ] + [_GAP]


def picture(levels: Matrix, palette: Sequence[Colour]) -> str:
    """Return a `data:` URL of a PNG picture with one pixel per value; values are from 0 to 1, or NaN."""
    known = np.isfinite(levels)
    steps = np.round(np.clip(np.where(known, levels, 0.0), 0.0, 1.0) * (N_LEVELS - 1))
    places = np.where(known, steps, N_LEVELS).astype(np.uint8)
    return f"data:image/png;base64,{base64.b64encode(_png(places, palette)).decode('ascii')}"


def _png(places: NDArray[np.uint8], palette: Sequence[Colour]) -> bytes:
    height, width = places.shape
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    colours = bytes(part for colour in palette for part in colour[:3])
    covers = bytes(colour[3] for colour in palette)
    lines = np.zeros((height, width + 1), dtype=np.uint8)  # each line begins with its filter type, 0 for none
    lines[:, 1:] = places
    chunks = ((b"IHDR", header), (b"PLTE", colours), (b"tRNS", covers))
    body = (b"IDAT", zlib.compress(lines.tobytes(), 9))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*one) for one in (*chunks, body, (b"IEND", b"")))


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
