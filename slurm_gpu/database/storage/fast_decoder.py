"""Parse valid shipments with msgspec, five times faster than with `slurm_gpu.wire`.

`slurm_gpu.wire` parses every shipment that msgspec rejects, and either accepts it or names the invalid field.
tests/database/test_fast_decoder.py compares both parsers. Without msgspec, slurm-gpudbd stores half as many
records per second when all jobs end (bench/results/scale.md). Compute nodes do not have msgspec.
"""

from __future__ import annotations

import binascii
import dataclasses
import functools
from collections.abc import Callable
from operator import attrgetter
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from slurm_gpu.database.storage.packed import HISTOGRAMS, pack_statistics, pack_timeline
from slurm_gpu.plausible import MAX_MOMENT_S, WORD_PATTERN, greatest_total, is_plausible, range_of
from slurm_gpu.wire import HISTOGRAM_BINS, Live, LiveDevice, Record, fields
from slurm_gpu.wire.live import MAX_DEVICES, MAX_HOST_VALUES, MAX_JOBS, MAX_REASONS, QUANTITIES
from slurm_gpu.wire.record import WHOLE_GPU_MGPU
from slurm_gpu.wire.timeline import FULL, GAP, MAX_BINS, MAX_WIDTH_S, SERIES

Word = Annotated[str, Meta(pattern=rf"\A{WORD_PATTERN}\Z")]
Segment = Annotated[str, Meta(pattern=rf"\A{fields.SEGMENT_PATTERN}\Z")]
Seconds = Annotated[float, Meta(ge=0, le=fields.MAX_SECONDS)]
Moment = Annotated[int, Meta(ge=0, le=MAX_MOMENT_S)]
JobNumber = Annotated[int, Meta(ge=0, le=fields.MAX_JOB_ID)]
Whole = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_LEVELS = bytes([*range(FULL + 1), GAP])


def _amount(name: str) -> Any:
    low, high = range_of(name)
    return Annotated[float, Meta(ge=low, le=high)]


def _mean(name: str) -> Any:
    amount = _amount(name)
    return tuple[Seconds, amount, amount, amount]  # type: ignore[valid-type]


Total = tuple[Seconds, Annotated[float, Meta(ge=0)]]


# slurm_gpu.wire reports unknown series.
_SERIES = msgspec.defstruct(
    "_Series",
    [(name, Annotated[str, Meta(max_length=2 * MAX_BINS)] | UnsetType, UNSET) for name in SERIES],
    forbid_unknown_fields=True,
)
_series_of = attrgetter(*SERIES)


class _TimelineHead(Struct):
    width_s: Annotated[int, Meta(ge=1, le=MAX_WIDTH_S)]
    start_s: Moment

    def __post_init__(self) -> None:
        if self.width_s & (self.width_s - 1) or self.start_s % self.width_s:
            raise ValueError("width_s")
        series = _series_of(self.series)  # type: ignore[attr-defined]
        if len({_n_levels(text) for text in series if text is not UNSET}) > 1:
            raise ValueError("series")


_TIMELINE = msgspec.defstruct(
    "_Timeline", [("series", _SERIES)], bases=(_TimelineHead,), forbid_unknown_fields=True
)


def _n_levels(text: str) -> int:
    try:
        levels = binascii.a2b_base64(text, strict_mode=True)
    except binascii.Error:
        raise ValueError("base64") from None
    if len(levels) > MAX_BINS or levels.translate(None, _LEVELS):
        raise ValueError("levels")
    return len(levels)


class DecodedRecord(Struct, kw_only=True, dict=True):
    """A valid record, with its values for the columns of `run_device`."""

    cluster: Word
    job_id: JobNumber
    restart: JobNumber
    prolog_s: Moment
    node: Word
    boot_id: Word
    segment: Segment
    device: Word
    seq: Whole
    final: bool
    first_s: Moment
    last_s: Moment
    allocated_s: Seconds
    sampled_s: Seconds

    def __post_init__(self) -> None:
        """Check constraints between fields."""
        if self.last_s < self.first_s or self.sampled_s > self.allocated_s + 1.0:
            raise ValueError("times")
        for histogram in _histograms_of(self):
            if histogram is not None and sum(histogram.values()) > (self.allocated_s + 1.0) * 1000:
                raise ValueError("histogram")
        for sampled in _means_of(self):
            if sampled is not None:
                _, mean, low, high = sampled
                slack = 1e-6 * max(1.0, high)
                if not low - slack <= mean <= high + slack:
                    raise ValueError("mean")
        for name, counted in zip(_TOTALS, _totals_of(self), strict=True):
            if counted is not None and counted[1] > greatest_total(name, counted[0]):
                raise ValueError("total")

    @functools.cached_property
    def row(self) -> dict[str, Any]:
        """Return the values of the columns of `run_device`, except those that matching sets."""
        columns = dict(zip(_COLUMNS, _columns_of(self), strict=True))
        timeline = columns["timeline"]
        if timeline is not None:
            levels = zip(SERIES, _series_of(timeline.series), strict=True)
            series = {name: text for name, text in levels if text is not UNSET}
            columns["timeline"] = pack_timeline(
                {"width_s": timeline.width_s, "start_s": timeline.start_s, "series": series}
            )
        values = zip(_IN_STATISTICS, _statistics_of(self), strict=True)
        columns["statistics"] = pack_statistics({name: value for name, value in values if value is not None})
        return columns


_OF_FIELDS = {f.name: str(f.type) for f in dataclasses.fields(Record)}
_MEANS = [name for name, kind in _OF_FIELDS.items() if kind == "Mean | None"]
_TOTALS = [name for name, kind in _OF_FIELDS.items() if kind == "Total | None"]
_IN_STATISTICS = ("uptime_s", *_MEANS, *_TOTALS, "energy_sampled_s", "throttle_s", *HISTOGRAMS)
_COLUMNS = [name for name in _OF_FIELDS if name not in _IN_STATISTICS]
_means_of, _totals_of, _histograms_of = attrgetter(*_MEANS), attrgetter(*_TOTALS), attrgetter(*HISTOGRAMS)
_columns_of, _statistics_of = attrgetter(*_COLUMNS), attrgetter(*_IN_STATISTICS)
_HISTOGRAM: Any = dict[Literal[tuple(map(str, range(HISTOGRAM_BINS)))], Whole]  # type: ignore[misc]
_MAY_BE_MISSING: dict[str, Any] = {
    **dict.fromkeys(("uptime_s", "no_process_s", "suspended_s", "energy_sampled_s"), Seconds),
    "granted_mgpu": Annotated[int, Meta(ge=0, le=WHOLE_GPU_MGPU)],
    **dict.fromkeys(HISTOGRAMS, _HISTOGRAM),
    **{name: _mean(name) for name in _MEANS},
    **dict.fromkeys(_TOTALS, Total),
    "throttle_s": Annotated[dict[Word, Seconds], Meta(max_length=64)],
    "timeline": _TIMELINE,
}
_RECORD: Any = msgspec.defstruct(
    "_Record",
    [(name, kind | None, None) for name, kind in _MAY_BE_MISSING.items()],
    bases=(DecodedRecord,),
    kw_only=True,
    forbid_unknown_fields=True,
)


_DEVICE: Any = msgspec.defstruct(
    "_Device",
    [
        *((name, _amount(name) | None, None) for name in QUANTITIES),
        ("throttle", Annotated[list[Word], Meta(max_length=MAX_REASONS)] | None, None),
        ("jobs", Annotated[list[JobNumber], Meta(max_length=MAX_JOBS)] | None, None),
    ],
)
_quantities_of = attrgetter(*QUANTITIES)


class _Live(Struct):
    at_s: Annotated[float, Meta(ge=0, le=MAX_MOMENT_S)]
    devices: Annotated[dict[Word, _DEVICE], Meta(max_length=MAX_DEVICES)] | None = None
    host: Annotated[dict[Word, float | None], Meta(max_length=MAX_HOST_VALUES)] | None = None

    def __post_init__(self) -> None:
        for name, value in (self.host or {}).items():
            if value is not None and not is_plausible(f"host.{name}", value):
                raise ValueError(name)

    def to_live(self) -> Live:
        """Convert to the class that the rest of slurm-gpudbd uses."""
        devices = {} if self.devices is None else self.devices
        host = {} if self.host is None else self.host
        return Live(
            at_s=self.at_s,
            devices={uuid: _device(values) for uuid, values in devices.items()},
            host={name: value for name, value in host.items() if value is not None},
        )


def _device(values: Any) -> LiveDevice:
    return LiveDevice(
        **dict(zip(QUANTITIES, _quantities_of(values), strict=True)),
        throttle=None if values.throttle is None else tuple(values.throttle),
        jobs=() if values.jobs is None else tuple(values.jobs),
    )


class _Shipment(Struct, forbid_unknown_fields=True):
    """A shipment; slurm_gpu.wire parses the rare kinds of items."""

    wire: int
    node: str
    boot_id: str | None = None
    version: str | None = None
    records: list[_RECORD] | None = None
    hosts: Raw = Raw(b"null")
    devices: Raw = Raw(b"null")
    events: Raw = Raw(b"null")
    runs: Raw = Raw(b"null")
    steps: Raw = Raw(b"null")
    windows: Raw = Raw(b"null")
    live: _Live | None = None
    open: list[int] | None = None


_decode = msgspec.json.Decoder(_Shipment).decode
_RARE = "hosts", "devices", "events", "runs", "steps", "windows"
_NOTHING: dict[bytes, Any] = {b"null": None, b"[]": []}


def decode_valid(body: bytes, parse: Callable[[bytes], Any]) -> dict[str, Any] | None:
    """Parse a shipment and check its records and live values; return its fields, or None if it is invalid.

    `parse` parses the JSON of rare kinds; its errors propagate.
    """
    try:
        shipment = _decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    live = None if shipment.live is None else shipment.live.to_live()
    value = {"wire": shipment.wire, "node": shipment.node, "version": shipment.version}
    value |= {"open": shipment.open, "records": shipment.records, "live": live}
    for name in _RARE:
        raw = bytes(getattr(shipment, name))
        value[name] = _NOTHING[raw] if raw in _NOTHING else parse(raw)
    return value
