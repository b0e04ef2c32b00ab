"""`slurm-gpu db` works only on the host of slurm-gpudbd, and names the database."""

from pathlib import Path

import pytest
from pyarrow import parquet
from sqlalchemy import func, select

from slurm_gpu.database import settings
from slurm_gpu.database.accounting.importer import store_changed_runs
from slurm_gpu.database.accounting.run_row import run_row
from slurm_gpu.database.accounting.writer import store_events, store_records
from slurm_gpu.database.storage.engine import Database, shown_url
from slurm_gpu.database.storage.schema import run_device
from slurm_gpu.wire import Event
from tests.cli.conftest import CommandLine, PrivateFile
from tests.database.samples import record, row, segment, timeline
from tests.slurm.recorded import NOW_S


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory that replaces /etc and /var of an empty host."""
    monkeypatch.setattr(settings, "DEFAULT_PATH", tmp_path / "slurm-gpudbd.yaml")
    monkeypatch.setattr(settings, "DEFAULT_DATABASE", tmp_path / "slurm-gpu.db")
    monkeypatch.setattr(settings, "DEFAULT_URL", f"sqlite:///{tmp_path}/slurm-gpu.db")
    return tmp_path


def test_on_another_host_nothing_is_created(slurm_gpu: CommandLine, place: Path):
    before = set(place.iterdir())
    assert slurm_gpu("db", "upgrade") == 2
    assert f"{place}/slurm-gpudbd.yaml does not exist" in slurm_gpu.err
    assert "run this on slurm-gpudbd's host" in slurm_gpu.err
    assert set(place.iterdir()) == before


def test_the_database_is_named(slurm_gpu: CommandLine, place: Path):
    (place / "slurm-gpudbd.yaml").write_text(f"url: sqlite:///{place}/own.db\n")
    assert slurm_gpu("db", "upgrade") == 0
    assert slurm_gpu.out.startswith(f"sqlite:///{place}/own.db has schema 0")


def test_a_variable_names_the_file_of_the_database(
    slurm_gpu: CommandLine, place: Path, monkeypatch: pytest.MonkeyPatch
):
    (place / "own.yaml").write_text(f"url: sqlite:///{place}/own.db\n")
    monkeypatch.setenv("SLURM_GPU_DATABASE_CONFIG", f"{place}/own.yaml")
    assert slurm_gpu("db", "upgrade") == 0
    assert slurm_gpu.out.startswith(f"sqlite:///{place}/own.db has schema 0")


OPENING = (
    ("db", "upgrade"),
    ("db", "export", "--out", "out"),
    ("db", "prune"),
    ("forecast", "train"),
    ("report", "build", "--out", "out"),
)


@pytest.mark.parametrize("argv", OPENING)
@pytest.mark.parametrize("name", ["slurm-gpudbd.yaml", "own.yaml", "slurm-gpu.db"])
def test_other_users_are_referred_to_root_and_slurm_user(
    slurm_gpu: CommandLine,
    place: Path,
    private: PrivateFile,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    argv: tuple[str, ...],
):
    monkeypatch.chdir(place)
    if name == "own.yaml":
        monkeypatch.setenv("SLURM_GPU_DATABASE_CONFIG", f"{place}/own.yaml")
    elif name == "slurm-gpu.db":
        (place / "slurm-gpudbd.yaml").write_text(f"url: sqlite:///{place}/slurm-gpu.db\n")
    path = private(place / name, "")
    assert slurm_gpu(*argv) == 2
    assert slurm_gpu.err == (
        f"slurm-gpu: only root and SlurmUser may read {path}: run this command as root or SlurmUser\n"
    )


@pytest.mark.parametrize("argv", OPENING)
def test_help_names_the_users_of_the_database(slurm_gpu: CommandLine, argv: tuple[str, ...]):
    assert slurm_gpu(*argv[:2], "--help") == 0
    assert "host, as root or SlurmUser." in " ".join(slurm_gpu.out.split())


def test_a_password_is_never_shown():
    shown = shown_url("mysql+pymysql://gpu:hush@db/slurm_gpu?passwd=hush&charset=utf8mb4")
    assert shown == "mysql+pymysql://gpu:***@db/slurm_gpu?charset=utf8mb4"


@pytest.fixture
def filled(place: Path) -> Database:
    """Fill a database with a run that is 400 days old and a recent run, each with a timeline and an event."""
    (place / "slurm-gpudbd.yaml").write_text(f"url: sqlite:///{place}/slurm-gpu.db\n")
    database = Database(f"sqlite:///{place}/slurm-gpu.db")
    database.upgrade()
    for n, start_s in ((1, NOW_S - 400 * 86400), (2, NOW_S - 3600)):
        times = {"submit_s": start_s, "eligible_s": start_s, "start_s": start_s, "end_s": start_s + 10}
        runs = [run_row(row(job_id=n, **times), {})]
        records = [
            record(job_id=n, first_s=start_s, segment=segment(n), timeline=timeline(7, start_s=start_s))
        ]
        events = [Event(node="n1", boot_id="b", n=n, at_s=start_s, kind="gpu_lost")]
        database.write(lambda connection, runs=runs: store_changed_runs(connection, runs))  # type: ignore[misc]
        database.write(lambda connection, records=records: store_records(connection, records))  # type: ignore[misc]
        database.write(lambda connection, events=events: store_events(connection, events))  # type: ignore[misc]
    return database


def test_prune_deletes_rows_older_than_the_retention_and_a_dry_run_only_counts(
    slurm_gpu: CommandLine, filled: Database
):
    counts = "1 timeline older than 90d, 0 windows older than 7d, 1 event older than 365d, "
    counts += "0 verdicts older than 365d, 0 forecasts older than 90d, 0 decisions older than 14d"
    for _ in range(2):
        assert slurm_gpu("db", "prune", "--dry-run") == 0
        assert slurm_gpu.out == f"would delete {counts}\n"
    assert slurm_gpu("db", "prune") == 0
    assert slurm_gpu.out == f"deleted {counts}\n"
    slurm_gpu("db", "prune", "--dry-run")
    assert slurm_gpu.out.startswith("would delete 0 timelines")
    with filled.reading() as connection:
        assert connection.execute(select(func.count()).select_from(run_device)).scalar() == 2


def test_export_writes_months_and_prints_the_counts(slurm_gpu: CommandLine, filled: Database, tmp_path: Path):
    assert slurm_gpu("db", "export", "--out", str(tmp_path / "out"), "--since", "2d") == 0
    records = slurm_gpu.out
    assert records.endswith("run 1, run_device 2, run_host 0\n"), (
        "the export lacks records that are not matched yet"
    )
    (path,) = (tmp_path / "out" / "run").rglob("*.parquet")
    assert parquet.ParquetFile(path).read().column("job_id").to_pylist() == [2]


@pytest.mark.parametrize("words", [("export", "--out", "x"), ("prune",)])
def test_a_missing_database_is_not_created(slurm_gpu: CommandLine, place: Path, words: tuple[str, ...]):
    (place / "slurm-gpudbd.yaml").write_text(f"url: sqlite:///{place}/own.db\n")
    assert slurm_gpu("db", *words) == 2
    assert slurm_gpu.err.startswith(f"slurm-gpu: sqlite:///{place}/own.db does not exist")
    assert not (place / "own.db").exists()
