"""The daemons of the previous release, unchanged, together with those of this one."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import select

import slurm_gpu
from lab.simgpu.creation import create
from lab.simgpu.specs import GpuSpec
from slurm_gpu.client.database_client import DatabaseClient
from slurm_gpu.config.site import SiteConfig
from slurm_gpu.database.storage.engine import Database
from slurm_gpu.database.storage.schema import run_device
from tests.upgrade.releases import BEFORE, REPOSITORY, environment

_WITHIN_S = 20.0
# What `slurmd -G` prints.
SLURMD = """#!/bin/sh
echo "slurmd: Gres Name=gpu Type=a100 Count=1 File=/dev/nvidia0 (null)"
"""
UUID = "GPU-5eed0000-0000-0000-0000-000000000001"
pytestmark = pytest.mark.skipif(
    os.getuid() != 0, reason="only root may ship without a Slurm to name SlurmUser"
)


def uptime() -> str:
    return Path("/proc/uptime").read_text().split()[0]


@dataclass
class Site:
    """A node with a simulated GPU and a database on Unix sockets, without Slurm and MUNGE."""

    root: Path
    socket: Path
    library: Path

    def __post_init__(self) -> None:
        create(self.root / "gpus.world", [GpuSpec(UUID)])
        slurmd = self.root / "slurmd"
        slurmd.write_text(SLURMD)
        slurmd.chmod(0o755)
        self.file = self.root / "slurm-gpu.yaml"
        self.file.write_text(f"cluster: lab\ndatabase_socket: {self.socket}\ndatabase: http://127.0.0.1:9\n")
        self.log = self.root / "log"

    def hook(self, tree: Path, kind: str, job_id: int) -> None:
        """The commands that slurmd runs."""
        given = {"SLURM_JOB_ID": str(job_id), "SLURM_JOB_GPUS": "0", "SLURM_JOB_UID": "1001"}
        given |= {"SLURMD_NODENAME": "n1", "SLURM_CLUSTER_NAME": "lab", "SLURM_GPU_RUN_DIR": str(self.root)}
        subprocess.run(["/bin/sh", tree / kind / "10-slurm-gpu"], env=given, check=True)
        # No job ends in the very tick of the uptime (10 ms) in which it began.
        now = uptime()
        self.wait_for(lambda: uptime() != now)

    def node(self, tree: Path) -> bool:
        """Let slurm-gpud read hook files, ship and stop; return whether it could ship."""
        arguments = ["--once", "--node=n1", f"--config={self.file}"]
        arguments += [f"--run-dir={self.root}", f"--state-dir={self.root / 'state'}"]
        said = self.log.stat().st_size if self.log.exists() else 0
        assert self._start(tree, "slurm_gpu.node.main", *arguments).wait() in (0, 3)
        return b"cannot be shipped" not in self.log.read_bytes()[said:]

    @contextlib.contextmanager
    def database(self, tree: Path, name: str) -> Iterator[str]:
        """slurm-gpudbd on a SQLite file; its URL."""
        url = f"sqlite:///{self.root / name}"
        settings = self.root / "slurm-gpudbd.yaml"
        settings.write_text(f"url: {url}\nlisten: 127.0.0.1:0\n")
        process = self._start(
            tree,
            "slurm_gpu.database.main",
            *(f"--config={self.file}", f"--database-config={settings}", "--foreground"),
        )
        try:
            self.wait_for(lambda: process.poll() is not None or self._answers())
            yield url
        finally:
            process.terminate()
            process.wait()

    def received(self) -> dict[str, str | None]:
        """Return nodes and their releases according to slurm-gpudbd."""
        with self._client() as client:
            return {report.node: report.version for report in client.nodes()}

    def release(self) -> str:
        """Return the release of slurm-gpudbd."""
        with self._client() as client:
            return client.health().version

    def wait_for(self, condition: Callable[[], bool]) -> None:
        until = time.monotonic() + _WITHIN_S
        while not condition():
            assert time.monotonic() < until, self.log.read_text()
            time.sleep(0.02)

    def _client(self) -> DatabaseClient:
        return DatabaseClient(SiteConfig(cluster="lab", database_socket=self.socket))

    def _answers(self) -> bool:
        return self.socket.exists() and "serves cluster lab" in self.log.read_text()

    def _start(self, tree: Path, module: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-P", "-m", module, *arguments]
        gpus = {
            "LD_LIBRARY_PATH": str(self.library),
            "SIMGPU_WORLD": str(self.root / "gpus.world"),
            "PATH": str(self.root),
        }
        with self.log.open("ab") as log:
            return subprocess.Popen(command, env=environment(tree, **gpus), cwd="/", stdout=log, stderr=log)


@pytest.fixture
def site(tmp_path: Path, short_path: Path, nvml_library: Path) -> Site:
    return Site(tmp_path, short_path / f"{os.urandom(4).hex()}.sock", nvml_library.parent)


def final_segments(url: str) -> dict[int, list[bool]]:
    """Return by job whether each segment is final, with final segments last."""
    database = Database(url)
    with database.reading() as connection:
        found: dict[int, list[bool]] = {}
        for job_id, final in connection.execute(select(run_device.c.job_id, run_device.c.final)):
            found.setdefault(job_id, []).append(final)
    database.dispose()
    return {job_id: sorted(of_job) for job_id, of_job in sorted(found.items())}


def test_old_nodes_that_spool_a_newer_database_and_then_newer_nodes_lose_nothing(
    site: Site, before: Path
) -> None:
    site.hook(before, "prolog", 1)
    site.hook(before, "prolog", 2)
    site.hook(before, "epilog", 1)
    assert not site.node(before)  # the database is down: data waits in the spool
    with site.database(REPOSITORY, "x.db") as url:
        assert site.node(before)
        assert site.received() == {"n1": BEFORE}
        assert final_segments(url) == {1: [True], 2: [False, False]}  # two runs of slurm-gpud watched it
        site.hook(REPOSITORY, "epilog", 2)
        assert site.node(REPOSITORY)
        assert site.received() == {"n1": slurm_gpu.__version__}
        assert final_segments(url) == {
            1: [True],
            2: [False, True],
        }  # it ended the run that the old one had begun


def test_newer_nodes_and_commands_work_with_a_database_that_is_yet_to_be_upgraded(
    site: Site, before: Path
) -> None:
    with site.database(before, "old.db") as url:
        assert site.release() == BEFORE
        for kind in ("prolog", "epilog"):
            site.hook(REPOSITORY, kind, 3)
        assert site.node(REPOSITORY)
        assert site.received() == {"n1": slurm_gpu.__version__}
        assert final_segments(url) == {3: [True]}
