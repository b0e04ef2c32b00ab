"""Format numbers and lists for sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from zoneinfo import ZoneInfo

from slurm_gpu.text.cells import span

# The name of an application, or of its field, that no rule matches.
NOT_RECOGNISED = "(not recognised)"
# The name of a job without a user, account or team.
UNNAMED = "(none)"


def percent(part: float, whole: float = 100.0) -> str:
    """Return a text such as "38.3 %" or "less than 0.1 %"; "0 %" if the part is 0, "–" if the whole is 0."""
    if whole == 0 or math.isnan(part / whole):
        return "–"
    share = 100 * part / whole
    return "less than 0.1 %" if 0 < share < 0.05 else f"{trimmed(share, 1)} %"


def sentence(text: str) -> str:
    """Capitalise the first letter of a text, which may begin with "less than 0.1 %"."""
    return text[:1].upper() + text[1:]


def trimmed(value: float, decimals: int) -> str:
    """Return a rounded number with thousands separators and without trailing zeros; "–" for NaN."""
    if math.isnan(value):
        return "–"
    text = f"{value:,.{decimals}f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text


def duration(hours: float) -> str:
    """Return a text such as "0s", "45s", "2m30s", "3h05m" or "2d04h"; "–" for NaN."""
    return span(None if math.isnan(hours) else hours * 3600)


def gpu_hours(value: float) -> str:
    """Return a text such as "1,234 GPU-hours", "1 GPU-hour" or "0.05 GPU-hours"."""
    amount = _small(value) or trimmed(value, 0 if value >= 100 else 1 if value >= 1 else 2)
    return f"{amount} GPU-hour" if amount == "1" else f"{amount} GPU-hours"


def money(value: float, currency: str) -> str:
    """Return a text such as "1,234.5 EUR", "0.06 EUR" or "less than 0.01 EUR"; `currency` may be ""."""
    return f"{_small(value) or trimmed(value, 2)} {currency}".rstrip()


def _small(value: float) -> str:
    return "less than 0.01" if 0 < value < 0.005 else ""


def several(number: int, noun: str, more: str = "") -> str:
    """Return a text such as "1 job with GPUs" or "1,234 jobs with GPUs", from "job" and " with GPUs"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}{more}"


def listed(items: Sequence[str]) -> str:
    """Return a text such as "a", "a and b" or "a, b and c"."""
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)


def moment(at_s: float, timezone: str, *, with_hour: bool) -> str:
    """Return a day, or a day and time, in the site's time zone."""
    return datetime.fromtimestamp(at_s, ZoneInfo(timezone)).strftime(
        "%Y-%m-%d %H:%M" if with_hour else "%Y-%m-%d"
    )
