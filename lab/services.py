"""The daemons of the lab, by name: command line, environment, and check for readiness."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from lab import clocks, mariadb
from lab.configuration import MUNGE_USER
from lab.daemons import Daemon
from lab.layout import DIRECTORY_VARIABLE, TAG_VARIABLE, Layout
from lab.options import Node, Options
from lab.people import WEB_USER
from lab.slurm_config import SLURM_USER, slurmd_options

_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def environment(layout: Layout) -> dict[str, str]:
    """Return the environment of a shell that uses the lab, without the caller's variables."""
    return {
        "PATH": f"{layout.bin}:{_SYSTEM_PATH}",
        "LANG": "C.UTF-8",
        DIRECTORY_VARIABLE: str(layout.root),
        "SLURM_CONF": str(layout.slurm_conf),
        "SLURM_GPU_CONF": str(layout.site_file),
        "SLURM_GPU_RUN_DIR": str(layout.controller_run),
        "SLURM_GPU_DATABASE_CONFIG": str(layout.database_file),
        "SLURM_GPU_POLICY_STATE": str(layout.policy_state),
    }


def tagged_environment(layout: Layout) -> dict[str, str]:
    """Return the environment of all processes that the lab itself starts."""
    return environment(layout) | {TAG_VARIABLE: str(layout.root)}


def all_daemons(layout: Layout, options: Options, nodes: Sequence[Node]) -> dict[str, Daemon]:
    """Return the daemons in the order in which they start."""
    make = _Factory(layout, own_clocks=options.own_clocks)
    daemons = [
        make.munged(),
        make.mariadb(),
        make.slurmdbd(),
        make.slurmctld(),
        *(make.slurmd(node, slurmd_options(options, node, nodes)) for node in nodes),
    ]
    if options.services:
        daemons.append(make.slurm_gpudbd())
        daemons.append(make.slurm_gpuweb())
        daemons += [make.slurm_gpud(node) for node in nodes]
    if options.with_controller:
        daemons.append(make.slurm_gpuctld())
    return {daemon.name: daemon for daemon in daemons}


class _Factory:
    def __init__(self, layout: Layout, *, own_clocks: bool) -> None:
        self.layout, self.own_clocks = layout, own_clocks

    def _daemon(
        self,
        name: str,
        argv: Sequence[str],
        is_ready: Callable[[], bool],
        *,
        user: str | None = None,
        extra: Mapping[str, str] | None = None,
        log_file: bool = False,
    ) -> Daemon:
        logs = self.layout.log
        return Daemon(
            name=name,
            argv=argv,
            environment=tagged_environment(self.layout) | dict(extra or {}),
            log=logs / f"{name}.out",
            pid_file=self.layout.pids / name,
            is_ready=is_ready,
            user=user,
            other_logs=(logs / f"{name}.log",) if log_file else (),
        )

    def _clock(self, host: str) -> Mapping[str, str]:
        return clocks.environment(self.layout, host) if self.own_clocks else {}

    def munged(self) -> Daemon:
        directory = self.layout.munge
        argv = [
            "munged",
            "--foreground",
            f"--socket={self.layout.munge_socket}",
            f"--key-file={directory}/munge.key",
            f"--pid-file={directory}/munged.pid",
            f"--seed-file={directory}/munged.seed",
            "--num-threads=4",
        ]
        return self._daemon("munged", argv, lambda: accepts(self.layout.munge_socket), user=MUNGE_USER)

    def mariadb(self) -> Daemon:
        return self._daemon(
            "mariadb",
            mariadb.server_argv(self.layout),
            lambda: accepts(self.layout.mariadb_socket),
            user=mariadb.SYSTEM_USER,
        )

    def slurmdbd(self) -> Daemon:
        address = ("127.0.0.1", self.layout.slurmdbd_port)
        return self._daemon(
            "slurmdbd", ["slurmdbd", "-D"], lambda: accepts(address), user=SLURM_USER, log_file=True
        )

    def slurmctld(self) -> Daemon:
        def pings() -> bool:
            return (
                subprocess.run(
                    ["scontrol", "ping"],
                    env=environment(self.layout),
                    capture_output=True,
                    check=False,
                ).returncode
                == 0
            )

        address = ("127.0.0.1", self.layout.slurmctld_port)
        return self._daemon(
            "slurmctld",
            ["slurmctld", "-D", "-i"],  # 26.05 needs -i to start after kill -9 in its first minutes
            lambda: accepts(address) and pings(),
            user=SLURM_USER,
            log_file=True,
        )

    def slurmd(self, node: Node, options: Sequence[str]) -> Daemon:
        address = (node.address, self.layout.slurmd_port(node.number))
        return self._daemon(
            f"slurmd-{node.name}",
            ["slurmd", "-D", "-N", node.name, *options],
            lambda: accepts(address),
            log_file=True,
        )

    def slurm_gpudbd(self) -> Daemon:
        argv = [
            str(self.layout.bin / "slurm-gpudbd"),
            f"--config={self.layout.site_file}",
            f"--database-config={self.layout.database_file}",
            "--foreground",
        ]
        return self._daemon(
            "slurm-gpudbd",
            argv,
            lambda: accepts(self.layout.database_socket),
            user=SLURM_USER,
            extra=self._clock(clocks.DATABASE_HOST),
        )

    def slurm_gpuweb(self) -> Daemon:
        argv = [
            str(self.layout.bin / "slurm-gpuweb"),
            f"--config={self.layout.site_file}",
            f"--web-config={self.layout.web_file}",
            "--foreground",
        ]
        address = ("127.0.0.1", self.layout.web_port)
        return self._daemon("slurm-gpuweb", argv, lambda: accepts(address), user=WEB_USER)

    def slurm_gpud(self, node: Node) -> Daemon:
        paths = self.layout.node(node.name)
        argv = [
            str(self.layout.bin / "slurm-gpud"),
            f"--config={self.layout.site_file}",
            f"--node={node.name}",
            f"--run-dir={paths.run}",
            f"--state-dir={paths.state}",
            f"--source-address={node.address}",
            "--foreground",
        ]
        extra = {
            "LD_LIBRARY_PATH": str(self.layout.lib),
            "SIMGPU_WORLD": str(paths.world),
            "SLURM_GPU_MIG_MINORS": str(paths.mig_minors),
            **self._clock(node.name),
        }
        return self._daemon(
            f"slurm-gpud-{node.name}", argv, lambda: _watches(paths.state / "spool" / "log"), extra=extra
        )

    def slurm_gpuctld(self) -> Daemon:
        argv = [
            str(self.layout.bin / "slurm-gpuctld"),
            f"--config={self.layout.site_file}",
            f"--run-dir={self.layout.controller_run}",
            "--foreground",
        ]
        snapshot = self.layout.controller_run / "snapshot.txt"
        started = self.layout.pids / "slurm-gpuctld"

        def writes() -> bool:
            return snapshot.exists() and snapshot.stat().st_mtime > started.stat().st_mtime

        return self._daemon("slurm-gpuctld", argv, writes, user=SLURM_USER)


def _watches(spool_log: Path) -> bool:
    """Return whether slurm-gpud watches for hook events; from then on it misses none.

    The daemon writes its clock offset to the spool when it starts to watch.
    """
    return spool_log.exists() and b"ahead_s" in spool_log.read_bytes()


def accepts(address: Path | tuple[str, int]) -> bool:
    """Return whether a process listens on a Unix socket or a TCP address."""
    family = socket.AF_UNIX if isinstance(address, Path) else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as connection:
        connection.settimeout(1.0)
        target = str(address) if isinstance(address, Path) else address
        return connection.connect_ex(target) == 0
