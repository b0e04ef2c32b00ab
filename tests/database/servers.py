"""Real servers for tests: a private MariaDB and a private munged, each in its own directory."""

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import create_engine, text

_START_WITHIN_S = 20.0


class MariaDB:
    """A private server on a Unix socket only; `kill()` is kill -9, `start()` starts it again."""

    def __init__(self, root: Path, *options: str) -> None:
        self.root = root
        self.socket = root / "s"
        self._process: subprocess.Popen[bytes] | None = None
        self._options = [
            "--no-defaults",
            f"--datadir={root / 'data'}",
            f"--socket={self.socket}",
            f"--pid-file={root / 'pid'}",
            f"--tmpdir={root}",
            "--skip-networking",
            "--skip-grant-tables",
            "--innodb-buffer-pool-size=32M",
            "--innodb-log-file-size=8M",
            *options,
        ]
        if os.getuid() == 0:
            self._options.append("--user=root")

    @staticmethod
    def installed() -> bool:
        return shutil.which("mariadbd") is not None and shutil.which("mariadb-install-db") is not None

    def install(self) -> None:
        command = ["mariadb-install-db", "--no-defaults", f"--datadir={self.root / 'data'}"]
        command += ["--auth-root-authentication-method=normal", "--skip-test-db"]
        command += ["--innodb-log-file-size=8M"]
        if os.getuid() == 0:
            command.append("--user=root")
        # In a shared TMPDIR, each starting server would remove the temporary tables of the others.
        environment = os.environ | {"TMPDIR": str(self.root)}
        made = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        if made.returncode != 0:
            raise RuntimeError(f"mariadb-install-db failed: {made.stdout[-3000:]}")

    def start(self) -> None:
        with (self.root / "log").open("ab") as log:
            self._process = subprocess.Popen(["mariadbd", *self._options], stdout=log, stderr=log)
        until = time.monotonic() + _START_WITHIN_S
        while not self._accepts():
            if time.monotonic() > until or self._process.poll() is not None:
                raise RuntimeError((self.root / "log").read_text()[-3000:])
            time.sleep(0.05)

    def _accepts(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self.socket)) == 0

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def url(self, database: str) -> str:
        return f"mysql+pymysql://root@localhost/{database}?unix_socket={self.socket}"

    def fresh(self) -> str:
        """Return the URL of a new, empty database."""
        name = f"t{secrets.token_hex(6)}"
        engine = create_engine(self.url(""))
        with engine.begin() as connection:
            connection.execute(text(f"CREATE DATABASE {name}"))
        engine.dispose()
        return self.url(name)

    @contextlib.contextmanager
    def with_most_bytes(self, n: int) -> Iterator[None]:
        """Limit statements of new connections to `n` bytes, including the packet."""
        engine = create_engine(self.url(""), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            before = connection.execute(text("SELECT @@GLOBAL.max_allowed_packet")).scalar_one()
            connection.execute(text(f"SET GLOBAL max_allowed_packet = {n}"))
            try:
                yield
            finally:
                connection.execute(text(f"SET GLOBAL max_allowed_packet = {before}"))
        engine.dispose()

    def drop(self, url: str) -> None:
        engine = create_engine(self.url(""))
        with engine.begin() as connection:
            connection.execute(text(f"DROP DATABASE {url.partition('?')[0].rpartition('/')[2]}"))
        engine.dispose()


@contextlib.contextmanager
def running_mariadb(root: Path, *options: str) -> Iterator[MariaDB]:
    """Start a small MariaDB with additional `options` of mariadbd."""
    server = MariaDB(root, *options)
    server.install()
    server.start()
    try:
        yield server
    finally:
        server.kill()


@contextlib.contextmanager
def running_munged(root: Path, secret: bytes | None = None) -> Iterator[Path]:
    """Start a munged for all users, with a random key unless one is given; return its socket."""
    key = root / "key"
    key.write_bytes(secrets.token_bytes(128) if secret is None else secret)
    key.chmod(0o600)
    place = root / "socket"
    options = [f"--key-file={key}", f"--socket={place}", f"--pid-file={root / 'pid'}"]
    options += [f"--log-file={root / 'log'}", f"--seed-file={root / 'seed'}", "--num-threads=1"]
    process = subprocess.Popen(
        ["munged", "--foreground", "--force", *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        until = time.monotonic() + _START_WITHIN_S
        while not place.is_socket():
            if time.monotonic() > until or process.poll() is not None:
                raise RuntimeError((root / "log").read_text()[-3000:])
            time.sleep(0.02)
        yield place
    finally:
        process.terminate()
        process.wait()
