"""Define the plausible ranges of values that nodes measure; slurm-gpud and slurm-gpudbd use them.

A value outside its range is considered a driver error: slurm-gpud records None instead, and slurm-gpudbd
drops the field. The bounds are several times the limits of hardware, because they also apply to sums over
a node. The process that calls NVML imports this module, so it must stay small.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import NamedTuple

# A century.
MAX_SECONDS = 100 * 366 * 86400.0
# Bound for amounts of unknown unit, which keeps their sums finite.
MAX_AMOUNT = 1e24
# Rounding can raise a mean of values that are all 1 slightly above 1.
_ROUNDING = 1e-6
WORD_PATTERN = "[A-Za-z0-9_.:+/-]{1,255}"
MAX_TEXT = 255
# The last second of the year 9998, a valid date in every time zone.
MAX_MOMENT_S = 253_370_764_799
_WORD = re.compile(WORD_PATTERN)


class Range(NamedTuple):
    """A range of plausible values, including both ends."""

    low: float
    high: float

    def has(self, value: float) -> bool:
        """Return whether the value is in the range; this is false for NaN."""
        return self.low <= value <= self.high


# Maximum growth of totals per second. In 2026, several GPUs together use 10 kW; NVLink 5 carries 1.8 TB/s,
# and PCIe 7 carries 0.5 TB/s.
RATES: Mapping[str, float] = {
    "energy_j": 1e4,
    "energy_mj": 1e7,
    "pcie_rx_bytes": 1e12,
    "pcie_tx_bytes": 1e12,
    "nvlink_rx_bytes": 1e13,
    "nvlink_tx_bytes": 1e13,
    "ecc_corrected": 1e6,
    "ecc_uncorrected": 1e6,
}
# Drivers update counters with a delay, so a total may include earlier growth.
_LATE_S = 10.0
_SLACK = 2.0

# Ranges by the suffix of a quantity's name; the first matching suffix is used.
_BY_END: Mapping[str, Range] = {
    "_frac": Range(0, 1 + _ROUNDING),
    "_pct": Range(0, 100 * (1 + _ROUNDING)),
    # 64 TiB; this limit also applies to the main memory of a node.
    "_mib": Range(0, 2.0**26),
    "memory_bytes": Range(0, 2.0**46),
    # An exabyte.
    "_bytes": Range(0, 1e18),
    "_bytes_per_s": Range(0, 1e13),
    "_per_s": Range(0, MAX_AMOUNT),
    # 8,192 CPUs for a century.
    "cpu_s": Range(0, 8192 * MAX_SECONDS),
    "_s": Range(0, MAX_SECONDS),
    "_w": Range(0, 1e4),
    "_j": Range(0, 1e4 * MAX_SECONDS),
    "_c": Range(0, 200),
    "_mhz": Range(0, 1e4),
    # The maximum number of process IDs on Linux.
    "processes": Range(0, 2.0**22),
    "pid": Range(1, 2.0**22),
    # nvml.h defines the lowest nine bits of the clocks' event reasons.
    "throttle_bits": Range(0, 0xFFFF),
    # The last second of the year 9998.
    "stamp_us": Range(0, 253_370_764_799e6),
    # No machine has more links, instances or GPUs. A limit is needed, because each listed device is queried.
    "nvlink_count": Range(0, 64),
    "mig_count": Range(0, 64),
    "gpu_count": Range(0, 512),
    # Entries of the driver's lists of samples and processes.
    "list_length": Range(0, 2.0**16),
}
_ANY = Range(0, MAX_AMOUNT)


@functools.lru_cache(maxsize=1024)
def range_of(name: str) -> Range:
    """Return the plausible range of a quantity, which depends on the unit at the end of its name."""
    return next((within for end, within in _BY_END.items() if name.endswith(end)), _ANY)


def is_plausible(name: str, value: float) -> bool:
    """Return whether the value is plausible for the named quantity."""
    return range_of(name).has(value)


def greatest_total(name: str, seconds: float) -> float:
    """Return the maximum plausible growth of a total within `seconds`."""
    rate = RATES.get(name)
    return range_of(name).high if rate is None else _SLACK * rate * (seconds + _LATE_S)


def is_word(value: str) -> bool:
    """Return whether the value can be a name in Slurm, Linux or NVML: letters, digits and _.:+/-."""
    return _WORD.fullmatch(value) is not None


def is_text(value: str) -> bool:
    """Return whether the value is one printable line without control characters or surrogates."""
    return 0 < len(value) <= MAX_TEXT and value.isprintable()
