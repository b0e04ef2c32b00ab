"""An export contains each row of the database once, in complete files only."""

import json
import os
import signal
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pytest
from sqlalchemy import select

from slurm_gpu.database.accounting.importer import store_changed_runs
from slurm_gpu.database.accounting.reconcile import reconcile
from slurm_gpu.database.accounting.run_row import run_row
from slurm_gpu.database.accounting.writer import store_devices, store_events, store_hosts, store_records
from slurm_gpu.database.storage.engine import Database
from slurm_gpu.database.storage.schema import event, run, run_device, run_host
from slurm_gpu.reports import export as exporting
from slurm_gpu.reports.export import ExportMonth, export
from slurm_gpu.wire import Event
from tests.database.conftest import database, mariadb, shared_database, short_path
from tests.database.samples import T0, gpu, host, record, row, segment, timeline

__all__ = ["database", "mariadb", "shared_database", "short_path"]

_DAY_S = 86400
N_JOBS = 12


@pytest.fixture
def filled(database: Database) -> Database:
    """Insert a job every ten days with two records, a host record and an event; T0 is in May 2026."""
    starts = {n: T0 - 10 * n * _DAY_S for n in range(N_JOBS)}
    runs = [
        run_row(row(job_id=n, name=f"job\n{n}", submit_s=at_s - 60, start_s=at_s, end_s=at_s + 10), {})
        for n, at_s in starts.items()
    ]
    stored = [
        record(job_id=n, first_s=at_s, segment=segment(n), device=name, timeline=timeline(7, start_s=at_s))
        for n, at_s in starts.items()
        for name in ("GPU-1", "GPU-2")
    ]
    hosts = [host(job_id=n, first_s=at_s, segment=segment(n)) for n, at_s in starts.items()]
    events = [
        Event(node="n1", boot_id="b", n=n, at_s=at_s, kind="xid", device="GPU-1", data={"code": 79})
        for n, at_s in starts.items()
    ]
    database.write(lambda connection: store_changed_runs(connection, runs))
    database.write(lambda connection: store_records(connection, stored))
    database.write(lambda connection: store_hosts(connection, hosts))
    database.write(lambda connection: store_events(connection, events))
    database.write(lambda connection: store_devices(connection, [gpu()]))
    reconcile(database)
    return database


def read(out: Path, name: str) -> list[dict[str, Any]]:
    found = pyarrow.dataset.dataset(out / name, partitioning="hive", format="parquet").to_table()
    return list(found.to_pylist())


def stored(database: Database, table: Any) -> list[dict[str, Any]]:
    with database.reading() as connection:
        return [dict(found) for found in connection.execute(select(table)).mappings()]


def by_key(rows: list[dict[str, Any]], *names: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    found = {tuple(item[name] for name in names): item for item in rows}
    assert len(found) == len(rows), "each row once"
    return found


def test_all_that_is_stored_is_in_the_files(filled: Database, tmp_path: Path) -> None:
    done = export(filled, tmp_path / "out", timelines=True)
    assert done.rows == {
        "run": N_JOBS,
        "run_device": 2 * N_JOBS,
        "run_host": N_JOBS,
        "event": N_JOBS,
        "device": 1,
        "node_period": 0,
    }
    for table, keys in (
        (run, ("job_id", "submit_s")),
        (run_device, ("segment", "device")),
        (run_host, ("segment",)),
        (event, ("node", "boot_id", "n")),
    ):
        exported = by_key(read(tmp_path / "out", table.name), *keys)
        there = by_key(stored(filled, table), *keys)
        assert exported.keys() == there.keys()
        for key, item in exported.items():
            month = item.pop("month")
            for name, value in item.items():
                column = table.c[name]
                is_json = not isinstance(there[key][name], str | int | float | None)
                decoded = json.loads(value) if is_json else value
                expected = json.loads(json.dumps(there[key][name])) if is_json else there[key][name]
                assert decoded == expected, column
            at_s = there[key].get("submit_s", there[key].get("first_s", there[key].get("at_s")))
            assert month == str(ExportMonth.at(at_s))


def test_files_are_for_their_owner_alone(filled: Database, tmp_path: Path) -> None:
    export(filled, tmp_path / "out")
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o700
    assert {path.suffix for path in files} == {".parquet"}


def test_whole_months_of_a_period_are_written_and_others_stay(filled: Database, tmp_path: Path) -> None:
    lines: list[str] = []
    export(filled, tmp_path, since_s=T0 - 40 * _DAY_S, until_s=T0 - 20 * _DAY_S, report=lines.append)
    assert lines == ["2026-04: 3 runs", "2026-05: 3 runs"]
    april = tmp_path / "run" / "month=2026-04" / "part-0.parquet"
    before = april.stat().st_mtime_ns
    lines.clear()
    done = export(filled, tmp_path, since_s=T0, report=lines.append)
    assert (lines, done.months) == (["2026-05: 3 runs"], 1)
    assert april.stat().st_mtime_ns == before
    assert len(read(tmp_path, "run")) == 6


def test_the_event_of_a_node_with_a_wrong_clock_adds_one_month(database: Database, tmp_path: Path) -> None:
    values = [run_row(row(job_id=1), {})]
    database.write(lambda connection: store_changed_runs(connection, values))
    wrong = (0, T0 + 3000 * 365 * _DAY_S)
    stored = [
        Event(node="n1", boot_id="b", n=n, at_s=at_s, kind="xid", data={}) for n, at_s in enumerate(wrong)
    ]
    database.write(lambda connection: store_events(connection, stored))
    assert export(database, tmp_path).months == 3
    assert len(read(tmp_path, "event")) == 2


def test_a_day_that_calendars_do_not_have_is_before_or_after_all(filled: Database, tmp_path: Path) -> None:
    after_year_9999 = 253_402_300_800
    assert export(filled, tmp_path / "all", since_s=-(10**17)).rows["run"] == N_JOBS
    assert export(filled, tmp_path / "none", since_s=after_year_9999).rows["run"] == 0


def in_child(filled: Database, out: Path, kill_after: int) -> int:
    filled.dispose()
    pid = os.fork()
    if pid == 0:
        moments: Iterator[int] = iter(range(kill_after))

        def report(line: str) -> None:
            if next(moments, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            export(Database(filled.url.render_as_string(hide_password=False)), out, report=report)
        finally:
            os._exit(0)
    return os.waitpid(pid, 0)[1]


def test_a_killed_export_is_resumed_at_its_month(filled: Database, tmp_path: Path) -> None:
    assert os.WTERMSIG(in_child(filled, tmp_path, 1)) == signal.SIGKILL
    lines: list[str] = []
    done = export(filled, tmp_path, report=lines.append)
    assert done.rows["run"] == N_JOBS
    assert len(lines) == done.months - 2, "two were written, one of them was reported"
    assert len(by_key(read(tmp_path, "run"), "job_id")) == N_JOBS
    lines.clear()
    export(filled, tmp_path, report=lines.append)
    assert len(lines) == done.months, "a complete export was resumed"


def test_a_killed_export_is_resumed_with_a_relative_period(filled: Database, tmp_path: Path) -> None:
    """Test `--since 400d`, which begins at a later second in each call, but covers the same months."""
    in_child(filled, tmp_path, 1)
    lines: list[str] = []
    since_s = T0 - 4000 * _DAY_S
    done = export(filled, tmp_path, since_s=since_s, report=lines.append)
    assert len(lines) == done.months - 2


@pytest.mark.parametrize("late_s", [86_400.0, -86_400.0])
def test_a_resumed_export_rewrites_files_of_the_day_before(
    filled: Database, tmp_path: Path, late_s: float
) -> None:
    """Test that written months are exported again, because runs may have ended or been submitted since."""
    in_child(filled, tmp_path, 1)
    lines: list[str] = []
    done = export(filled, tmp_path, report=lines.append, wall=lambda: time.time() + late_s)
    assert len(lines) == done.months


def test_an_export_does_not_continue_a_killed_one(filled: Database, tmp_path: Path) -> None:
    in_child(filled, tmp_path, 1)
    done = export(filled, tmp_path, timelines=True)
    assert all(item["timeline"] is not None for item in read(tmp_path, "run_device"))
    assert done.rows["run_device"] == 2 * N_JOBS


def test_a_failed_export_keeps_the_previous_files(
    filled: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export(filled, tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.parquet")}

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(exporting, "_value", full)
    with pytest.raises(OSError, match="No space left"):
        export(filled, tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_many_rows_are_read_some_at_a_time(
    filled: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "_RUNS_AT_ONCE", 1)
    monkeypatch.setattr(exporting, "_ROWS_AT_ONCE", 2)
    rows = [run_row(row(job_id=100 + n, submit_s=T0), {}) for n in range(5)]
    filled.write(lambda connection: store_changed_runs(connection, rows))
    export(filled, tmp_path)
    assert len(by_key(read(tmp_path, "run"), "job_id")) == N_JOBS + 5
    assert len(by_key(read(tmp_path, "run_device"), "segment", "device")) == 2 * N_JOBS


def test_records_that_belong_to_no_run_are_there_until_they_do(database: Database, tmp_path: Path) -> None:
    stored = [record(job_id=7, segment=segment(n), timeline=timeline(1, start_s=T0)) for n in (1, 2)]
    database.write(lambda connection: store_records(connection, stored))
    database.write(lambda connection: store_hosts(connection, [host(job_id=7, segment=segment(1))]))
    reconcile(database)
    done = export(database, tmp_path, timelines=True)
    assert (done.rows["run_device"], done.rows["run_host"], done.months) == (2, 1, 0)
    found = by_key(read(tmp_path, "run_device"), "segment")
    assert {(item["month"], item["run_id"], item["job_id"]) for item in found.values()} == {
        ("unmatched", None, 7)
    }
    assert all(item["timeline"] for item in found.values())

    runs = [run_row(row(job_id=7, submit_s=T0 - 60, start_s=T0, end_s=T0 + 10), {})]
    database.write(lambda connection: store_changed_runs(connection, runs))
    reconcile(database)
    assert export(database, tmp_path).rows["run_device"] == 2
    found = by_key(read(tmp_path, "run_device"), "segment")
    assert {item["month"] for item in found.values()} == {str(ExportMonth.at(T0))}
    assert not any("unmatched" in item["month"] for item in read(tmp_path, "run_host"))


def test_an_empty_database_has_no_month(database: Database, tmp_path: Path) -> None:
    assert export(database, tmp_path / "out").months == 0


@pytest.mark.parametrize(
    ("time_s", "text", "following"),
    [(0, "1970-01", "1970-02"), (1_767_225_599, "2025-12", "2026-01"), (1_767_225_600, "2026-01", "2026-02")],
)
def test_months_are_of_utc(time_s: int, text: str, following: str) -> None:
    month = ExportMonth.at(time_s)
    assert (str(month), str(month.following())) == (text, following)
    assert month.begin_s <= time_s < month.following().begin_s
