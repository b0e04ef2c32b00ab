"""Read whole files that come from outside the project, up to a maximum size."""

from __future__ import annotations

from pathlib import Path

from slurm_gpu.errors import InputError

_PIECE = 2**20
MOST_VALUES = 2_000_000


def read_bytes(path: Path, most_bytes: int) -> bytes:
    """Return a file's content; raise InputError if it is larger than `most_bytes` or cannot be read."""
    content = bytearray()
    try:
        with path.open("rb", buffering=0) as file:
            # The size is not known in advance: pipes and files in /proc report none.
            while piece := file.read(_PIECE):
                content += piece
                if len(content) > most_bytes:
                    raise InputError(str(path), 0, 0, f"is larger than the maximum of {_shown(most_bytes)}")
    except OSError as error:
        raise InputError(str(path), 0, 0, f"cannot be read: {error.strerror}") from error
    return bytes(content)


def read_text(path: Path, most_bytes: int, encoding: str = "utf-8") -> str:
    """Return a file's text; raise InputError if it is too large, cannot be read or is not in `encoding`."""
    try:
        return read_bytes(path, most_bytes).decode(encoding)
    except UnicodeDecodeError as error:
        raise InputError(str(path), 0, 0, f"is not UTF-8 text (byte {error.start})") from error


def refuse_many_values(path: Path, text: str, between: str) -> None:
    """Raise InputError if a text has too many values, since a value can take 200 bytes in memory.

    `between` contains the characters that occur at most once per value.
    """
    n_values = sum(map(text.count, between))
    if n_values > MOST_VALUES:
        raise InputError(str(path), 0, 0, f"has about {n_values} values; at most {MOST_VALUES} are allowed")


def _shown(n_bytes: int) -> str:
    return f"{n_bytes >> 20} MiB" if n_bytes >= 2**20 else f"{n_bytes} bytes"
