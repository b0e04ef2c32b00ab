import dataclasses
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import psutil
import pytest
from msgspec import structs

from slurm_gpu import __version__
from slurm_gpu.cli.doctor.checks.daemons.database import schema_here
from slurm_gpu.cli.doctor.checks.finding import CheckResult, Level
from slurm_gpu.cli.main import main
from slurm_gpu.cli.site import CommandSite
from slurm_gpu.client.database_client import (
    AuditEvent,
    Decision,
    Health,
    NodeReport,
    NodeWindow,
    Run,
    RunPage,
    RunTimeline,
)
from slurm_gpu.errors import DatabaseError, NotFoundError, SlurmError
from slurm_gpu.slurm.sacctmgr import Sacctmgr
from slurm_gpu.wire import Live, Mean, Record, Total
from slurm_gpu.wire.answers.cluster import ClusterState
from slurm_gpu.wire.answers.node_minutes import NodeMinutes
from slurm_gpu.wire.answers.reservation import MOST_IDS, Reservation
from slurm_gpu.wire.answers.running import Running
from slurm_gpu.wire.answers.verdicts import Verdicts
from tests.slurm.recorded import NOW_S, recorded_client

START_S = NOW_S - 7200


def make_run(**changes: Any) -> Run:
    """Return a finished one-hour run of alice's on two GPUs."""
    run = Run(
        id="17",
        full=True,
        cluster="neuron",
        job_id=17,
        array_job_id=None,
        array_task=None,
        het_job_id=None,
        het_offset=None,
        user="alice",
        account="vision",
        qos="normal",
        partition="gpu",
        state="COMPLETED",
        submit_s=START_S - 1800,
        eligible_s=START_S - 1800,
        start_s=START_S,
        end_s=START_S + 3600,
        elapsed_s=3600,
        suspended_s=0,
        time_limit_s=7200,
        nodes="n1",
        gpu_type="a100",
        n_nodes=1,
        n_gpus=2.0,
        wait_h=0.5,
        submit_wait_h=0.5,
        run_h=1.0,
        name="train",
        exit_code="0:0",
        restart=0,
        ugpucore=42.25,
        ugpumem=10.0,
        coverage=0.99,
        energy_j=720_000.0,
    )
    return structs.replace(run, **changes)


def make_record(device: str, **changes: Any) -> Record:
    """Return the record of an hour on one GPU of n1, half of it at 40 % and half of it idle."""
    record = Record(
        cluster="neuron",
        job_id=17,
        restart=0,
        prolog_s=START_S,
        node="n1",
        boot_id="b",
        segment="0" * 16,
        device=device,
        seq=9,
        final=True,
        first_s=START_S,
        last_s=START_S + 3600,
        allocated_s=3600.0,
        sampled_s=3600.0,
        no_process_s=0.0,
        granted_mgpu=1000,
        util_hist_ms={0: 1_800_000, 40: 1_800_000},
        mem_used_mib=Mean(3600, 4096, 0, 8192),
        mem_used_frac=Mean(3600, 0.1, 0, 0.2),
        power_w=Mean(3600, 100, 50, 300),
        energy_j=Total(3600, 360_000),
    )
    return dataclasses.replace(record, **changes)


def make_health(**changes: Any) -> Health:
    """Return the state of a healthy slurm-gpudbd."""
    health = Health(
        version=__version__,
        wire=(1, 1),
        schema=schema_here(),
        database="SQLite 3",
        cluster="neuron",
        now_s=NOW_S,
        import_interval_s=60.0,
        last_import_s=NOW_S - 5,
        import_error=None,
        watermark_s=NOW_S - 5,
        watermark_lag_s=5.0,
        unmatched=0,
        rejected={},
    )
    return dataclasses.replace(health, **changes)


class Database:
    """A DatabaseClient with prepared answers of slurm-gpudbd."""

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.left_out = 0
        """The number of runs and events that one answer omits for lack of space."""
        self.unmatched = 0
        self.run_timelines: list[RunTimeline] = []
        self.window_list: list[NodeWindow] | None = None
        """None if the job does not run and no window was kept."""
        self.host_list: list[NodeMinutes] = []
        self.windows_asked = 0
        self.windows_of: Callable[[list[NodeWindow]], list[NodeWindow]] = lambda windows: windows
        """Returns the windows that have arrived by the time of a request."""
        self.lives: dict[str, Live] = {}
        self.reports: list[NodeReport] = []
        self.cluster_state: ClusterState | None = None
        """None if slurm-gpudbd is unreachable."""
        self.reported_verdicts: Verdicts | None = None
        self.running_state: Running | None = None
        """None for an older slurm-gpudbd."""
        self.state: Health | None = make_health()
        self.asked: dict[str, Any] = {}
        self.act_list: list[AuditEvent] = []
        """Audit events, the newest first."""
        self.refused: list[Decision] = []
        """Refusals, the newest first."""
        self.reserved: list[Reservation] | None = []
        """None for a slurm-gpudbd without reservations."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def all_runs(self, **filters: Any) -> Iterator[Run]:
        self.asked = filters
        return iter(self.runs)

    def run(self, job: str) -> list[Run]:
        return [run for run in self.runs if run.id == job]

    def run_page(self, job: str) -> RunPage:
        return RunPage(
            runs=self.run(job),
            cursor=None,
            left_out=self.left_out,
            events_left_out=self.left_out,
            unmatched=self.unmatched,
        )

    def acts(self, limit: int = 100) -> list[AuditEvent]:
        return self.act_list[:limit]

    def refusals(self, rule: str | None = None, limit: int = 100) -> list[Decision]:
        self.asked = {"rule": rule}
        return self.refused[:limit]

    def reservations(self, past: int = 0, ids: Sequence[int] = ()) -> list[Reservation]:
        if self.reserved is None:
            raise DatabaseError("slurm-gpudbd answered 404: there is no /v1/reservations")
        assert len(ids) <= MOST_IDS
        return [one for one in self.reserved if one.id in ids]

    def timelines(self, job: str) -> list[RunTimeline]:
        return self.run_timelines

    def windows(self, job: str) -> list[NodeWindow]:
        if self.window_list is None:
            raise DatabaseError(f"slurm-gpudbd answered 404: no window of job {job}")
        self.windows_asked += 1
        return self.windows_of(self.window_list)

    def hosts(self, job: str) -> list[NodeMinutes]:
        return self.host_list

    def live(self, refresh: str = "all") -> dict[str, Live]:
        return self.lives

    def nodes(self) -> list[NodeReport]:
        return self.reports

    def cluster(self) -> ClusterState:
        if self.cluster_state is None:
            raise DatabaseError("slurm-gpudbd at http://dbhost:6829 cannot be reached")
        return self.cluster_state

    def running(self) -> Running:
        if self.running_state is None:
            raise DatabaseError("slurm-gpudbd answered 404: there is no /v1/running")
        return self.running_state

    def verdicts(self) -> Verdicts:
        if self.reported_verdicts is None:
            raise NotFoundError("slurm-gpudbd answered 404: there is no /v1/verdicts")
        return self.reported_verdicts

    def health(self) -> Health:
        if self.state is None:
            raise DatabaseError("slurm-gpudbd at http://dbhost:6829 cannot be reached")
        return self.state


PrivateFile = Callable[[Path, str], Path]


class CommandLine:
    """Run `slurm-gpu` in this process, with the recorded Slurm and the Database."""

    def __init__(self, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.config, self.database, self._capsys = config, Database(), capsys
        self.site = CommandSite(
            config, recorded_client, lambda _: self.database, lambda: NOW_S, connect_limits=_refuse_slurmdbd
        )
        self.out = self.err = ""

    def __call__(self, *argv: str) -> int:
        code = main(argv, self.site)
        self.out, self.err = self._capsys.readouterr()
        return code

    def rows(self) -> list[list[str]]:
        """Return the printed table by cell (cells without spaces)."""
        return [line.split() for line in self.out.splitlines()]


def _refuse_slurmdbd() -> Sacctmgr:
    """Fail at once, because on a host with sacctmgr the real client would retry for minutes."""
    raise SlurmError("slurmdbd: Connection refused")


@pytest.fixture
def slurm_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    config = tmp_path / "slurm-gpu.yaml"
    config.write_text("cluster: neuron\ntimezone: Asia/Seoul\n")
    return CommandLine(config, capsys)


def _triples(text: str) -> set[tuple[str, ...]]:
    words = [word.strip(".,:;()") for word in text.split()]
    return set(zip(words, words[1:], words[2:], strict=False))


@pytest.fixture
def no_repetition(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that no message of doctor shares three consecutive words with its remedy."""
    make = CheckResult.__init__

    def checked(self: CheckResult, level: Level, message: str, remedy: str | None = None) -> None:
        make(self, level, message, remedy)
        twice = _triples(message) & _triples(remedy or "")
        assert not twice, f"{message} → {remedy}"

    monkeypatch.setattr(CheckResult, "__init__", checked)


@pytest.fixture
def installed(no_repetition: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a complete installation for doctor, in a directory that, unlike tmp_path, users may enter."""
    from tests.cli.installation import Installation  # installation imports this module

    with tempfile.TemporaryDirectory(prefix="slurm-gpu-doctor-") as directory:
        Path(directory).chmod(0o755)
        host = Installation(Path(directory))
        monkeypatch.setattr(psutil, "PROCFS_PATH", str(host.root / "proc"))
        yield host


@pytest.fixture
def private(monkeypatch: pytest.MonkeyPatch) -> PrivateFile:
    """Return a function that writes a file which this process, acting as an ordinary user, may not read."""
    files = set()
    may, open_as_root = os.access, Path.open

    def access(path: Any, mode: int, **more: Any) -> bool:
        return may(path, mode, **more) and not (Path(path) in files and mode & os.R_OK)

    def open_as_user(path: Path, mode: str = "r", *more: Any, **others: Any) -> Any:
        if path in files:
            raise PermissionError(13, "Permission denied", str(path))
        return open_as_root(path, mode, *more, **others)

    def write(path: Path, text: str) -> Path:
        path.write_text(text)
        files.add(path)
        return path

    # The interpreter loads modules while the checks run, so this process cannot become another user.
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    monkeypatch.setattr(os, "access", access)
    monkeypatch.setattr(Path, "open", open_as_user)
    return write
