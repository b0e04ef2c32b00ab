"""Format values for tables; a measured 0 is printed as 0, and None as –."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from zoneinfo import ZoneInfo

from slurm_gpu.text.units import format_memory_mib

GAP = "–"


def number(value: float | None, digits: int = 0) -> str:
    """Format a number with `digits` decimals; print exactly 0 as 0, and a value that rounds to 0 as 0.0."""
    if value is None:
        return GAP
    return "0" if value == 0 else f"{value:.{digits}f}"


def not_quite(fraction: float | None, digits: int = 2) -> float | None:
    """Return the fraction, or the greatest number below 1 with `digits` decimals if it would round to 1."""
    return fraction if fraction is None or fraction >= 1 else min(fraction, 1 - 10**-digits)


def hours(value: float | None) -> str:
    """Format hours with two decimals, or with three decimals below one hour."""
    return number(value, 2 if value is not None and value >= 1 else 3)


def count(value: float | None) -> str:
    """Format a number of GPUs: 2 as 2, a quarter as 0.25."""
    return GAP if value is None else f"{value:.3f}".rstrip("0").rstrip(".")


def gpus(number: float | None) -> str:
    """Format a number of GPUs with the noun: 1 GPU, 0.25 GPUs, 8 GPUs."""
    shown = count(number)
    return f"{shown} GPU" if shown == "1" else f"{shown} GPUs"


def memory(mib: float | None) -> str:
    """Format MiB as 512M, 64G or 1.5T."""
    if mib is None:
        return GAP
    return "0" if mib == 0 else format_memory_mib(mib)


def volume(n_bytes: float | None) -> str:
    """Format bytes as 512 MB or 1.5 TB, in powers of 1000 as usual for links and disks."""
    if n_bytes is None:
        return GAP
    for size, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if n_bytes >= size:
            amount = n_bytes / size
            return f"{amount:.0f} {unit}" if amount >= 100 else f"{amount:.1f} {unit}"
    return "0" if n_bytes == 0 else f"{n_bytes:.0f} B"


def percent(fraction: float | None, digits: int = 1) -> str:
    """Format a fraction as a percentage without the percent sign, for a column whose unit is percent."""
    return number(None if fraction is None else 100 * fraction, digits)


def energy(joule: float | None) -> str:
    """Format joules in Wh, or in kWh if the energy is at least 1 kWh."""
    if joule is None:
        return GAP
    watt_hours = joule / 3600
    return f"{number(watt_hours / 1000, 2)} kWh" if watt_hours >= 1000 else f"{number(watt_hours, 1)} Wh"


def span(seconds: float | None) -> str:
    """Format a duration with its two largest units: 0.4s, 45s, 12m30s, 3h05m, 2d04h."""
    if seconds is None:
        return GAP
    if 0 < seconds < 0.95:  # a value that rounds to one second is printed as 1s
        return f"{seconds:.1f}s" if seconds >= 0.05 else "<0.1s"
    whole = round(seconds)
    for size, unit, lower, lower_unit in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            return f"{whole // size}{unit}{whole % size // lower:02d}{lower_unit}"
    return f"{whole}s"


def moment(epoch_s: float | None, zone: ZoneInfo) -> str:
    """Format a time in the site's time zone as 2026-11-21 09:30:00."""
    return GAP if epoch_s is None else f"{dt.datetime.fromtimestamp(epoch_s, zone):%Y-%m-%d %H:%M:%S}"


def minute(epoch_s: float, zone: dt.tzinfo) -> str:
    """Format a time without seconds in the given time zone: 2026-11-21 09:30."""
    return f"{dt.datetime.fromtimestamp(epoch_s, zone):%Y-%m-%d %H:%M}"


def short_minute(epoch_s: float, zone: dt.tzinfo) -> str:
    """Format a time without year and seconds in the given time zone: 11-21 09:30."""
    return f"{dt.datetime.fromtimestamp(epoch_s, zone):%m-%d %H:%M}"


def time_of_day(minutes: int) -> str:
    """Format minutes since midnight as 09:30."""
    return f"{minutes // 60:02d}:{minutes % 60:02d}"


def utc_stamp(epoch_s: float) -> str:
    """Format a UTC time for file names that sort by time: 20261121T093000Z."""
    return f"{dt.datetime.fromtimestamp(epoch_s, dt.UTC):%Y%m%dT%H%M%SZ}"


def text(value: str | None) -> str:
    """Replace control characters in a user's text; "" and None are printed as –."""
    if not value:
        return GAP
    return "".join(character if character.isprintable() else "�" for character in value)


def positions(numbers: Iterable[int]) -> str:
    """Format device positions as Slurm does: 0-2,5."""
    parts: list[str] = []
    for index, value in enumerate(ordered := sorted(numbers)):
        if index and value == ordered[index - 1] + 1:
            first = parts[-1].partition("-")[0]
            parts[-1] = f"{first}-{value}"
        else:
            parts.append(str(value))
    return ",".join(parts)
