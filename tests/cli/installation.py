"""Simulate a host for `slurm-gpu doctor` in a directory."""

import dataclasses
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from slurm_gpu.cli.doctor.checks.finding import CheckResult, DoctorContext, Level, RunningProgram
from slurm_gpu.cli.site import CommandSite
from slurm_gpu.slurm.client import SlurmSettings
from slurm_gpu.slurm.commands import CommandClient
from tests.cli.conftest import Database
from tests.slurm.recorded import DATA, NOW_S, RecordedSlurm

ROOT = Path(__file__).resolve().parents[2]


class Slurm(CommandClient):
    """The recorded Slurm with changes in slurm.conf."""

    def __init__(self, changes: Mapping[str, str]) -> None:
        super().__init__(RecordedSlurm(), {})
        self.changes = changes

    def settings(self) -> SlurmSettings:
        settings = super().settings()
        raw = {**settings.raw, "SlurmctldHost[0]": "head(localhost)", **self.changes}
        return dataclasses.replace(settings, raw=raw, conf_path=raw["SLURM_CONF"])


class Installation:
    """A host in a directory: site file, hooks, directories of slurm-gpud, and a slurm.conf to change."""

    def __init__(self, root: Path) -> None:
        self.root, self.conf = root, {"SLURM_CONF": str(root / "slurm" / "slurm.conf")}
        self.database = Database()
        self.outputs = {"scontrol --version": "slurm 22.05.8\n", "squeue": "", "slurmd -G": ""}
        self.outputs["scontrol --all --oneliner show partition"] = (DATA / "partitions.txt").read_text()
        """Outputs of commands, by the beginning of the command line."""
        for directory in ("slurm", "prolog.d", "epilog.d", "run/jobs", "state/spool", "proc"):
            (root / directory).mkdir(parents=True, mode=0o700)
        (root / "proc" / "stat").write_text(f"btime {time.time() - 1000}\n")
        (root / "proc" / "driver" / "nvidia").mkdir(parents=True)
        (root / "proc" / "driver" / "nvidia" / "version").touch()
        self.process(1, "/sbin/init")
        self.program = RunningProgram((), (), None)
        self.has_units = True
        """Whether systemd runs and has the units of all daemons, as after an installation from packages."""
        (root / "slurm").chmod(0o755)
        self.site_file = root / "slurm-gpu.yaml"
        self.site_file.write_text("cluster: neuron\n")
        for kind in ("Prolog", "Epilog"):
            hook = root / f"{kind.lower()}.d" / "10-slurm-gpu"
            hook.write_text((ROOT / kind.lower() / "10-slurm-gpu").read_text())
            hook.chmod(0o755)
            self.conf[kind] = f"{hook.parent}/*"

    def process(self, pid: int, *words: str, state: str = "S", age_s: float = 900.0) -> Path:
        """Add a process to /proc of the host, which has been up for 1000 s."""
        directory = self.root / "proc" / str(pid)
        directory.mkdir(exist_ok=True)
        (directory / "cmdline").write_text("\0".join(words) + "\0")
        ticks = int((1000 - age_s) * os.sysconf("SC_CLK_TCK"))
        (directory / "stat").write_text(f"{pid} (python3 (x) S) {state} {'0 ' * 18}{ticks} {'0 ' * 30}\n")
        return directory

    def at(self, host: str = "head") -> DoctorContext:
        site = CommandSite(
            self.site_file,
            lambda: Slurm(self.conf),
            lambda _: self.database,
            lambda: NOW_S,
            run=lambda argv, environ, timeout_s: self._output(argv),
        )
        return DoctorContext(
            site,
            run_dir=self.root / "run",
            state_dir=self.root / "state",
            policy_state=self.root / "policy",
            host=host,
            proc=self.root / "proc",
            systemd=self.root / "systemd",
            slurmd=self._output,
            conf_cache=self.root / "cached" / "slurm.conf",
            slurm_etc=self.root / "etc",
            devices=self.root / "dev",
            has_unit=lambda _: self.has_units,
            has_packages=lambda: self.has_units,
            program=lambda: self.program,
        )

    def _output(self, argv: Sequence[str]) -> str:
        command = " ".join(argv)
        return next(text for start, text in self.outputs.items() if command.startswith(start))


def levels(findings: Iterator[CheckResult]) -> list[str]:
    return [finding.level.value for finding in findings]


def worst(findings: Iterator[CheckResult]) -> CheckResult:
    found = list(findings)
    order = [Level.FAIL, Level.WARN, Level.OK, Level.SKIPPED]
    least = min(found, key=lambda finding: order.index(finding.level))
    assert (least.remedy is None) == (least.level in (Level.OK, Level.SKIPPED))
    return least
