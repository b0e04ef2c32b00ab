"""Strategies for all valid shipments, for property tests."""

import dataclasses
import functools
from typing import Any

from hypothesis import strategies as st

from slurm_gpu.plausible import MAX_MOMENT_S, greatest_total, range_of
from slurm_gpu.wire import DeviceFacts, Host, Live, LiveDevice, Mean, Record, Timeline, Total
from slurm_gpu.wire.fields import MAX_JOB_ID
from slurm_gpu.wire.timeline import GAP, MAX_BINS, SERIES

SECONDS = st.floats(0, 1e8)
WHOLE = st.integers(0, 2**63 - 1)
JOB_NUMBER = st.integers(0, MAX_JOB_ID)
MOMENT = st.integers(0, 2**32)
NAME = st.from_regex(r"[A-Za-z0-9_.:+/-]{1,40}", fullmatch=True)
TEXT = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=40)
SEGMENT = st.from_regex("[0-9a-f]{16}", fullmatch=True)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=10,
)


def limit(name: str) -> float:
    """Return the largest valid amount of a quantity, by its name."""
    if name.endswith(("_frac", "_pct")):
        return 1.0 if name.endswith("_frac") else 100.0
    return min(1e15, range_of(name).high, greatest_total(name, 0.0))


_amount = functools.cache(st.floats)


@functools.cache
def _three(most: float) -> st.SearchStrategy[tuple[float, ...]]:
    return st.tuples(*[_amount(0, most)] * 3)


@st.composite
def means(draw: st.DrawFn, min_seconds: float = 0.0, most: float = 1e15) -> Mean:
    low, mean, high = sorted(draw(_three(most)))
    return Mean(draw(_amount(min_seconds, 1e8)), mean, low, high)


@st.composite
def totals(draw: st.DrawFn, most: float = 1e15) -> Total:
    return Total(draw(SECONDS), draw(_amount(0, most)))


def histograms(total_ms: int = 10**9) -> st.SearchStrategy[dict[int, int]]:
    return st.dictionaries(st.integers(0, 100), st.integers(0, total_ms // 101))


@st.composite
def timelines(draw: st.DrawFn, start_s: int = 1_780_000_000, within_s: int = 10**6) -> Timeline:
    width_s = 2 ** draw(st.integers(0, 12))
    begin_s = start_s + draw(st.integers(0, within_s))
    n_bins = draw(st.integers(0, MAX_BINS))
    # Bytes are drawn together, since 256 single ones are slow to shrink; 251 to 254 are invalid.
    levels = st.binary(min_size=n_bins, max_size=n_bins).map(
        lambda drawn: bytes(GAP if byte > 250 else byte for byte in drawn)
    )
    series = draw(st.dictionaries(st.sampled_from(SERIES), levels, max_size=3))
    return Timeline(width_s=width_s, start_s=begin_s // width_s * width_s, series=series)


def _identity(draw: st.DrawFn) -> dict[str, Any]:
    first_s = draw(MOMENT)
    return {
        "cluster": draw(NAME),
        "job_id": draw(JOB_NUMBER),
        "restart": draw(JOB_NUMBER),
        "prolog_s": draw(MOMENT),
        "node": draw(NAME),
        "boot_id": draw(NAME),
        "segment": draw(SEGMENT),
        "seq": draw(WHOLE),
        "final": draw(st.booleans()),
        "first_s": first_s,
        "last_s": first_s + draw(st.integers(0, 2**30)),
    }


@functools.cache
def _of_a_record(kind: str, most: float) -> st.SearchStrategy[Any]:
    """Return a cached strategy, because Hypothesis validates a new one for longer than it draws from it."""
    filled: st.SearchStrategy[Any] = {
        "Mean | None": means(most=most),
        "Total | None": totals(most=most),
        "float | None": SECONDS,
        "int | None": st.integers(0, 1000),
        "Mapping[str, float] | None": st.dictionaries(NAME, SECONDS, max_size=5),
        "Timeline | None": timelines(),
    }[kind]
    return st.none() | filled


@st.composite
def records(draw: st.DrawFn) -> Record:
    allocated_s = draw(st.floats(0, 1e7))
    values = {**_identity(draw), "device": draw(NAME), "allocated_s": allocated_s}
    values["sampled_s"] = draw(st.floats(0, allocated_s))
    histogram = st.none() | histograms(int(allocated_s * 1000))
    for field in dataclasses.fields(Record):
        if field.name not in values:
            kind = str(field.type)
            filled = histogram if kind == "Histogram | None" else _of_a_record(kind, limit(field.name))
            values[field.name] = draw(filled)
    return Record(**values)


_OF_A_HOST: dict[str, st.SearchStrategy[Any]] = {
    "float | None": st.none() | st.floats(0, 6e7),
    "int | None": st.none() | st.integers(0, 10**18),
    "str | None": st.none() | TEXT,
    "Mapping[str, str] | None": st.none() | st.dictionaries(NAME, TEXT, max_size=5),
    "bool | None": st.none() | st.booleans(),
}


@st.composite
def hosts(draw: st.DrawFn) -> Host:
    values = _identity(draw)
    for field in dataclasses.fields(Host):
        if field.name in values:
            continue
        values[field.name] = draw(_OF_A_HOST[str(field.type)])
    return Host(**values)


@functools.cache
def _of_a_device(kind: str, most: float) -> st.SearchStrategy[Any]:
    kinds = {"str | None": NAME, "int | None": WHOLE, "float | None": _amount(0, most)}
    return st.none() | kinds[kind]


@st.composite
def devices(draw: st.DrawFn) -> DeviceFacts:
    values: dict[str, Any] = {
        "uuid": draw(NAME),
        "node": draw(NAME),
        "at_s": draw(st.integers(0, MAX_MOMENT_S)),
        "name": draw(st.none() | TEXT),
    }
    for field in dataclasses.fields(DeviceFacts):
        if field.name not in values:
            values[field.name] = draw(_of_a_device(str(field.type), limit(field.name)))
    return DeviceFacts(**values)


@st.composite
def lives(draw: st.DrawFn) -> Live:
    def device() -> LiveDevice:
        values: dict[str, Any] = {"jobs": tuple(draw(st.lists(JOB_NUMBER, max_size=3)))}
        for field in dataclasses.fields(LiveDevice):
            if field.type == "float | None":
                values[field.name] = draw(_of_a_device(field.type, limit(field.name)))
        values["throttle"] = draw(st.none() | st.lists(NAME, max_size=3).map(tuple))
        return LiveDevice(**values)

    uuids = draw(st.sets(NAME, max_size=3))
    return Live(
        at_s=draw(st.floats(0, 2**33)),
        devices={uuid: device() for uuid in sorted(uuids)},
        host=draw(st.dictionaries(NAME, st.floats(0, 1), max_size=3)),
    )
