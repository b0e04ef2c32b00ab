"""Argument types and input errors of the benchmarks: messages name the valid values."""

from __future__ import annotations

import argparse
import math
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from slurm_gpu.errors import InputError


def number(least: int, most: int | None = None) -> Callable[[str], int]:
    """Return a parser for whole numbers from `least` to `most` (None: no maximum)."""

    def read(text: str) -> int:
        if text.isascii() and text.isdecimal() and least <= int(text) and (most is None or int(text) <= most):
            return int(text)
        bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number {bounds}")

    return read


def numbers(text: str) -> list[int]:
    """Parse comma-separated whole numbers of at least 0, and sort them."""
    return sorted(number(0)(part) for part in text.split(","))


def seconds(least: float) -> Callable[[str], float]:
    """Return a parser for times of at least `least` seconds."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if least <= value < math.inf:
            return value
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least {least:g} s")

    return read


def part(text: str) -> float:
    """Parse a fraction from 0 to 1."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if 0 <= value <= 1:
        return value
    raise argparse.ArgumentTypeError(f"{text!r} is not a fraction from 0 to 1")


def program(text: str) -> str:
    """Return the absolute path of an existing program."""
    path = shutil.which(text)
    if path is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a program on this machine")
    return path


@contextmanager
def input_errors() -> Iterator[None]:
    """Exit with the message of an InputError instead of a traceback."""
    try:
        yield
    except InputError as error:
        print(f"{Path(sys.argv[0]).name}: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


def directory(text: str) -> Path:
    """Return the absolute path of a directory, which is created if missing."""
    path = Path(text).resolve()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text!r} cannot be made a directory: {error.strerror}") from error
    return path
