"""slurm-gpud starts and records jobs despite damage or foreign content in its spool."""

import json
import os
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_gpu.node.shipping.journal import DurableMap
from slurm_gpu.node.shipping.spool import Spool
from tests.examples import examples
from tests.node.fakes import GIB, FakeClock, FakeGpu, Work
from tests.node.machine import Machine, core

KEYS = [
    *(
        "record/s/GPU-0",
        "record/",
        "host/s",
        "event/5",
        "run/7",
        "run/x",
        "allocation/s",
        "ended/7",
        "ended/x",
    ),
    *("shipped/record/s/GPU-0", "last_job_id", "dropped", "opened", "format", "clock", "nonsense/1", ""),
]
KEPT = ["segment", "seq", "final", "boot_id", "format", "version", "ahead_s", "restart", "at_s", "kind"]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEPT), inner, max_size=5),
    max_leaves=6,
)


def append(machine: Machine, text: bytes) -> None:
    """Append a line with a correct checksum."""
    with (machine.directory / "spool" / "log").open("ab") as log:
        log.write(b"%08x %s\n" % (zlib.crc32(text), text))


@settings(max_examples=examples(15), deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.sampled_from(KEYS), VALUES), min_size=1, max_size=4))
def test_a_job_is_recorded_despite_any_content_of_the_spool(
    tmp_path_factory: pytest.TempPathFactory, left: list[tuple[str, Any]]
) -> None:
    clock = FakeClock()
    gpu = FakeGpu(clock)
    machine = Machine(tmp_path_factory.mktemp("node"), gpu)
    machine.start()
    machine.kill()
    for key, value in left:
        append(machine, json.dumps({"key": key, "value": value}).encode())
    machine.start()
    start = clock.now_s
    gpu.work.append(Work(8, start, start + 12, 50, GIB))
    machine.hook("prolog", 8, "0")
    machine.run_until(start + 12)
    machine.hook("epilog", 8, "0")
    machine.run(3)
    assert machine.spool is not None
    machine.spool.queue.take_dropped()
    assert machine.spool.next_job_id(5) > 0 or ("last_job_id" in dict(left))
    machine.spool.last_run(7)
    (record,) = [r for r in _readable(machine) if r["job_id"] == 8 and r["final"]]
    assert record["held_s"] == pytest.approx(12, abs=0.05)  # as the previous release reads it
    machine.kill()


def _readable(machine: Machine) -> list[dict[str, Any]]:
    assert machine.spool is not None
    items = machine.spool.queue.waiting(1000, set(machine.spool.queue.waiting_keys()))
    return [dict(item.wire) for item in items if item.kind == "records" and "job_id" in item.wire]


@pytest.mark.parametrize(
    "text", [b'["a"]', b'{"key":1,"value":2}', b'{"value":1}', b'{"key":"a"}', b"1", b"\xff", b"[" * 100_000]
)
def test_an_invalid_line_with_a_right_checksum_counts_as_damaged(machine: Machine, text: bytes) -> None:
    machine.hook("prolog", 7, "0")
    machine.run(12)
    machine.kill()
    append(machine, text)
    machine.start()
    assert machine.node is not None
    assert machine.node.open_jobs() == [7]
    assert len(list((machine.directory / "spool").glob("log.damaged-*"))) == 1


@pytest.mark.parametrize("prefix", ["record/", "host/", "event/", "run/", "allocation/", "shipped/"])
def test_an_unreadable_block_costs_only_its_own_items(
    machine: Machine, gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    start = machine.clock.now_s
    gpu.work.append(Work(8, start, start + 100, 50, GIB))
    machine.hook("prolog", 7, "0")
    machine.run(12)
    machine.kill()
    read = DurableMap._read

    def unreadable(journal: DurableMap, place: int) -> bytes:
        line = read(journal, place)
        if b'{"key":"%s' % prefix.encode() in line:
            raise OSError(5, os.strerror(5))
        return line

    with monkeypatch.context() as broken:
        broken.setattr(DurableMap, "_read", unreadable)
        machine.start()
        assert machine.spool is not None
        # Without its allocations the set of running jobs is unknown.
        assert machine.spool.is_whole is (prefix != "allocation/")
    machine.hook("epilog", 7, "0")
    begun = machine.clock.now_s
    machine.hook("prolog", 8, "0")
    machine.run(30)
    machine.hook("epilog", 8, "0")
    machine.run(3)
    (record,) = [record for record in machine.records() if record.job_id == 8]
    assert record.allocated_s == pytest.approx(machine.clock.now_s - begun - 3, abs=0.05)
    assert core(record) == pytest.approx(50, abs=0.5)


def test_an_unreadable_item_is_logged_and_removed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    journal = DurableMap(tmp_path)
    journal.put("opened", True)
    journal.put("record/s/GPU-0", {"segment": 5})
    journal.commit()
    journal.close()
    spool = Spool(tmp_path)
    assert len(spool.queue) == 0
    assert "record/s/GPU-0 cannot be read and is left out: {'segment': 5}" in caplog.text
    spool.commit()
    spool.close()
    caplog.clear()
    Spool(tmp_path)
    assert caplog.text == ""
