"""Waiting items are kept while there is space, even on full disks; losses are counted and reported."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from slurm_gpu.node.allocation.tracker import Allocation
from slurm_gpu.node.measure.tally import SegmentKey
from slurm_gpu.node.shipping import journal as journal_module
from slurm_gpu.node.shipping.journal import DurableMap
from slurm_gpu.node.shipping.shipment_queue import MAX_BYTES
from slurm_gpu.node.shipping.spool import Spool
from slurm_gpu.wire import Event, Host, Mean, Record, Total
from tests.node.machine import Machine

DISK_BYTES = 2 << 20


def key(job_id: int) -> SegmentKey:
    return SegmentKey(
        cluster="lab",
        job_id=job_id,
        restart=0,
        prolog_s=100,
        node="n1",
        boot_id="b",
        segment=f"{job_id:016x}",
    )


def allocation(job_id: int) -> Allocation:
    return Allocation(
        key=key(job_id), prolog_at_s=100.0, begun_s=1.0, start_s=1.0, start_wall_s=100.0, positions=(0,)
    )


def record(job_id: int, seq: int = 1, *, final: bool = True, device: str = "GPU-0") -> Record:
    return Record(
        **asdict(key(job_id)),
        device=device,
        seq=seq,
        final=final,
        first_s=100,
        last_s=110,
        allocated_s=10.0,
        sampled_s=10.0,
        util_hist_ms=dict.fromkeys(range(100), 100),
    )


def host(job_id: int, seq: int = 1, *, final: bool = True) -> Host:
    return Host(**asdict(key(job_id)), seq=seq, final=final, first_s=100, last_s=110)


def jobs(spool: Spool) -> list[int]:
    everything = spool.queue.waiting(1_000_000, set(spool.queue.waiting_keys()))
    return [item.wire["job_id"] for item in everything if item.kind == "records"]


def reopened(spool: Spool, directory: Path) -> Spool:
    spool.close()
    return Spool(directory)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Return a file system of 2 MiB."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(tmp_path)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("needs root and the right to mount a tmpfs")
    yield tmp_path
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


@pytest.fixture
def fill(disk: Path, monkeypatch: pytest.MonkeyPatch) -> "Filler":
    monkeypatch.setattr(journal_module, "RESERVE_BYTES", 200_000)
    monkeypatch.setattr(journal_module, "ROOMY_BYTES", 400_000)
    return Filler(disk)


class Filler:
    """A file that fills the disk of the spool."""

    def __init__(self, disk: Path) -> None:
        self.path = disk / "else"

    def take_all(self) -> None:
        with self.path.open("ab", buffering=0) as file:
            for size in (65536, 4096):
                while True:
                    try:
                        file.write(b"x" * size)
                    except OSError:
                        break

    def give_back(self) -> None:
        self.path.unlink()


def test_allocations_and_waiting_records_survive_a_restart(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    empty_bytes = spool.size_bytes
    spool.save_allocation(allocation(7))
    spool.save_record(record(7, final=False))
    spool.save_host(host(7, final=False))
    spool.save_record(record(8))
    assert spool.commit()
    spool = reopened(spool, tmp_path)
    assert spool.allocations() == [allocation(7)]
    assert spool.last_host(key(7).segment) == host(7, final=False)
    assert [item.key for item in spool.queue.waiting(10)] == [f"record/{key(8).segment}/GPU-0"]
    spool.drop_allocation(allocation(7))
    for item in spool.queue.waiting(10, set(spool.queue.waiting_keys())):
        spool.queue.shipped(item)
    assert spool.commit()
    spool = reopened(spool, tmp_path)
    assert (len(spool.queue), spool.size_bytes, spool.allocations()) == (0, empty_bytes, [])
    assert empty_bytes < 200


@pytest.mark.parametrize("loss", ["gone", "emptied", "cut off in its first line"])
def test_a_lost_log_is_distinguished_from_an_empty_one(tmp_path: Path, loss: str) -> None:
    spool = Spool(tmp_path)
    assert not spool.is_whole
    spool = reopened(spool, tmp_path)
    assert spool.is_whole
    spool.close()
    log = tmp_path / "log"
    if loss == "gone":
        log.unlink()
    else:
        log.write_bytes(log.read_bytes()[: 0 if loss == "emptied" else 20])
    spool = Spool(tmp_path)
    assert not spool.is_whole
    assert reopened(spool, tmp_path).is_whole


def test_an_implausible_value_of_an_older_slurm_gpud_costs_its_field(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    spoilt = {**asdict(record(1)), "power_w": Mean(60.0, 5e4, 80.0, 4_294_967.295)}
    bad_host = Host(**{**asdict(host(1)), "net_rx_bytes": -5})
    spool = Spool(tmp_path)
    spool.save_record(Record(**spoilt))
    spool.save_host(bad_host)
    assert spool.commit()
    spool.close()
    spool = Spool(tmp_path)
    last, last_host = spool.last_record(f"{1:016x}", "GPU-0"), spool.last_host(f"{1:016x}")
    assert last == Record(**{**spoilt, "power_w": None})
    assert last_host == Host(**{**asdict(bad_host), "net_rx_bytes": None})
    assert [item.getMessage().partition(": ")[2] for item in caplog.records] == [
        "power_w: 50000.0 must be from 0 to 10000",
        "net_rx_bytes: -5 must be a whole number ≥ 0 and ≤ 1000000000000000000",
    ]


def test_records_of_a_previous_segment_are_urgent(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.save_allocation(allocation(7))
    spool.save_record(record(7, final=False))
    assert spool.commit()
    spool = reopened(spool, tmp_path)
    assert spool.queue.urgent(10) == 0
    spool.drop_allocation(allocation(7))  # the job continues in another segment
    assert spool.queue.urgent(10) == 1
    assert spool.commit()
    spool = reopened(spool, tmp_path)
    assert spool.queue.urgent(10) == 1
    assert jobs(spool) == [7]


def test_on_a_full_disk_outdated_records_make_space_for_final_ones(fill: Filler, disk: Path) -> None:
    spool = Spool(disk / "spool")
    for job in range(1, 51):
        spool.save_allocation(allocation(job))
    for seq in range(1, 11):  # the first nine become outdated
        for job in range(1, 51):
            spool.save_record(record(job, seq, final=False))
        assert spool.commit()
    fill.take_all()
    for job in range(1, 51):
        spool.save_record(record(job, 11))
        spool.drop_allocation(allocation(job))
    assert spool.commit()
    spool = reopened(spool, disk / "spool")
    assert jobs(spool) == list(range(1, 51))
    assert [item.seq for item in spool.queue.waiting(1000)] == [11] * 50
    assert spool.allocations() == []


def test_final_records_are_stored_before_those_of_running_jobs(fill: Filler, disk: Path) -> None:
    spool = Spool(disk / "spool")
    for job in range(1, 101):
        spool.save_record(record(job, 1, final=False))
    assert spool.commit()
    fill.take_all()
    (disk / "spool" / "reserve").unlink()
    with fill.path.open("ab", buffering=0) as file:
        while file.write(b"x" * 4096) == 4096:
            if os.statvfs(disk).f_bfree * 4096 <= 40_000:
                break
    for job in range(1, 401):
        spool.save_record(record(job, 2, final=job % 5 == 0))
    assert not spool.commit()
    assert len(jobs(spool)) == 400  # the rest is in memory
    spool = reopened(spool, disk / "spool")
    final = {item.wire["job_id"] for item in spool.queue.waiting(1000) if item.wire["final"]}
    assert final == set(range(5, 401, 5))


def test_nothing_is_lost_while_memory_suffices(fill: Filler, disk: Path) -> None:
    spool = Spool(disk / "spool")
    spool.save_record(record(1))
    assert spool.commit()
    fill.take_all()
    for job in range(2, 1001):
        spool.save_record(record(job))
        if job % 100 == 0:
            spool.commit()
    assert not spool.commit()
    assert spool.failing
    assert jobs(spool) == list(range(1, 1001))
    assert spool.queue.take_dropped() == 0
    fill.give_back()
    assert spool.commit()
    assert not spool.failing
    assert spool.queue.take_dropped() == 0
    assert jobs(reopened(spool, disk / "spool")) == list(range(1, 1001))


def test_shipping_from_memory_continues_and_frees_it(fill: Filler, disk: Path) -> None:
    spool = Spool(disk / "spool")
    empty_bytes = spool.size_bytes
    fill.take_all()
    for job in range(1, 1001):
        spool.save_record(record(job))
    spool.commit()
    for item in spool.queue.waiting(1000):
        spool.queue.shipped(item)
    assert spool.commit()
    assert (len(spool.queue), spool.size_bytes) == (0, empty_bytes)


def test_over_the_memory_limit_the_oldest_are_dropped_and_counted(fill: Filler, disk: Path) -> None:
    spool = Spool(disk / "spool", max_bytes_in_memory=200_000)
    spool.save_record(record(1, final=False))
    assert spool.commit()
    fill.take_all()
    for job in range(2, 1001):
        spool.save_record(record(job))
        spool.commit()
    kept = jobs(spool)
    assert kept[0] == 1  # still running
    assert kept[-1] == 1000
    assert spool.queue.take_dropped() == 0
    fill.give_back()
    assert spool.commit()
    assert spool.queue.take_dropped() == 1000 - len(kept)
    assert spool.queue.take_dropped() == 0
    # The first records used the reserve and the last ones are in memory; the others are lost.
    newest = [job for job in kept if job > 900]
    assert newest == list(range(901, 1001))


def test_over_the_limit_the_newest_are_kept_and_the_loss_survives_a_restart(tmp_path: Path) -> None:
    spool = Spool(tmp_path, max_bytes=100_000)
    for n in range(10):
        spool.save_event(Event(node="n1", boot_id="b", n=n, at_s=100, kind="xid", device="GPU-0"))
    for job in range(1, 301):
        spool.save_record(record(job))
        assert spool.commit()
    assert spool.size_bytes <= 100_000 + 2000
    spool.close()
    spool = Spool(tmp_path, max_bytes=100_000)
    kept = jobs(spool)
    assert kept == list(range(301 - len(kept), 301))
    assert spool.queue.take_dropped() == 0  # there is no room yet
    for item in spool.queue.waiting(1000):
        spool.queue.shipped(item)
    assert spool.queue.take_dropped() == 310 - len(kept)
    assert spool.commit()


def test_dropped_records_are_an_event_once_there_is_space(machine: Machine) -> None:
    spool = machine.spool
    assert spool is not None
    spool.queue._max_bytes = 50_000
    for job in range(1, 101):
        spool.save_record(record(job))
    machine.run(20)
    lost = 100 - len(jobs(spool))
    assert lost > 0
    assert machine.events() == []
    for item in spool.queue.waiting(1000):
        spool.queue.shipped(item)
    machine.run(20)
    (event,) = (item.wire for item in spool.queue.waiting(10))
    assert (event["kind"], event["data"]) == ("spool_full", {"dropped": lost})


@pytest.mark.parametrize("how", ["removed", "emptied", "without its log"])
def test_a_spool_that_disappeared_is_an_error_and_an_event(
    machine: Machine, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    machine.run(20)
    machine.kill()
    assert "are lost" not in caplog.text
    place = machine.directory / "spool"
    if how == "without its log":
        (place / "log").unlink()
    else:
        shutil.rmtree(place)
        if how == "emptied":
            place.mkdir()
    machine.start()
    machine.run(20)
    assert f"{place}: is missing or empty, but was not before: unsent records are lost" in caplog.text
    assert machine.spool is not None
    assert [item.wire["kind"] for item in machine.spool.queue.waiting(10) if item.kind == "events"] == [
        "spool_lost"
    ]
    machine.kill()
    caplog.clear()
    machine.start()
    assert "are lost" not in caplog.text


def test_a_new_or_upgraded_node_has_not_lost_its_spool(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mark = tmp_path / "node" / "spool"
    assert not Spool(tmp_path / "new", mark=mark).was_lost
    upgraded = tmp_path / "upgraded"
    Spool(upgraded).close()
    assert not Spool(upgraded, mark=tmp_path / "other" / "spool").was_lost
    assert not caplog.records


def test_a_first_start_that_is_killed_or_cannot_write_leaves_no_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "node" / "spool"

    class KilledError(BaseException):
        pass

    def killed(*_: object) -> bool:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(DurableMap, "commit", killed)
        with pytest.raises(KilledError):
            Spool(tmp_path / "spool", mark=mark)
        patch.setattr(DurableMap, "commit", lambda *_: False)
        Spool(tmp_path / "full", mark=mark)
    assert not mark.exists()
    # This process still holds the lock of the killed one.
    shutil.copytree(tmp_path / "spool", tmp_path / "again")
    assert not Spool(tmp_path / "again", mark=mark).was_lost
    assert mark.exists()


def test_a_mark_that_cannot_be_created_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "node").write_text("")
    assert not Spool(tmp_path / "spool", mark=tmp_path / "node" / "spool").was_lost
    assert "a later loss of the spool will not be detected" in caplog.text


def test_a_day_without_the_database_fits(tmp_path: Path) -> None:
    """Test that a day of jobs of 10 s on each of 8 GPUs, with all fields of a device, fits the limit."""
    mean, total = Mean(10.123456, 1234.567891, 1000.123456, 2000.123456), Total(10.123456, 123456789.123456)
    full = record(1)
    values = {
        name: mean if str(field.type) == "Mean | None" else total
        for name, field in Record.__dataclass_fields__.items()
        if str(field.type) in ("Mean | None", "Total | None")
    }
    fields = {name: getattr(full, name) for name in Record.__dataclass_fields__} | values
    fields |= {"util_hist_ms": dict.fromkeys(range(60), 166), "mem_hist_ms": dict.fromkeys(range(10), 999)}
    spool = Spool(tmp_path)
    spool.save_record(Record(**fields))
    spool.save_host(host(1))
    timeline_bytes = 8 * (len('"sm_clock":"",') + 16) + 50
    per_job = spool.size_bytes + timeline_bytes
    assert 8 * 86_400 / 10 * per_job < MAX_BYTES


def test_rejected_files_are_limited_in_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurm_gpu.node.shipping.rejected.MAX_REJECTED", 3)
    spool = Spool(tmp_path)
    for job in range(1, 7):
        spool.save_record(record(job))
    for item in spool.queue.waiting(10):
        spool.queue.reject(item, "no")
    assert len(list((tmp_path / "rejected").iterdir())) == 3
    assert len(spool.queue) == 0


def test_stored_values_are_not_kept_in_memory(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    for job in range(1, 101):
        spool.save_record(record(job))
    assert spool._journal.bytes_in_memory > 50_000
    assert spool.commit()
    assert spool._journal.bytes_in_memory == 0
