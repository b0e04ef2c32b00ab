"""Pack statistics and timelines, which make up most of a database, into a third of their size.

The first byte of a value identifies its format. Stored values must remain readable indefinitely, so a format
never changes, including its dictionary. A new format gets a different first byte.

    b"1"  JSON, deflated (RFC 1951) with the preset dictionary _DICTIONARY. A histogram {percent: ms} is
          stored as a list, which takes half the space: the first percentage, then the ms of that percentage
          and of each following one.
    b"2"  A timeline, deflated in the same way: a line of JSON, [width_s, start_s, name, …], then the bytes of
          each series in the same order. All series have the same length.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Callable, Collection, Mapping
from itertools import repeat
from typing import Any

import msgspec

from slurm_gpu.errors import DatabaseError
from slurm_gpu.wire import HISTOGRAM_BINS

HISTOGRAMS = "util_hist_ms", "mem_hist_ms"
_JSON, _TIMELINE = b"1", b"2"
_PERCENTS = [str(percent) for percent in range(HISTOGRAM_BINS)]
# Frequent content of records, the most frequent last. Records are short, so the names in them would otherwise
# take most of the space.
_DICTIONARY = b"""\
"nvlink_tx_bytes":["nvlink_rx_bytes":["ecc_uncorrected":["hw_power_brake_slowdown":"hw_thermal_slowdown":\
"sync_boost":"sw_thermal_slowdown":"hw_slowdown":"sw_power_cap":,"nvlink",[1,2,4,8,16,32,64,128,256,512,1024,\
"util","mem_used","sm_active","tensor","pcie","power","sm_clock"]
{"uptime_s":0.0],"device_util_pct":[1000.0,0.0,100.0],"mem_used_mib":[0.0,81920.0],"mem_used_frac":[\
0.0,1.0],"mem_util_pct":[0.0,100.0],"sm_active_frac":[0.0,0.0],"sm_occupancy_frac":[0.0,0.0],"tensor_frac":[\
0.0,0.0],"dram_frac":[0.0,0.0],"power_w":[400.0],"temp_c":[30.0,60.0],"sm_clock_mhz":[210.0,1410.0],\
"processes":[0.0,1.0,1.0],"energy_j":[0.0],"pcie_rx_bytes":[0.0],"pcie_tx_bytes":[0.0],"ecc_corrected":[0.0],\
"throttle_s":{},"util_hist_ms":[0,0,0,0,0,0,0,0,0,0],"mem_hist_ms":[0,0,0,0,0]}"""
_LEVEL = 3  # a higher level takes 25 % more time and saves 2 %
# Values are short, so a larger window and larger tables would only cost time for clearing memory.
_WINDOW_BITS, _MEMORY_LEVEL = 12, 6

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


def pack_statistics(statistics: Mapping[str, Any]) -> bytes:
    """Pack the statistics of a record that have no column of their own, given in the wire format."""
    values = dict(statistics)
    for name in HISTOGRAMS:
        if values.get(name):
            values[name] = _in_a_row(values[name])
    return _JSON + _deflated(_encode(values))


def unpack_statistics(packed: bytes) -> dict[str, Any]:
    """Unpack the result of `pack_statistics`."""
    values: dict[str, Any] = _decode(_inflated(packed, _JSON))
    return _with_histograms(values)


def unpacker(names: Collection[str]) -> Callable[[bytes], dict[str, Any]]:
    """Return a function that unpacks only the statistics `names`; unpacking all takes three times as long."""
    only = msgspec.defstruct("_Only", [(name, Any, None) for name in sorted(names)])
    decode = msgspec.json.Decoder(only).decode

    def unpack(packed: bytes) -> dict[str, Any]:
        found = msgspec.structs.asdict(decode(_inflated(packed, _JSON)))
        return _with_histograms({name: value for name, value in found.items() if value is not None})

    return unpack


def pack_timeline(timeline: Mapping[str, Any]) -> bytes:
    """Pack a timeline, given in the wire format: {width_s, start_s, series: {name: base64}}."""
    series = timeline["series"]
    head = _encode([timeline["width_s"], timeline["start_s"], *series])
    levels = b"".join(map(binascii.a2b_base64, series.values()))
    return _TIMELINE + _deflated(b"%b\n%b" % (head, levels))


def unpack_timeline(packed: bytes) -> dict[str, Any]:
    """Unpack the result of `pack_timeline`."""
    head, _, levels = _inflated(packed, _TIMELINE).partition(b"\n")
    width_s, start_s, *names = _decode(head)
    n_bins = len(levels) // len(names) if names else 0
    series = {
        name: base64.b64encode(levels[place * n_bins : (place + 1) * n_bins]).decode("ascii")
        for place, name in enumerate(names)
    }
    return {"width_s": width_s, "start_s": start_s, "series": series}


def _with_histograms(values: dict[str, Any]) -> dict[str, Any]:
    for name in HISTOGRAMS:
        row = values.get(name)
        if isinstance(row, list):
            first, *of_percents = row
            values[name] = {str(percent): ms for percent, ms in enumerate(of_percents, first) if ms}
    return values


def _in_a_row(histogram: dict[str, int]) -> list[int] | dict[str, int]:
    """Convert a histogram to a list, or return it unchanged if data would be lost.

    Data would be lost if the histogram is unordered or contains zeros.
    """
    first, last = int(next(iter(histogram))), int(next(reversed(histogram)))
    of_percents = list(map(histogram.get, _PERCENTS[first : last + 1], repeat(0)))
    whole = len(of_percents) - of_percents.count(0) == len(histogram)
    return [first, *of_percents] if whole else histogram


def _deflated(text: bytes) -> bytes:
    deflater = zlib.compressobj(
        _LEVEL, zlib.DEFLATED, -_WINDOW_BITS, _MEMORY_LEVEL, zlib.Z_DEFAULT_STRATEGY, _DICTIONARY
    )
    return deflater.compress(text) + deflater.flush()


def _inflated(packed: bytes, form: bytes) -> bytes:
    if packed[:1] != form:
        raise DatabaseError(f"a value begins with {packed[:1]!r}, an unsupported format")
    inflater = zlib.decompressobj(-zlib.MAX_WBITS, zdict=_DICTIONARY)
    return inflater.decompress(memoryview(packed)[1:]) + inflater.flush()
