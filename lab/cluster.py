"""The lab as one object: up, down, and what tests and the demo do with it in between."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lab import (
    associations,
    cgroups,
    configuration,
    devices,
    hooks,
    mariadb,
    nvml,
    people,
    programs,
    services,
    slurm_config,
)
from lab.daemons import Daemon
from lab.errors import LabError
from lab.layout import PORT_VARIABLE, Layout
from lab.options import JobSubmit, Node, Options
from lab.polling import wait_for
from lab.processes import kill_all, lab_processes
from lab.truth import GpuShare, of_job

_LOCK_DEADLINE_S = 60.0
_COMMANDS = (
    *("munged", "mariadb-install-db", "slurmdbd", "slurmctld", "slurmd", "sacctmgr", "sbatch", "useradd"),
    *("make", "cc"),
)
Report = Callable[[str], None]


class Lab:
    """A Slurm cluster on this host. Constructing it touches nothing."""

    def __init__(
        self,
        layout: Layout | None = None,
        options: Options | None = None,
        report: Report | None = None,
    ) -> None:
        """Take the layout from the environment and the options of the running lab, if not given."""
        self.layout = layout if layout is not None else Layout.from_environment()
        if options is None:
            saved = self.layout.options_file
            options = Options.load(saved) if saved.exists() else Options()
        self.options = options
        self.nodes: dict[str, Node] = {node.name: node for node in options.node_table(self.layout)}
        self.daemons: dict[str, Daemon] = services.all_daemons(
            self.layout, options, tuple(self.nodes.values())
        )
        self.phases: dict[str, float] = {}
        """Seconds that each part of the last up() took; some run side by side."""
        self._report = report if report is not None else lambda line: None

    # Up

    def up(self) -> None:
        """Bring the lab up; start only what does not run if it is up already.

        LabError if something is missing, if a name or port belongs to somebody else, or if the lab is up
        with other options.
        """
        self._require_host()
        with self._locked():
            if self.layout.finished_file.exists():
                self._require_same_options()
            else:
                if self.layout.root.exists():
                    self._report("clearing away a lab that did not come up, or did not go down")
                self._remove_all()
                self._prepare()
            self._start_all()
            if not self.layout.finished_file.exists():
                self._apply_policy()
                self.layout.finished_file.touch()

    def _prepare(self) -> None:
        self._require_network()
        self._require_free_ports()
        self._require_free_cgroups()
        support = cgroups.probe()
        if support.version is cgroups.CgroupVersion.NONE:
            self._report(f"jobs are not fenced from each other's devices: {support.reason}")
        nodes = tuple(self.nodes.values())
        with self._phase("files and users"):
            self.layout.root.mkdir(parents=True)
            passwords = configuration.write(self.layout, self.options, nodes, support.version)
            people.create(self.layout.home)
            devices.create(self.layout, nodes)
            devices.create_worlds(self.layout, nodes)
        with self._phase("mariadb-install-db"):
            mariadb.initialise(self.layout, passwords, services.tagged_environment(self.layout))

    def _start_all(self) -> None:
        """Start everything as early as what it needs is there; wait for all of it at the end."""
        with ThreadPoolExecutor() as pool:
            munged = pool.submit(self._start, "munged")
            watchers = pool.submit(self._start_watchers)
            self._start("mariadb")
            munged.result()
            if self.options.services:
                self.daemons["slurm-gpudbd"].start(wait=False)
            self._start("slurmdbd")
            with self._phase("accounts"):
                associations.ensure(self.layout.associations_file, services.environment(self.layout))
            for name in self.daemons:
                if name.startswith("slurmd-"):
                    self.daemons[name].start(wait=False)
            self._start("slurmctld")
            with self._phase("slurm-gpud"):
                watchers.result()
            with self._phase("all answer"):
                for daemon in self.daemons.values():
                    daemon.wait_ready()
                self.wait_until_idle_nodes()

    def _start_watchers(self) -> None:
        """Build the simulated NVML, then start what watches the GPUs through it."""
        with self._phase("libnvidia-ml"):
            nvml.build(self.layout.lib)
        for name, daemon in self.daemons.items():
            if name.startswith("slurm-gpud-"):
                daemon.start(wait=False)

    def _apply_policy(self) -> None:
        if self.options.job_submit is JobSubmit.OURS:
            with self._phase("policy"):
                self.output(["slurm-gpu", "policy", "apply", "--replace", str(self.layout.policy_file)])

    def _start(self, name: str) -> None:
        with self._phase(name):
            self.daemons[name].start()

    def wait_until_idle_nodes(self, deadline_s: float = 30.0) -> None:
        """Wait until every node has registered and can take jobs."""
        wanted = set(self.nodes)

        def registered() -> bool:
            states = dict(
                line.split() for line in self.output(["sinfo", "-h", "-N", "-o", "%N %T"]).splitlines()
            )
            return {
                name for name, state in states.items() if state in {"idle", "mixed", "allocated"}
            } == wanted

        wait_for(
            registered, deadline_s, "all nodes register", lambda: self.output(["sinfo", "-N", "-l"]), 0.1
        )

    # Down

    def down(self) -> None:
        """Remove every process, cgroup, user, device and file of the lab; fine if there is none."""
        self._require_root()
        with self._locked():
            self._remove_all()

    def _remove_all(self) -> None:
        known = set(self.nodes)
        known |= {path.name for path in (self.layout.root / "nodes").glob("*")}
        ours = self.layout.root.exists()

        def groups() -> list[Path]:
            return cgroups.node_groups(sorted(known)) if ours else []

        def alive() -> set[int]:
            cgroups.thaw(groups())
            return lab_processes(self.layout, people.lab_uids(), cgroups.processes(groups()))

        kill_all(alive)
        cgroups.remove(groups())
        people.remove()
        devices.remove(self.layout)
        if ours:
            # The file that says whose the cgroups are goes last, so that a crash here can be mended.
            self.layout.finished_file.unlink(missing_ok=True)
            programs.unmount(self.layout)
            shutil.rmtree(self.layout.root)

    # Use

    def environment_of(self, user: str) -> dict[str, str]:
        """Return the environment in which ``run_as`` runs commands of ``user``."""
        home = Path("/root") if user == "root" else self.layout.home / user
        return services.tagged_environment(self.layout) | {
            "HOME": str(home),
            "USER": user,
            "LOGNAME": user,
            "SHELL": "/bin/sh",
        }

    def run_as(
        self,
        user: str,
        argv: Sequence[str],
        *,
        stdin: str | None = None,
        check: bool = True,
        timeout_s: float = 60.0,
        extra: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as a user of the lab (or root) in the user's home directory.

        With ``check``, a non-zero exit is a LabError that holds what the command printed.
        """
        environment = self.environment_of(user) | dict(extra or {})
        identity = people.identity(user)
        result = subprocess.run(
            argv,
            input=stdin,
            stdin=None if stdin is not None else subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env=environment,
            cwd=environment["HOME"],
            check=False,
            user=identity.uid,
            group=identity.gid,
            extra_groups=identity.groups,
        )
        if check and result.returncode != 0:
            raise LabError(
                f"{user}: {' '.join(argv)}: exit {result.returncode}\n{result.stdout}{result.stderr}"
            )
        return result

    def output(self, argv: Sequence[str], user: str = "root") -> str:
        """Return what a command prints."""
        return self.run_as(user, argv).stdout

    def submit(self, user: str, *arguments: str, script: str | None = None) -> int:
        """Submit a job with sbatch and return its id; with ``script``, the text of a job script."""
        result = self.run_as(user, ["sbatch", "--parsable", *arguments], stdin=script)
        return int(result.stdout.strip().partition(";")[0])

    def cancel_all_jobs(self, deadline_s: float = 30.0) -> None:
        """Cancel every job and wait until none is left in the queue."""

        def none_left() -> bool:
            self.run_as("root", ["scancel", "--full", *(f"--user={one.name}" for one in people.PEOPLE)])
            return not self.output(["squeue", "-h"]).strip()

        wait_for(none_left, deadline_s, "all jobs end", lambda: self.output(["squeue"]), 0.2)

    def held(self, job_id: int) -> list[hooks.Held]:
        """Return when raw job ``job_id`` held its GPUs, stamped independently of slurm-gpu."""
        return hooks.held(self.layout, job_id)

    def truth(self, job_id: int) -> list[GpuShare]:
        """Return what raw job ``job_id`` really did to each GPU that it held, run by run."""
        return of_job(self.layout, tuple(self.nodes.values()), job_id)

    def status(self) -> dict[str, bool]:
        """Return the daemons and whether each runs; all False where there is no lab."""
        return {name: daemon.running for name, daemon in self.daemons.items()}

    # Conditions

    def _require_root(self) -> None:
        if os.geteuid() != 0:
            raise LabError("the lab makes users, devices and cgroups: run it as root, or with sudo")

    def _require_host(self) -> None:
        self._require_root()
        path = services.environment(self.layout)["PATH"]
        missing = [name for name in _COMMANDS if shutil.which(name, path=path) is None]
        if missing:
            raise LabError(f"not installed: {', '.join(missing)}; `make setup` installs what the lab needs")
        people.require_system_users(slurm_config.SLURM_USER, configuration.MUNGE_USER, mariadb.SYSTEM_USER)

    def _require_same_options(self) -> None:
        running = Options.load(self.layout.options_file)
        if running != self.options:
            raise LabError(f"the lab is up with other options ({running}); take it down first: lab/down")

    @staticmethod
    def _require_network() -> None:
        """Check what Slurm's daemons do to listen; they find no address where loopback is all there is."""
        try:
            socket.getaddrinfo(
                None,
                1,
                family=socket.AF_INET,
                type=socket.SOCK_STREAM,
                flags=socket.AI_PASSIVE | socket.AI_ADDRCONFIG,
            )
        except OSError as error:
            raise LabError(
                "this host has no IPv4 address but 127.0.0.1, and Slurm does not listen without another; "
                "any will do: ip addr add 127.0.1.1/32 dev lo"
            ) from error

    def _require_free_ports(self) -> None:
        ports = [
            self.layout.slurmctld_port,
            self.layout.slurmdbd_port,
            self.layout.mariadb_port,
            self.layout.database_port,
            *(self.layout.slurmd_port(node.number) for node in self.nodes.values()),
        ]
        for port in ports:
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind(("", port))
                except OSError as error:
                    raise LabError(
                        f"port {port}: {error.strerror}; choose another range with {PORT_VARIABLE}, "
                        f"such as {PORT_VARIABLE}={self.layout.port + 1000}"
                    ) from error

    def _require_free_cgroups(self) -> None:
        if taken := cgroups.node_groups(sorted(self.nodes)):
            raise LabError(
                f"cgroup {taken[0]} exists and is not the lab's: another slurmd has that node name"
            )

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Let one up or down at a time go on; the lock leaves no file behind."""
        directory = os.open(self.layout.root.parent, os.O_RDONLY)
        try:

            def taken() -> bool:
                try:
                    fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return False
                return True

            wait_for(taken, _LOCK_DEADLINE_S, "another lab/up or lab/down on this host ends")
            yield
        finally:
            os.close(directory)

    @contextlib.contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        start = time.monotonic()
        yield
        self.phases[name] = time.monotonic() - start
