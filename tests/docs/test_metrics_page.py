"""docs/metrics.md names each recorded value, and no other."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path

import pytest

from slurm_gpu.node.live import CachingReader
from slurm_gpu.node.metrics import DaemonHealth, Exposition, expose
from slurm_gpu.node.process.node_counters import NodeReading
from slurm_gpu.plausible import RATES, range_of
from slurm_gpu.wire import DeviceFacts, Host, LiveDevice, Record
from slurm_gpu.wire.live import READER_EXITS
from slurm_gpu.wire.timeline import SERIES

from .pages import DOCS, ROOT

_PAGE = (DOCS / "metrics.md").read_text()
_SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", _PAGE, re.DOTALL | re.MULTILINE))


def _first_cells(section: str) -> set[str]:
    rows = re.findall(r"^\| (`.*?) \|", _SECTIONS[section], re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def _spans(section: str, begin: str = "") -> set[str]:
    text = _SECTIONS[section]
    return set(re.findall(r"`([^`]+)`", text[text.index(begin) :]))


def _names(kind: type) -> set[str]:
    return {field.name for field in fields(kind)}


def test_every_field_of_a_record() -> None:
    assert _first_cells("A GPU of a job") == _names(Record)


def test_every_series_of_a_timeline() -> None:
    (line,) = re.findall(r"^\*\*Timeline\*\*: (.*?),", _PAGE, re.MULTILINE)
    assert re.findall(r"`(\w+)`", line) == list(SERIES)


def test_every_field_of_a_host_record() -> None:
    of_both = _names(Host) & _names(Record)
    assert _first_cells("A job's processes on a node") == _names(Host) - of_both


def test_every_field_of_a_device() -> None:
    assert _first_cells("Devices") == _names(DeviceFacts) - {"node"}


def test_every_plausible_range() -> None:
    section = _SECTIONS["Plausible ranges"]
    ranges = re.findall(r"^\| `(\w+)`[^|]* \| (\S+) \| (\S+) \|", section, re.MULTILINE)
    assert len(ranges) > 10
    for name, low, high in ranges:
        assert range_of(name) == pytest.approx((float(low), float(high)), rel=2e-6), name
    rates = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| (\S+) \|$", section, re.MULTILINE)
    shown = {name: float(rate) for names, rate in rates for name in re.findall(r"\w+", names)}
    assert shown == {name: rate for name, rate in RATES.items() if name != "energy_mj"}


def test_every_live_value() -> None:
    shown = _spans("Live values", "| of |")
    host = {name for name in _names(NodeReading) - {"at_s"} if not name.endswith("_per_s")}
    assert shown == _names(LiveDevice) | host | {"_per_s", READER_EXITS}


def _kinds_in_code() -> Iterable[str]:
    """Return the kinds of events in the code."""
    rooms = (ROOT / "slurm_gpu" / room for room in ("node", "database"))
    for path in (path for room in rooms for path in room.rglob("*.py")):
        text = path.read_text()
        yield from re.findall(r"""(?:events\.record\(|_report_device_event\([^"]*?)"(\w+)\"""", text)
        yield from re.findall(r"""kind="(\w+)\"""", text)
        yield from re.findall(r"""ReadError\.\w+: "(gpu_\w+)\"""", text)


def test_every_kind_of_event() -> None:
    kinds = {*_kinds_in_code(), "intruder", "job_mismatch", "double_watch", "device_elsewhere"}
    assert _first_cells("Events") == kinds


def test_every_reason_for_throttling() -> None:
    source = (ROOT / "slurm_gpu/node/gpu/nvml_device.py").read_text()
    (table,) = re.findall(r"^_REASONS = \{(.*?)^\}", source, re.DOTALL | re.MULTILINE)
    assert set(re.findall(r'"(\w+)"', table)) <= _spans("A GPU of a job", "| `throttle_s`")


class _Silent:
    """A GPU reader without devices."""

    def devices(self) -> list[object]:
        return []


def test_every_series_of_prometheus(monkeypatch: pytest.MonkeyPatch) -> None:
    families: list[str] = []
    monkeypatch.setattr(Exposition, "family", lambda _self, name, *_rest: families.append(name))
    health = DaemonHealth(
        reads=0,
        failed_reads=0,
        open_jobs=0,
        spool_bytes=0,
        spool_items=0,
        spool_failing=False,
        shipment_failures=0,
        reader_exits=0,
        implausible={},
        pids={},
    )
    expose("n1", CachingReader(_Silent()), {}, health, 0.0)  # type: ignore[arg-type]
    assert _first_cells("Prometheus") == set(families)


def test_the_rows_of_a_run_are_documented_in_full_elsewhere() -> None:
    api = Path(DOCS / "api.md").read_text()
    assert all(f"`{name}`" in api for name in _first_cells("A run"))
