"""List the options of sbatch, srun and salloc."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_SHORT = {
    "A": "account",
    "a": "array",
    "p": "partition",
    "q": "qos",
    "t": "time",
    "N": "nodes",
    "n": "ntasks",
    "G": "gpus",
    "w": "nodelist",
    "M": "clusters",
    "B": "extra-node-info",
    "b": "begin",
    "C": "constraint",
    "c": "cpus-per-task",
    "D": "chdir",
    "d": "dependency",
    "e": "error",
    "F": "nodefile",
    "i": "input",
    "J": "job-name",
    "L": "licenses",
    "m": "distribution",
    "o": "output",
    "S": "core-spec",
    "x": "exclude",
    "H": "hold",
    "h": "help",
    "I": "immediate",
    "k": "no-kill",
    "O": "overcommit",
    "Q": "quiet",
    "s": "oversubscribe",
    "V": "version",
    "v": "verbose",
    "W": "wait",
}
READ_OPTIONS = (
    "account",
    "array",
    "partition",
    "qos",
    "time",
    "nodes",
    "ntasks",
    "ntasks-per-node",
    "ntasks-per-gpu",
    "ntasks-per-socket",
    "sockets-per-node",
    "gpus",
    "gpus-per-node",
    "gpus-per-socket",
    "gpus-per-task",
    "gres",
    "tres-per-task",
    "nodelist",
    "wrap",
    "cpus-per-task",
    "cpus-per-gpu",
    "mincpus",
    "mem",
    "mem-per-cpu",
    "mem-per-gpu",
    "constraint",
    "reservation",
    "begin",
    "comment",
    "dependency",
    "exclude",
    "job-name",
    "licenses",
    "wckey",
    "acctg-freq",
    "batch",
    "bb",
    "chdir",
    "clusters",
    "container",
    "cores-per-socket",
    "error",
    "extra",
    "input",
    "mail-user",
    "mcs-label",
    "network",
    "ntasks-per-core",
    "output",
    "prefer",
    "threads-per-core",
    "time-min",
)
_PASSED_OVER = (
    "bbf",
    "cluster-constraint",
    "container-id",
    "core-spec",
    "cpu-freq",
    "deadline",
    "delay-boot",
    "distribution",
    "export",
    "export-file",
    "extra-node-info",
    "gid",
    "gpu-bind",
    "gpu-freq",
    "gres-flags",
    "hint",
    "mail-type",
    "mem-bind",
    "nodefile",
    "open-mode",
    "power",
    "priority",
    "profile",
    "resv-ports",
    "segment",
    "signal",
    "stepmgr",
    "switches",
    "thread-spec",
    "tmp",
    "uid",
    "wait-all-nodes",
)
SHARING_OPTIONS = ("exclusive", "oversubscribe")
READ_FLAGS = (*SHARING_OPTIONS, "overcommit", "contiguous", "hold", "no-requeue", "requeue", "nice")
_OPTIONAL = ("get-user-env", "immediate", "kill-on-invalid-dep", "no-kill", "propagate")
_FLAGS = (
    "help",
    "ignore-pbs",
    "parsable",
    "quiet",
    "reboot",
    "spread-job",
    "test-only",
    "usage",
    "use-min-nodes",
    "verbose",
    "version",
    "wait",
)
_BATCH_ONLY = (
    "array",
    "wrap",
    "batch",
    "ignore-pbs",
    "parsable",
    "requeue",
    "no-requeue",
    "test-only",
    "wait",
)
_WITH_VALUE = frozenset((*READ_OPTIONS, *_PASSED_OVER))
_WITHOUT = frozenset((*_OPTIONAL, *READ_FLAGS, *_FLAGS))


@dataclass(frozen=True, slots=True)
class SlurmCommand:
    """The options of one of Slurm's commands."""

    name: str
    # Prefix of the command's environment variables for options.
    variables: str
    with_value: frozenset[str]
    # Options that need no value; some accept a value after `=`.
    without: frozenset[str]
    short: Mapping[str, str]

    @property
    def known(self) -> frozenset[str]:
        """Return the long names of all options of the command."""
        return self.with_value | self.without


COMMANDS_BY_NAME = {
    "sbatch": SlurmCommand("sbatch", "SBATCH_", _WITH_VALUE, _WITHOUT, _SHORT),
    "srun": SlurmCommand(
        "srun",
        "SLURM_",
        _WITH_VALUE.difference(_BATCH_ONLY)
        | {
            "accel-bind",
            "bcast-exclude",
            "cpu-bind",
            "epilog",
            "het-group",
            "jobid",
            "kill-on-bad-exit",
            "max-exit-timeout",
            "max-threads",
            "mpi",
            "msg-timeout",
            "ntasks-per-tres",
            "pack-group",
            "prolog",
            "relative",
            "slurmd-debug",
            "task-epilog",
            "task-prolog",
            "threads",
            "tres-bind",
            "wait",
        },
        _WITHOUT.difference(_BATCH_ONLY)
        | {
            "bcast",
            "compress",
            "debugger-test",
            "disable-status",
            "exact",
            "interactive",
            "label",
            "multi-prog",
            "no-allocate",
            "overlap",
            "preserve-env",
            "pty",
            "quit-on-interrupt",
            "send-libs",
            "test-only",
            "unbuffered",
            "whole",
            "x11",
        },
        _SHORT
        | {
            "E": "preserve-env",
            "K": "kill-on-bad-exit",
            "l": "label",
            "r": "relative",
            "T": "threads",
            "u": "unbuffered",
            "X": "disable-status",
            "Z": "no-allocate",
        },
    ),
    "salloc": SlurmCommand(
        "salloc",
        "SALLOC_",
        _WITH_VALUE.difference(_BATCH_ONLY),
        _WITHOUT.difference(_BATCH_ONLY) | {"bell", "kill-command", "no-bell", "no-shell", "x11"},
        _SHORT | {"K": "kill-command"},
    ),
}
