"""The lab's MariaDB: data directory, configuration and the accounts of the two daemons that use it."""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lab.errors import LabError
from lab.layout import Layout

SYSTEM_USER = "mysql"


@dataclass(frozen=True)
class Passwords:
    """Passwords of the two database users."""

    slurm: str
    slurm_gpu: str


def initialise(layout: Layout, passwords: Passwords, environment: Mapping[str, str]) -> None:
    """Create the data directory with the system tables, unless it exists."""
    account = pwd.getpwnam(SYSTEM_USER)
    layout.mariadb.mkdir(exist_ok=True)
    os.chown(layout.mariadb, account.pw_uid, account.pw_gid)
    _write_init_file(layout, passwords)
    data = layout.mariadb / "data"
    if data.exists():
        return
    # Run as mysql, since --user=mysql changes the mode of the host's auth_pam_tool.
    result = subprocess.run(
        [
            "mariadb-install-db",
            "--no-defaults",
            f"--datadir={data}",
            "--force",  # accept a host whose name has no address; the lab uses no host names
            "--skip-test-db",
            "--skip-name-resolve",
            "--auth-root-authentication-method=socket",
            "--auth-root-socket-user=root",
            "--innodb-log-file-size=8M",
        ],
        # In a shared directory, each server that starts removes the temporary tables of the others.
        env={**environment, "TMPDIR": str(layout.mariadb)},
        user=SYSTEM_USER,
        group=SYSTEM_USER,
        extra_groups=[],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
    )
    if result.returncode != 0:
        raise LabError(f"mariadb-install-db failed:\n{result.stdout}{result.stderr}")


def _write_init_file(layout: Layout, passwords: Passwords) -> None:
    """Write SQL that creates the lab's databases and users, for the server to run at each start."""
    statements = []
    for name, password in (("slurm", passwords.slurm), ("slurm_gpu", passwords.slurm_gpu)):
        statements.append(f"CREATE DATABASE IF NOT EXISTS {name};")
        for host in ("localhost", "127.0.0.1"):
            account = f"'{name}'@'{host}'"
            statements += [
                f"CREATE USER IF NOT EXISTS {account} IDENTIFIED BY '{password}';",
                f"GRANT ALL ON {name}.* TO {account};",
            ]
    path = layout.mariadb / "init.sql"
    owner = pwd.getpwnam(SYSTEM_USER)
    path.touch(mode=0o600)
    os.chown(path, owner.pw_uid, owner.pw_gid)
    path.write_text("\n".join(statements) + "\n")


def server_argv(layout: Layout) -> list[str]:
    """Return the command line of a small server that starts quickly and ignores the host's configuration."""
    return [
        _server(),
        "--no-defaults",
        f"--datadir={layout.mariadb / 'data'}",
        f"--socket={layout.mariadb_socket}",
        f"--port={layout.mariadb_port}",
        "--bind-address=127.0.0.1",
        f"--pid-file={layout.mariadb / 'mariadb.pid'}",
        f"--init-file={layout.mariadb / 'init.sql'}",
        "--skip-name-resolve",
        "--skip-log-bin",
        "--innodb-log-file-size=8M",
        "--innodb-buffer-pool-size=64M",
        "--innodb-lock-wait-timeout=900",
        # Commits survive kill -9 of the server; a crash of the host ends the lab anyway.
        "--innodb-flush-log-at-trx-commit=2",
        "--performance-schema=OFF",
        "--tmpdir=" + str(layout.mariadb),
    ]


def _server() -> str:
    for directory in ("/usr/sbin", "/usr/libexec", "/usr/bin"):
        for name in ("mariadbd", "mysqld"):
            if (path := Path(directory) / name).exists():
                return str(path)
    raise LabError("mariadbd is not installed: run make setup")
