"""Daemons work under the restrictions of their units, and can do no more."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_gpu.node.allocation.gres import parse_files

ROOT = Path(__file__).resolve().parents[2]
CONFINED = Path(__file__).with_name("confined.py")
NODE, DATABASE = "slurm-gpud", "slurm-gpudbd"

# A Python that other users may run, too.
_IN_USR = Path(f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}")
PYTHON = str(_IN_USR) if _IN_USR.exists() else sys.executable


def is_user(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


_MAY_MOUNT = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode == 0
pytest.importorskip("pyseccomp", exc_type=(ImportError, RuntimeError))  # RuntimeError without libseccomp
pytestmark = [
    pytest.mark.skipif(not _MAY_MOUNT, reason="only root may mount"),
    pytest.mark.skipif(
        shutil.which("systemd-analyze") is None, reason="systemd's own tools are not installed here"
    ),
]
needs_slurm_user = pytest.mark.skipif(not is_user("slurm"), reason="there is no user slurm here")


def confined(daemon: str, *command: str | Path, **environ: str) -> subprocess.CompletedProcess[str]:
    unit = ROOT / f"packaging/systemd/{daemon}.service"
    return subprocess.run(
        [sys.executable, CONFINED, unit, *command],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{sysconfig.get_path('purelib')}", **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def tried(daemon: str, code: str, *arguments: str) -> str:
    done = confined(daemon, PYTHON, "-c", code, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def open_path() -> Iterator[Path]:
    """Return a directory that other users may enter."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def process() -> Iterator[int]:
    """Start a program in a home directory that other users cannot enter, and return its process ID."""
    home = Path("/home") / f"confined-{os.getpid()}"
    home.mkdir()
    nobody = pwd.getpwnam("nobody")
    program = home / "train"
    shutil.copy("/bin/sleep", program)
    (home / "notes").write_text("import torch\n")
    for path in (home, *home.iterdir()):
        os.chown(path, nobody.pw_uid, nobody.pw_gid)
        path.chmod(0o700)
    with subprocess.Popen(
        [program, "60"], cwd=home, user=nobody.pw_uid, group=nobody.pw_gid, extra_groups=[]
    ) as started:
        while Path(f"/proc/{started.pid}/comm").read_text() != "train\n":
            time.sleep(0.01)
        yield started.pid
        started.kill()
    shutil.rmtree(home)


def test_slurm_gpud_sees_all_of_other_users_processes(process: int) -> None:
    code = """
import os, sys
at = f"/proc/{sys.argv[1]}"
print(os.readlink(f"{at}/exe").rpartition("/")[2], len(os.listdir(f"{at}/fd")) > 0)
for name in ("environ", "io", "maps", "cgroup", "stat"):
    assert open(f"{at}/{name}", "rb").read(), name
print(open(f"{at}/cwd/notes").read())
"""
    assert tried(NODE, code, str(process)) == "train True\nimport torch\n\n"


def test_slurm_gpud_moves_what_hooks_wrote_and_writes_nowhere_else() -> None:
    code = """
import os
open("/run/slurm-gpu/jobs/a", "w").close()
os.rename("/run/slurm-gpu/jobs/a", "/run/slurm-gpu/rejected/a")
open("/var/lib/slurm-gpu/spool/log", "w").close()
for place in ("/etc/x", "/usr/x", "/var/lib/x", "/run/x", "/proc/sys/kernel/hostname", "/sys/fs/cgroup/x"):
    try:
        open(place, "w").close()
    except OSError as error:
        print(error.errno)
"""
    assert tried(NODE, code) == "30\n" * 6  # EROFS


@needs_slurm_user
def test_slurm_gpudbd_may_reckon_with_numpy() -> None:
    code = "import numpy; a = numpy.eye(300); print((a @ a).sum())"
    assert tried(DATABASE, code) == "300.0\n"


@pytest.mark.skipif(shutil.which("slurmd") is None, reason="slurmd is not installed here")
def test_slurm_gpud_may_run_slurmd_for_the_order_of_gpus(tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text(
        "ClusterName=c\nSlurmctldHost=localhost\nGresTypes=gpu\nSlurmUser=root\n"
        f"SlurmdSpoolDir={tmp_path}\nStateSaveLocation={tmp_path}\nMpiDefault=none\n"
        "ProctrackType=proctrack/linuxproc\nNodeName=n1 NodeHostname=localhost CPUs=1 Gres=gpu:1\n"
    )
    (tmp_path / "gres.conf").write_text("Name=gpu File=/dev/null\n")
    # Slurm detects the cgroup version from systemd's own cgroups, which a container may lack.
    version = 2 if Path("/sys/fs/cgroup/cgroup.controllers").exists() else 1
    (tmp_path / "cgroup.conf").write_text(f"CgroupPlugin=cgroup/v{version}\n")
    code = """
from slurm_gpu.node.allocation.slurmd import run_slurmd
print(run_slurmd(("slurmd", "-G", "-N", "n1")))
"""
    done = confined(NODE, PYTHON, "-c", code, SLURM_CONF=str(tmp_path / "slurm.conf"))
    assert done.returncode == 0, done.stderr
    assert parse_files(done.stdout) == [("/dev/null",)]


@pytest.mark.parametrize("daemon", [NODE, pytest.param(DATABASE, marks=needs_slurm_user)])
def test_nothing_that_they_do_not_need_is_to_be_had(daemon: str) -> None:
    code = """
import ctypes, mmap, os, socket
def refused(what, *arguments, **more):
    try:
        what(*arguments, **more)
    except OSError as error:
        print(error.errno)
refused(socket.socket, socket.AF_PACKET, socket.SOCK_RAW)
refused(mmap.mmap, -1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
refused(os.chroot, "/tmp")
refused(os.setuid, 65534)
libc = ctypes.CDLL(None, use_errno=True)
print(libc.unshare(0x10000000), libc.mount(b"x", b"/tmp", b"tmpfs", 0, None))
"""
    assert tried(daemon, code) == "1\n" * 4 + "-1 -1\n"


@needs_slurm_user
@pytest.mark.lab
@pytest.mark.long
def test_slurm_gpudbd_creates_its_tables_and_runs_sacct(open_path: Path) -> None:
    """Slurm is not on the PATH; the error shows that the daemon tried to run a command."""
    site, database = open_path / "slurm-gpu.yaml", open_path / "slurm-gpudbd.yaml"
    site.write_text("cluster: c\n")
    database.write_text("url: sqlite:////var/lib/slurm-gpu/slurm-gpu.db\n")
    database.chmod(0o600)
    shutil.chown(database, "slurm")
    command = [
        PYTHON,
        "-m",
        "slurm_gpu.database.main",
        f"--config={site}",
        f"--database-config={database}",
    ]
    done = confined(DATABASE, "/usr/bin/env", "-u", "SLURM_CONF", "PATH=/nowhere", *command, "--once")
    assert done.returncode == 3
    assert "is not on the PATH" in done.stderr
