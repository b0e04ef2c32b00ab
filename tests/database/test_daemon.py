"""Test the daemon as a separate process: kill it, stop it, and kill its database while it runs."""

import contextlib
import fcntl
import http.client
import json
import multiprocessing
import os
import random
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from sqlalchemy import select

from slurm_gpu.database.main import main
from slurm_gpu.database.storage.engine import Database
from slurm_gpu.database.storage.schema import run_device
from slurm_gpu.errors import DatabaseError
from slurm_gpu.wire import Record
from tests.database.samples import record, segment
from tests.database.servers import MariaDB

_WITHIN_S = 20.0
_STARTED = multiprocessing.get_context("forkserver")
"""Fork processes from one that has imported the daemon; the import takes longer than most tests."""
_STARTED.set_forkserver_preload(["slurm_gpu.database.main", "pymysql"])
pytestmark = pytest.mark.skipif(
    os.getuid() != 0, reason="only root may ship without a Slurm to name SlurmUser"
)


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=_WITHIN_S)
        self.path = str(path)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(_WITHIN_S)
        self.sock.connect(self.path)


class Daemon:
    """A slurm-gpudbd in `root` with a Unix socket and without Slurm in its PATH."""

    def __init__(self, root: Path, url: str) -> None:
        self.root, self.socket, self.url = root, root / "db.sock", url
        (root / "slurm-gpu.yaml").write_text(
            f"cluster: lab\ndatabase_socket: {self.socket}\nimport_interval: 1s\n"
        )
        self.settings = root / "slurm-gpudbd.yaml"
        self.settings.write_text(f"url: {url}\nlisten: 127.0.0.1:0\n")
        self.settings.chmod(0o600)
        self.process: multiprocessing.process.BaseProcess | None = None
        self.environ = {**os.environ, "PATH": str(root)}

    def options(self, *more: str) -> list[str]:
        config = [f"--config={self.root / 'slurm-gpu.yaml'}", f"--database-config={self.settings}"]
        return [*config, "--foreground", *more]

    def command(self, *more: str) -> list[str]:
        return [sys.executable, "-m", "slurm_gpu.database.main", *self.options(*more)]

    def launch(self) -> multiprocessing.process.BaseProcess:
        (self.root / "log").touch()
        self.process = _STARTED.Process(target=be, args=(self.options(), self.environ, self.root / "log"))
        self.process.start()
        return self.process

    def start(self) -> None:
        self.launch()
        wait_for(lambda: self.ship(record(segment=segment(0xFFFF))) == 200, self.log)

    def stop(self, number: int) -> int | None:
        """Send a signal and wait; return the exit code, or None if the daemon still runs."""
        assert self.process is not None
        assert self.process.pid is not None
        os.kill(self.process.pid, number)
        self.process.join(_WITHIN_S)
        return self.process.exitcode

    def ship(self, *records: Record) -> int:
        """Return the HTTP status, 0 without an answer."""
        body = {"wire": 1, "node": "n1", "records": [item.to_wire() for item in records]}
        connection = UnixConnection(self.socket)
        try:
            connection.request("POST", "/v1/node", json.dumps(body))
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return 0
        finally:
            connection.close()

    def log(self) -> str:
        return (self.root / "log").read_text()


def be(options: Sequence[str], environ: Mapping[str, str], log: Path) -> None:
    """The daemon in a separate process."""
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ.clear()
    os.environ.update(environ)
    sys.exit(main(options))


def wait_for(condition: Callable[[], bool], explain: Callable[[], str]) -> None:
    until = time.monotonic() + _WITHIN_S
    while not condition():
        assert time.monotonic() < until, explain()
        time.sleep(0.05)


def sequence_numbers(url: str) -> dict[str, int]:
    database = Database(url)
    with database.reading() as connection:
        rows = connection.execute(select(run_device.c.segment, run_device.c.seq))
        found = {name: int(seq) for name, seq in rows}
    database.dispose()
    return found


@contextlib.contextmanager
def running(root: Path, url: str) -> Iterator[Daemon]:
    daemon = Daemon(root, url)
    try:
        daemon.start()
        yield daemon
    finally:
        if daemon.process is not None and daemon.process.is_alive():
            daemon.stop(signal.SIGKILL)


@contextlib.contextmanager
def shipping(daemon: Daemon) -> Iterator[None]:
    """A shipment that is not answered yet."""
    records = [record(segment=segment(n)).to_wire() for n in range(40)]
    connection = UnixConnection(daemon.socket)
    connection.request("POST", "/v1/node", json.dumps({"wire": 1, "node": "n1", "records": records}))
    wait_for(lambda: not unread(connection), daemon.log)
    yield
    connection.close()


def unread(connection: UnixConnection) -> int:
    """Return the number of sent bytes that the peer has not read."""
    assert connection.sock is not None
    left = bytearray(4)
    fcntl.ioctl(connection.sock, termios.TIOCOUTQ, left)
    return int.from_bytes(left, sys.byteorder)


@pytest.fixture(scope="module")
def own_mariadb(short_path: Path) -> Iterator[MariaDB]:
    """Return a MariaDB that only these tests may kill and must restart."""
    if not MariaDB.installed():
        pytest.skip("mariadbd is not installed")
    server = MariaDB(Path(tempfile.mkdtemp(dir=short_path)))
    server.install()
    server.start()
    yield server
    server.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_is_clean_and_prompt(tmp_path: Path, number: int) -> None:
    with running(tmp_path, f"sqlite:///{tmp_path / 'x.db'}") as daemon:
        began = time.monotonic()
        assert daemon.stop(number) == 0
        assert time.monotonic() - began < 5
        assert daemon.log().rstrip().endswith("stopped")


def test_systemd_receives_ready_watchdog_and_stopping(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(_WITHIN_S)
        daemon = Daemon(tmp_path, f"sqlite:///{tmp_path / 'x.db'}")
        daemon.environ |= {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"}
        daemon.launch()
        received = [systemd.recv(200).decode()]
        while received.count("WATCHDOG=1") < 3:
            received.append(systemd.recv(200).decode())
        assert received[0].startswith("STATUS=updating the tables: SQLite ")
        assert received[0].endswith("\nEXTEND_TIMEOUT_USEC=600000000")
        assert received[1] == "READY=1"
        assert any(line.startswith("STATUS=answers; accounting is ") for line in received)
        assert daemon.stop(signal.SIGTERM) == 0
        while received[-1] != "STOPPING=1":
            received.append(systemd.recv(200).decode())


def test_kill_9_loses_nothing_acknowledged(tmp_path: Path, url: str) -> None:
    moments = random.Random(4)
    acknowledged: dict[str, int] = {}
    with running(tmp_path, url) as daemon:
        for round_ in range(2):
            kill_at = moments.randint(7, 40)
            for n in range(10_000):
                if n >= kill_at:
                    assert daemon.process is not None
                    daemon.process.kill()  # continue to ship to the dying daemon
                name, seq = segment(n % 7), round_ * 10_000 + n
                if daemon.ship(record(segment=name, seq=seq)) == 200:
                    acknowledged[name] = seq
                elif n >= kill_at:
                    break
            assert daemon.process is not None
            daemon.process.join()
            daemon.start()
    assert len(acknowledged) == 7
    stored = sequence_numbers(url)
    assert all(stored[name] >= seq for name, seq in acknowledged.items())


def test_a_killed_mariadb_costs_only_its_downtime(tmp_path: Path, own_mariadb: MariaDB) -> None:
    url = own_mariadb.fresh()
    with running(tmp_path, url) as daemon:
        acknowledged = [seq for seq in range(1, 30) if daemon.ship(record(seq=seq)) == 200]
        own_mariadb.kill()
        assert daemon.ship(record(seq=100)) == 503
        own_mariadb.start()
        wait_for(lambda: daemon.ship(record(seq=101, segment=segment(2))) == 200, daemon.log)
        stored = sequence_numbers(url)
    assert stored[segment(1)] == acknowledged[-1] == 29
    assert stored[segment(2)] == 101


def test_slurm_gpudbd_ends_though_the_database_hangs(tmp_path: Path, own_mariadb: MariaDB) -> None:
    with running(tmp_path, own_mariadb.fresh()) as daemon:
        os.kill(own_mariadb.pid, signal.SIGSTOP)
        try:
            with shipping(daemon):
                assert daemon.stop(signal.SIGTERM) == 0
        finally:
            os.kill(own_mariadb.pid, signal.SIGCONT)
        assert "work in progress did not end within 5 s and is dropped" in daemon.log()


def test_a_database_that_does_not_exist_ends_the_start(tmp_path: Path, own_mariadb: MariaDB) -> None:
    """Test that `systemctl start` fails immediately with the reason, not after its time limit."""
    daemon = Daemon(tmp_path, own_mariadb.url("none"))
    process = daemon.launch()
    try:
        process.join(_WITHIN_S)
        assert process.exitcode == DatabaseError.exit_code
        assert "Unknown database 'none'" in daemon.log()
    finally:
        process.kill()
        process.join()


def test_a_mariadb_that_starts_later_is_waited_for(tmp_path: Path, own_mariadb: MariaDB) -> None:
    url = own_mariadb.fresh()
    own_mariadb.kill()
    daemon = Daemon(tmp_path, url)
    process = daemon.launch()
    try:
        wait_for(lambda: "trying again every 2 s" in daemon.log(), daemon.log)
        own_mariadb.start()
        wait_for(lambda: daemon.ship(record()) == 200, daemon.log)
        assert daemon.log().count("trying again every 2 s") == 1
        assert daemon.stop(signal.SIGTERM) == 0
    finally:
        process.kill()
        process.join()


def test_its_files_are_private_and_its_socket_is_not(tmp_path: Path) -> None:
    path = tmp_path / "data" / "x.db"
    with running(tmp_path, f"sqlite:///{path}") as daemon:
        assert [stat.S_IMODE(file.stat().st_mode) & 0o077 for file in path.parent.iterdir()] == [0, 0, 0]
        assert stat.S_IMODE(daemon.socket.stat().st_mode) == 0o666


def test_once_without_slurm_fails(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, f"sqlite:///{tmp_path / 'x.db'}")
    done = subprocess.run(daemon.command("--once"), capture_output=True, text=True, env=daemon.environ)
    assert (done.returncode, "slurm-gpudbd: " in done.stderr) == (3, True), done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--listen", "nonsense"], 2, "'nonsense' must be HOST:PORT"),
        (["--config", "/nonexistent"], 2, "/nonexistent: cannot be read"),
        (["--nonsense"], 2, "unrecognized arguments"),
    ],
)
def test_exit_codes(
    tmp_path: Path, arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon = Daemon(tmp_path, f"sqlite:///{tmp_path / 'x.db'}")
    assert exit_code(daemon, *arguments) == code
    assert message in capsys.readouterr().err


def test_it_does_not_start_while_others_can_read_its_password(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon = Daemon(tmp_path, "mysql+pymysql://slurm_gpu:pw@localhost/slurm_gpu")
    daemon.settings.chmod(0o644)
    assert exit_code(daemon) == 2
    said = capsys.readouterr().err
    assert "chmod 0600" in said
    assert "pw@" not in said


def exit_code(daemon: Daemon, *arguments: str) -> int:
    """Test a failed import in this process, because a child process would take too long."""
    umask = os.umask(0o077)
    try:
        return main(daemon.options(*arguments))
    except SystemExit as ended:  # argparse's
        return int(ended.code or 0)
    finally:
        os.umask(umask)
