"""The database's password is the only secret and only in its own file, and no log contains credentials."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_gpu.database.storage.engine import Database
from slurm_gpu.errors import DatabaseError, UsageError
from tests.database.conftest import munge_socket, server, short_path
from tests.database.running_server import Running

__all__ = ["munge_socket", "server", "short_path"]

_PASSWORD = "hush-9f2b1c"
_WITHIN_S = 60.0


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Write the configuration of slurm-gpudbd with a missing MariaDB, and return its directory."""
    (tmp_path / "slurm-gpu.yaml").write_text(f"cluster: lab\ndatabase_socket: {tmp_path / 's'}\n")
    settings = tmp_path / "slurm-gpudbd.yaml"
    settings.touch(mode=0o600)
    where = f"localhost/slurm_gpu?unix_socket={tmp_path / 'no.sock'}"
    settings.write_text(f"url: mysql+pymysql://slurm_gpu:{_PASSWORD}@{where}\nlisten: 127.0.0.1:0\n")
    return tmp_path


@pytest.fixture
def waiting(files: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a slurm-gpudbd that has read its password but cannot connect to its database."""
    options = [f"--config={files / 'slurm-gpu.yaml'}", f"--database-config={files / 'slurm-gpudbd.yaml'}"]
    with (files / "log").open("wb") as log:
        daemon = subprocess.Popen(
            [sys.executable, "-m", "slurm_gpu.database.main", *options, "--foreground"],
            stdout=log,
            stderr=log,
        )
    until = time.monotonic() + _WITHIN_S
    while "trying again" not in (files / "log").read_text():
        assert time.monotonic() < until, (files / "log").read_text()
        assert daemon.poll() is None, (files / "log").read_text()
        time.sleep(0.05)
    yield daemon
    daemon.send_signal(signal.SIGKILL)
    daemon.wait()


def test_the_password_is_nowhere_but_in_its_file(waiting: subprocess.Popen[bytes], files: Path) -> None:
    of_process = Path(f"/proc/{waiting.pid}")
    for name in ("cmdline", "environ", "comm"):
        assert _PASSWORD.encode() not in (of_process / name).read_bytes()
    holding = [file.name for file in files.iterdir() if file.is_file() and _PASSWORD in file.read_text()]
    assert holding == ["slurm-gpudbd.yaml"]


@pytest.mark.parametrize(
    "url",
    [
        f"mysql+pymysql://slurm_gpu:{_PASSWORD}@127.0.0.1:1/x",
        f"mysql+pymysql://slurm_gpu@127.0.0.1:1/x?password={_PASSWORD}",
        f"postgresql://slurm_gpu:{_PASSWORD}@localhost/x",
        f"mysql+pymysql://slurm_gpu:{_PASSWORD}@localhost:port/x",
        f"mysql+pymysql://slurm_gpu:{_PASSWORD}/and-more@localhost/x",
        f"mysql+pymysql://slurm_gpu:more@{_PASSWORD}@localhost/x",
        f"mysql+pymysql://slurm_gpu:more#{_PASSWORD}@localhost/x",
        f"{_PASSWORD}",
    ],
)
def test_a_refusing_database_is_reported_without_the_password(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises((DatabaseError, UsageError)) as raised:
        Database(url).upgrade()
    said = [str(raised.value), repr(raised.value), *(record.getMessage() for record in caplog.records)]
    assert not any(_PASSWORD in line for line in said)


@pytest.mark.skipif(os.getuid() != 0, reason="a private munged needs root")
def test_a_credential_is_in_no_log(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    good = server.signed("GET", "/v1/runs")
    for headers in (good, good, {"Authorization": good["Authorization"][:-9] + "AAAAAAA:"}):
        _, answer = server.raw("GET", "/v1/runs", b"", headers)
        assert good["Authorization"].split()[1][:60] not in str(answer)
    assert not any(good["Authorization"].split()[1][:60] in record.getMessage() for record in caplog.records)
