"""The lab as one object: bring it up, take it down, and run commands and jobs in between."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from lab import (
    associations,
    cgroups,
    clocks,
    configuration,
    devices,
    hooks,
    host,
    mariadb,
    nvml,
    people,
    programs,
    services,
)
from lab.cgroups import CgroupVersion
from lab.daemons import Daemon
from lab.errors import LabError
from lab.layout import PORT_VARIABLE, Layout
from lab.options import JobSubmit, Node, Options
from lab.polling import wait_for
from lab.processes import kill_all, lab_processes
from lab.truth import GpuShare, of_job

_LOCK_DEADLINE_S = 120.0
# For this many seconds after its start, slurm-gpud ignores driver timestamps, since the wall clock may have
# been set shortly before. A job that starts earlier has a gap in its records.
_PLACED_S = 1.6
PORT_RANGES, PORT_RANGE_SIZE = 5, 1000
Report = Callable[[str], None]


class Lab:
    """A Slurm cluster on this host; creating the object changes nothing on the host."""

    def __init__(
        self,
        layout: Layout | None = None,
        options: Options | None = None,
        report: Report | None = None,
    ) -> None:
        """By default, use the layout of the environment and the options of the running lab."""
        self._any_port = layout is None and PORT_VARIABLE not in os.environ
        self.layout = layout if layout is not None else Layout.from_environment()
        if options is None:
            saved = self.layout.options_file
            options = Options.load(saved) if saved.exists() else Options()
        self.options = options
        self.nodes: dict[str, Node] = {node.name: node for node in options.node_table(self.layout)}
        self.daemons: dict[str, Daemon] = self._all_daemons()
        # Duration of each part of the last up() in seconds; some parts overlap.
        self.phases: dict[str, float] = {}
        self._report = report if report is not None else lambda line: None

    # Up

    def up(self) -> None:
        """Bring the lab up; if it is up already, start only the daemons that are not running.

        Raises LabError if something is missing, if a name or port is already in use, or if the lab is up with
        other options.
        """
        host.require_root()
        host.require_software(self.layout)
        with self._locked():
            if self.layout.finished_file.exists():
                self._require_same_options()
                self._start_all()
            else:
                if self.layout.root.exists():
                    self._report("removing a lab that did not start or stop completely")
                self._remove_all()
                if self._prepare() is CgroupVersion.V2:
                    self._start_all_fenced_or_not()
                else:
                    self._start_all()
                self._apply_policy()
                self.layout.finished_file.touch()

    def _prepare(self) -> CgroupVersion:
        """Write all files that the daemons need; return the cgroup version that Slurm will use."""
        nodes = tuple(self.nodes.values())
        host.require_network()
        self._settle_on_ports()
        host.require_free_cgroups(nodes)
        support = cgroups.probe()
        if support.version is CgroupVersion.NONE:
            self._say_unfenced(support.reason)
        with self._phase("files and users"):
            self.layout.root.mkdir(parents=True)
            people.create(self.layout.home)
            passwords = configuration.write(self.layout, self.options, nodes, support.version)
            devices.create(self.layout, nodes)
            devices.create_worlds(self.layout, nodes)
            if self.options.own_clocks:
                clocks.create(self.layout)
        with self._phase("mariadb-install-db"):
            mariadb.initialise(self.layout, passwords, services.tagged_environment(self.layout))
        return support.version

    def _settle_on_ports(self) -> None:
        """Use the next free range of ports if this one is not free; a requested range is never changed."""
        nodes = tuple(self.nodes.values())
        first = self.layout.port
        ranges = PORT_RANGES if self._any_port else 1
        for number in range(ranges):
            layout = replace(self.layout, port=first + number * PORT_RANGE_SIZE)
            try:
                host.require_free_ports(layout, nodes)
            except LabError as error:
                if number + 1 == ranges:
                    raise
                self._report(f"{str(error).partition(';')[0]}: trying the next range of ports")
            else:
                self.layout = layout
                self.daemons = self._all_daemons()
                return

    def _all_daemons(self) -> dict[str, Daemon]:
        return services.all_daemons(self.layout, self.options, tuple(self.nodes.values()))

    def _start_all_fenced_or_not(self) -> None:
        """Start with cgroup v2, which no probe can verify; if a test job fails, restart without it."""
        try:
            self._start_all()
            self.run_as("alice", ["srun", "--gpus=1", "--time=1", "--quiet", "true"], timeout_s=40)
        except (LabError, subprocess.TimeoutExpired) as error:
            self._say_unfenced(f"Slurm cannot use cgroup v2 here ({str(error).strip().splitlines()[-1]})")
            for name, daemon in self.daemons.items():
                if name == "slurmctld" or name.startswith("slurmd-"):
                    daemon.kill9()
            nodes = tuple(self.nodes.values())
            configuration.write_slurm(self.layout, self.options, nodes, CgroupVersion.NONE)
            configuration.forget_state(self.layout)
            self._start_all()

    def _say_unfenced(self, reason: str) -> None:
        self._report(f"jobs are not fenced from each other's devices: {reason}")

    def _start_all(self) -> None:
        """Start each daemon as soon as its dependencies are available, then wait for all of them."""
        is_new = not self.layout.finished_file.exists()
        with ThreadPoolExecutor() as pool:
            munged = pool.submit(self._start, "munged")
            watchers = pool.submit(self._start_watchers)
            self._start("mariadb")
            munged.result()
            if self.options.services:
                self.daemons["slurm-gpudbd"].start(wait=False)
                self.daemons["slurm-gpuweb"].start(wait=False)
            self._start("slurmdbd")
            with self._phase("accounts"):
                associations.ensure(self.layout.associations_file, services.environment(self.layout))
            for name in self.daemons:
                if name.startswith("slurmd-"):
                    self.daemons[name].start(wait=False)
            self._start("slurmctld")
            if self.options.with_controller:
                self.daemons["slurm-gpuctld"].start(wait=False)
            with self._phase("slurm-gpud"):
                watchers.result()
            with self._phase("all answer"):
                for daemon in self.daemons.values():
                    daemon.wait_ready()
                watched_s = time.monotonic()
                self.wait_until_idle_nodes()
                if is_new and self.options.services:
                    wait_for(
                        lambda: time.monotonic() > watched_s + _PLACED_S, 60, "slurm-gpud accepts timestamps"
                    )

    def _start_watchers(self) -> None:
        """Build the simulated NVML, then start the daemons that sample GPUs through it."""
        with self._phase("libnvidia-ml"):
            nvml.build(self.layout.lib)
        for name, daemon in self.daemons.items():
            if name.startswith("slurm-gpud-"):
                daemon.start(wait=False)

    def _apply_policy(self) -> None:
        if self.options.job_submit is JobSubmit.OURS:
            with self._phase("policy"):
                self.output(["slurm-gpu", "policy", "apply", str(self.layout.policy_file)])

    def _start(self, name: str) -> None:
        with self._phase(name):
            self.daemons[name].start()

    def wait_until_idle_nodes(self, deadline_s: float = 60.0) -> None:
        """Wait until every node has registered and accepts jobs."""
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
        """Remove every process, cgroup, user, device and file of the lab, if there is any."""
        host.require_root()
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

        def is_emptied() -> bool:
            kill_all(alive)
            return cgroups.remove(groups())

        wait_for(is_emptied, 30, "all cgroups are removed", lambda: "\n".join(map(str, groups())))
        people.remove()
        devices.remove(self.layout)
        if ours:
            # Remove the directory last: if this process is killed before, the next down() needs the
            # directory to recognise the lab's cgroups.
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

        With ``check``, a non-zero exit status raises LabError with the output of the command.
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
        """Run a command as in ``run_as``, and return its output."""
        return self.run_as(user, argv).stdout

    def submit(self, user: str, *arguments: str, script: str | None = None) -> int:
        """Submit a job with sbatch and return its ID; ``script`` is the text of a job script."""
        result = self.run_as(user, ["sbatch", "--parsable", *arguments], stdin=script)
        return int(result.stdout.strip().partition(";")[0])

    def cancel_all_jobs(self, deadline_s: float = 60.0) -> None:
        """Cancel every job and wait until none is left in the queue."""

        def none_left() -> bool:
            for one in people.PEOPLE:  # scancel uses only the last of several --user
                self.run_as("root", ["scancel", "--full", f"--user={one.name}"])
            return not self.output(["squeue", "-h"]).strip()

        wait_for(none_left, deadline_s, "all jobs end", lambda: self.output(["squeue"]), 0.2)

    def intervals(self, job_id: int) -> list[hooks.AllocatedInterval]:
        """Return the intervals in which raw job ``job_id`` had GPUs, recorded independently of slurm-gpu."""
        return hooks.intervals(self.layout, job_id)

    def truth(self, job_id: int) -> list[GpuShare]:
        """Return the true use of each GPU allocated to raw job ``job_id``, separately for each run."""
        return of_job(self.layout, tuple(self.nodes.values()), job_id)

    def step_clock(self, host: str, by_s: float) -> None:
        """Set the wall clock of a node, or of `clocks.DATABASE_HOST`, forward or back.

        Raise LabError if the lab was brought up without own clocks.
        """
        if not self.options.own_clocks:
            raise LabError(f"{host} has no clock of its own; bring the lab up with Options(own_clocks=True)")
        clocks.step(self.layout, host, by_s)

    def status(self) -> dict[str, bool]:
        """Return whether each daemon is running, by name; all False if there is no lab."""
        return {name: daemon.running for name, daemon in self.daemons.items()}

    # Conditions

    def _require_same_options(self) -> None:
        running = Options.load(self.layout.options_file)
        if running != self.options:
            raise LabError(f"the lab is up with other options ({running}); take it down first: lab/down")

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Allow only one up() or down() at a time; the lock leaves no file."""
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
