"""Test that tests/lab/apart isolates a command, and removes everything however the command ends."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.polling import wait_for
from lab.processes import process_ids, start_ticks

APART = Path(__file__).parent / "apart"
GROUPS = Path("/sys/fs/cgroup")
MAKE_ITSELF_AT_HOME = """
set -e
useradd -M apart
touch /etc/apart /run/apart
mknod /dev/apart c 1 3
setsid sleep 2000000001 &
if [ -e /sys/fs/cgroup/freezer ]; then
    mkdir /sys/fs/cgroup/freezer/apart
    echo $! >/sys/fs/cgroup/freezer/apart/cgroup.procs
    echo FROZEN >/sys/fs/cgroup/freezer/apart/freezer.state
fi
ps -eo args --no-headers
exit 7
"""


@pytest.fixture(autouse=True)
def _can_be_apart() -> None:
    tried = subprocess.run([APART, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"namespaces are not available here: {tried.stderr.strip()}")


@pytest.fixture
def stranger() -> Iterator[int]:
    """Start a process outside, which must be invisible to the isolated command."""
    with subprocess.Popen(["sleep", "2000000002"]) as process:
        yield process.pid
        process.kill()


def sleepers(seconds: str) -> list[int]:
    found = []
    for pid in process_ids():
        try:
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if arguments[:2] == [b"sleep", seconds.encode()] and start_ticks(pid) is not None:
            found.append(pid)
    return found


def test_commands_run_apart_leave_no_trace(stranger: int) -> None:
    with subprocess.Popen(
        [APART, "sh", "-c", MAKE_ITSELF_AT_HOME], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        seen, _ = process.communicate()
    assert process.returncode == 7, seen
    assert "sleep 2000000001" in seen
    assert "sleep 2000000002" not in seen
    assert start_ticks(stranger) is not None
    assert "apart" not in Path("/etc/passwd").read_text()
    assert [path for path in map(Path, ("/etc/apart", "/run/apart", "/dev/apart")) if path.exists()] == []
    assert sleepers("2000000001") == []
    assert [*GROUPS.glob("*/apart"), *GROUPS.glob(f"*/lab-apart.{process.pid}")] == []


def test_nothing_runs_on_when_it_is_killed() -> None:
    going_on = ["sh", "-c", "setsid sleep 2000000003 & exec sleep 2000000003"]
    with subprocess.Popen([APART, *going_on]) as process:
        wait_for(lambda: len(sleepers("2000000003")) == 2, 30, "it continues")
        process.kill()
    wait_for(lambda: not sleepers("2000000003"), 30, "it dies with the script")
    subprocess.run([APART, "true"], check=True)
    assert list(GROUPS.glob(f"*/lab-apart.{process.pid}")) == []
