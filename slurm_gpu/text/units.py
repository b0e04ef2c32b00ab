"""Convert amounts between Slurm's notation and numbers: memory in MiB, durations in seconds."""

from __future__ import annotations

import re
from collections.abc import Iterable

# Maximum number of digits of a 64-bit number. Python refuses to convert thousands of digits.
_MOST_DIGITS = 19
# Slurm's own time formats (man sbatch, --time): M, M:S, H:M:S, D-H, D-H:M, D-H:M:S. The number of digits is
# limited here and below, because Python refuses to convert 4,300 digits, and 309 digits overflow a float.
_SLURM_TIME = re.compile(
    r"(?:(?P<days>\d{1,9})-(?P<dhours>\d{1,9})(?::(?P<dminutes>\d{1,9})(?::(?P<dseconds>\d{1,9}))?)?"
    r"|(?P<a>\d{1,9})(?::(?P<b>\d{1,9})(?::(?P<c>\d{1,9}))?)?)"
)
_DURATION = re.compile(r"(?P<number>\d{1,9}(?:\.\d{1,20})?)\s*(?P<unit>[smhdw])")
_DURATION_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_MEMORY = re.compile(r"(?P<number>\d{1,15}(?:\.\d{1,20})?)\s*(?P<unit>[KMGT])(?:i?B)?", re.IGNORECASE)
_MEMORY_MIB = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2}


def parse_whole(text: str, least: int = 0, most: int = 2**63 - 1) -> int:
    """Parse ASCII digits as a whole number; raise ValueError for other text or a number out of range."""
    if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS and least <= int(text) <= most:
        return int(text)
    raise ValueError(f"{text[:40]!r} must be a whole number from {least} to {most}")


def parse_duration(text: str) -> float:
    """Convert "90s", "10m", "4h", "7d", "2w", or a Slurm time with a colon or dash, to seconds.

    A number without a unit is rejected, since 60 means minutes to Slurm and seconds to most other programs.
    """
    stripped = text.strip()
    if match := _DURATION.fullmatch(stripped):
        return float(match["number"]) * _DURATION_S[match["unit"]]
    if "-" in stripped or ":" in stripped:
        return parse_slurm_time(stripped)
    raise ValueError(f"{text!r} is not a duration; write a number with s, m, h, d or w, such as 4h or 7d")


def parse_slurm_time(text: str) -> float:
    """Convert a time limit of sbatch to seconds: M, M:S, H:M:S, D-H, D-H:M, D-H:M:S."""
    match = _SLURM_TIME.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a Slurm time; write minutes, H:MM:SS or D-HH:MM:SS")
    if match["days"] is not None:
        days, hours = int(match["days"]), int(match["dhours"])
        return days * 86400.0 + hours * 3600 + int(match["dminutes"] or 0) * 60 + int(match["dseconds"] or 0)
    first, second, third = match["a"], match["b"], match["c"]
    if second is None:
        return int(first) * 60.0
    if third is None:
        return int(first) * 60.0 + int(second)
    return int(first) * 3600.0 + int(second) * 60 + int(third)


def parse_memory_mib(text: str) -> float:
    """Convert "64G", "512M" or "1.5T" to MiB, in powers of 1024 as in Slurm.

    A number without a unit is rejected.
    """
    match = _MEMORY.fullmatch(text.strip())
    if match is None:
        raise ValueError(
            f"{text!r} is not an amount of memory; write a number with K, M, G or T, such as 64G"
        )
    return float(match["number"]) * _MEMORY_MIB[match["unit"].upper()]


def format_duration(seconds: float) -> str:
    """Format whole seconds in the largest exact unit: "7d", "4h", "90s"."""
    whole = int(seconds)
    for unit in ("d", "h", "m"):
        size = _DURATION_S[unit]
        if whole >= size and whole % size == 0:
            return f"{whole // size}{unit}"
    return f"{whole}s"


def format_slurm_time(seconds: int) -> str:
    """Format a time limit as Slurm does: "2-00:00:00", "04:30:00"."""
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return f"{f'{days}-' if days else ''}{hour:02}:{minute:02}:{second:02}"


def format_memory_mib(mib: float) -> str:
    """Format MiB in the largest unit with at most one decimal: "64G", "1.5T", "512M"."""
    for unit in ("T", "G"):
        size = _MEMORY_MIB[unit]
        if mib >= size:
            return f"{mib / size:.1f}".removesuffix(".0") + unit
    return f"{mib:.0f}M"


def format_mgpu(mgpu: int) -> str:
    """Format thousandths of GPUs as a number: "2" for 2000, "0.25" for 250."""
    return f"{mgpu / 1000:.3f}".rstrip("0").rstrip(".")


def format_gpus(mgpu: int) -> str:
    """Format thousandths of GPUs with the noun: "1 GPU", "0.25 GPUs"."""
    return f"{format_mgpu(mgpu)} GPU{'' if mgpu == 1000 else 's'}"


def counted(number: int, noun: str) -> str:
    """Format a number with its noun: "1 job", "2 jobs"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def few(names: Iterable[object], most: int) -> str:
    """Format the first `most` names and the number of the others: "n1, n2 and 3 more"."""
    every = [str(name) for name in names]
    rest = len(every) - most
    return ", ".join(every[:most]) + (f" and {rest} more" if rest > 0 else "")
