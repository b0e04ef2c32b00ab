"""Write the state of a release to disk with its own code, as data for the tests of later ones.

    mkdir tree && git archive COMMIT slurm_gpu plugins | tar -x -C tree
    PYTHONPATH=tree python -P tests/upgrade/write_state.py tests/upgrade/data/VERSION

The script uses only features of 0.1.0. Run it exactly once for each release.
"""

import sqlite3
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from slurm_gpu import __version__
from slurm_gpu.node.allocation.tracker import Allocation
from slurm_gpu.node.measure.tally import SegmentKey
from slurm_gpu.node.shipping.shipment import OutgoingShipment
from slurm_gpu.node.shipping.spool import Spool
from slurm_gpu.policy.journal import ApplyJournal, ApplyState, Entry
from slurm_gpu.wire import (
    DeviceFacts,
    Event,
    Host,
    HostRun,
    Mean,
    Record,
    Timeline,
    Total,
    Window,
)
from slurm_gpu.wire.window import pack

T0 = 1_780_000_000


def key(job_id: int) -> SegmentKey:
    return SegmentKey(
        cluster="lab",
        job_id=job_id,
        restart=0,
        prolog_s=T0,
        node="n1",
        boot_id="boot-1",
        segment=f"{job_id:016x}",
    )


def record(job_id: int, seq: int, *, final: bool, device: str = "GPU-0") -> Record:
    mean = Mean(90.0, 50.0, 0.0, 100.0)
    return Record(
        **asdict(key(job_id)),
        device=device,
        seq=seq,
        final=final,
        first_s=T0,
        last_s=T0 + 100,
        allocated_s=100.0,
        sampled_s=90.0,
        uptime_s=5000.0,
        no_process_s=10.0,
        suspended_s=0.0,
        granted_mgpu=1000,
        util_hist_ms={0: 40_000, 100: 50_000},
        mem_hist_ms={25: 90_000},
        device_util_pct=mean,
        mem_used_frac=Mean(90.0, 0.25, 0.25, 0.25),
        power_w=mean,
        energy_j=Total(90.0, 4500.0),
        throttle_s={"sw_power_cap": 1.5},
        timeline=Timeline(width_s=64, start_s=T0 // 64 * 64, series={"util": bytes([125, 250])}),
    )


def host(job_id: int, seq: int, *, final: bool) -> Host:
    return Host(
        **asdict(key(job_id)),
        seq=seq,
        final=final,
        first_s=T0,
        last_s=T0 + 100,
        uptime_s=5000.0,
        cpu_s=12.5,
        app="PyTorch",
        app_params={"model": "resnet"},
    )


def allocation(job_id: int) -> Allocation:
    return Allocation(
        key=key(job_id),
        prolog_at_s=T0 + 0.25,
        begun_s=5000.0,
        start_s=5000.0,
        start_wall_s=T0 + 0.25,
        positions=(0, 1),
        devices={0: "GPU-0", 1: "GPU-1"},
        uid=1001,
    )


def event(n: int) -> Event:
    return Event(node="n1", boot_id="boot-1", n=n, at_s=T0, kind="xid", device="GPU-0", data={"code": 79})


RUN = HostRun(
    cluster="host:n1", job_id=T0, node="n1", seq=3, uid=1001, user="alice", start_s=T0, devices=("GPU-0",)
)


def write_spool(directory: Path) -> bytes:
    """Write ended job 1 and running jobs 2 and 3, of which 3 was shipped; return a shipment of all."""
    spool = Spool(directory)
    spool.save_record(record(1, 9, final=True))
    spool.save_host(host(1, 9, final=True))
    for job_id in (2, 3):
        spool.save_allocation(allocation(job_id))
        spool.save_record(record(job_id, 4, final=False))
        spool.save_record(record(job_id, 4, final=False, device="GPU-1"))
        spool.save_host(host(job_id, 4, final=False))
    spool.save_event(event(T0 * 10**6))
    spool.save_run(RUN)
    spool.next_job_id(T0)
    spool.commit()
    everything = spool.queue.waiting(100, set(spool.queue.waiting_keys()))
    for item in everything:
        if item.wire.get("job_id") == 3:
            spool.queue.shipped(item)
    spool.commit()
    spool.close()
    return OutgoingShipment(
        node="n1", boot_id="boot-1", items=everything, devices=[GPU], open_jobs=[2, 3]
    ).body()


GPU = DeviceFacts(node="n1", uuid="GPU-0", at_s=T0, name="NVIDIA A100", minor=0, index=0, memory_mib=40960.0)


def write_database(path: Path) -> None:
    """One record of each kind, as SQL."""
    # Imported only here, because later releases, whose tests import this module, may change these names.
    from slurm_gpu.database.accounting.writer import (
        store_devices,
        store_events,
        store_hosts,
        store_records,
        store_windows,
    )
    from slurm_gpu.database.storage.engine import Database

    with tempfile.TemporaryDirectory() as directory:
        database = Database(f"sqlite:///{directory}/x.db")
        database.upgrade()
        window = Window(
            job_id=1,
            segment=key(1).segment,
            device="GPU-0",
            start_s=T0,
            width_s=1.0,
            series={"util_pct": pack([50.0])},
        )

        def store(connection):  # type: ignore[no-untyped-def]
            store_records(connection, [record(1, 9, final=True)])
            store_hosts(connection, [host(1, 9, final=True)])
            store_devices(connection, [GPU])
            store_events(connection, [event(1)])
            store_windows(connection, [window], "n1", T0)

        database.write(store)
        database.dispose()
        with sqlite3.connect(f"{directory}/x.db") as stored:
            path.write_text("\n".join(stored.iterdump()) + "\n")
        stored.close()


def main() -> None:
    target = Path(sys.argv[1])
    target.mkdir(parents=True)
    (target / "shipment.json.gz").write_bytes(write_spool(target / "spool"))
    (target / "spool" / "lock").unlink()
    (target / "spool" / "reserve").unlink(missing_ok=True)
    write_database(target / "database.sql")
    journal = ApplyJournal(target / "policy", now=lambda: T0)
    with journal.lock():
        journal.mark(
            journal.begin(Entry(cluster="lab", policy="/etc/slurm-gpu/policy.yaml", digest="00")),
            ApplyState.DONE,
        )
    (target / "policy" / "lock").unlink()
    print(f"written by {__version__}")


if __name__ == "__main__":
    main()
