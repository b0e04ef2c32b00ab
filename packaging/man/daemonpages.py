"""Pages of the daemons, out of what argparse knows."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from docutils import nodes
from manpage import ManPage, definitions, paragraph, paragraphs, section, see_also, usage
from words import described

from slurm_gpu.controller.main import make_parser as gpuctld_parser
from slurm_gpu.database.main import make_parser as gpudbd_parser
from slurm_gpu.monitor.main import make_parser as gpuweb_parser
from slurm_gpu.node.application.command import make_parser as applications_parser
from slurm_gpu.node.main import make_parser as gpud_parser

_EXIT_STATUS = (
    ("0", "It was told to end, or has done what it was called for."),
    ("2", "Wrong usage, or a wrong file. systemd does not try again."),
    ("3", "Slurm, the database, MUNGE, NVML or another thing outside failed."),
)
_SITE_FILE = ("/etc/slurm-gpu/slurm-gpu.yaml", "The site file: see `slurm-gpu.yaml`(5).")
_ENVIRONMENT_FILE = (
    "/etc/sysconfig/slurm-gpu, /etc/default/slurm-gpu",
    "Environment of the units: `PATH=`, where Slurm's commands are not in /usr/bin.",
)
_UNITS = (
    "The unit is `{name}.service`. It is of Type=notify: `systemctl status {name}` shows a line of what the "
    "daemon is at, and its work feeds the watchdog, so that a daemon that hangs is started again. It logs to "
    "the journal: `journalctl -u {name}`."
)


@dataclass(frozen=True, slots=True)
class _Daemon:
    parser: argparse.ArgumentParser
    summary: str
    description: str
    files: Sequence[tuple[str, str]]
    related: Sequence[str]
    commands: Sequence[tuple[str, argparse.ArgumentParser]] = ()


def daemon_pages(version: str, date: str) -> Iterator[ManPage]:
    """slurm-gpud(8), slurm-gpudbd(8), slurm-gpuctld(8), slurm-gpuweb(8)."""
    for daemon in _daemons():
        name = daemon.parser.prog
        page = ManPage(name, 8, daemon.summary, version, date)
        inner = [parser for _, parser in daemon.commands]
        page.add("SYNOPSIS", *(_synopsis(parser) for parser in (daemon.parser, *inner)))
        page.add("DESCRIPTION", paragraphs(daemon.description), paragraph(_UNITS.format(name=name)))
        page.add("OPTIONS", _options(daemon.parser))
        page.add("COMMANDS", *(section(command, *_command(parser)) for command, parser in daemon.commands))
        page.add("EXIT STATUS", described(_EXIT_STATUS))
        page.add("FILES", described((_SITE_FILE, *daemon.files, _ENVIRONMENT_FILE)))
        page.add("SEE ALSO", see_also(daemon.related))
        yield page


def _daemons() -> Iterator[_Daemon]:
    yield _Daemon(
        gpud_parser(),
        "watches the GPUs of a node for slurm-gpudbd",
        """Runs on each node that has GPUs, as root. Slurm's prolog and epilog hooks tell it which job holds
        which GPU; it reads the GPUs by NVML and the job's processes by /proc, and ships a record for each job
        and GPU to slurm-gpudbd. What cannot be shipped waits in the spool, and a job outlives a restart of
        the daemon.

        Nothing that it does blocks or fails a job.""",
        (
            ("/etc/slurm-gpu/applications.yaml", "A site's own rules by which applications are recognised."),
            ("/run/slurm-gpu/jobs/", "What the hooks wrote and the daemon has not taken in yet."),
            ("/run/slurm-gpu/rejected/", "Files there that no hook of ours can have written."),
            ("/var/lib/slurm-gpu/spool/", "Open jobs, and what slurm-gpudbd has not taken yet."),
        ),
        ("slurm-gpudbd(8)", "slurm-gpu-nodes(1)", "slurm-gpu-doctor(1)", "slurm-gpu.yaml(5)", "slurmd(8)"),
        (("applications", applications_parser()),),
    )
    yield _Daemon(
        gpudbd_parser(),
        "stores what the nodes measure beside Slurm's accounting",
        """Runs once in a cluster, as SlurmUser, and answers over HTTP: nodes ship their records to it, and
        slurm-gpu(1) asks it. Who is asking, MUNGE says, or the kernel for its Unix socket. Each minute it
        reads Slurm's accounting with sacct(1), and matches the records to it. It makes its tables itself, in
        SQLite or MariaDB, and brings them up to date when it starts.""",
        (
            ("/etc/slurm-gpu/slurm-gpudbd.yaml", "Where the database is: see `slurm-gpudbd.yaml`(5)."),
            ("/run/slurm-gpu/slurm-gpudbd.sock", "Its Unix socket."),
            ("/var/lib/slurm-gpu/slurm-gpu.db", "The database, where it is SQLite's."),
        ),
        ("slurm-gpud(8)", "slurm-gpu-db(1)", "slurm-gpudbd.yaml(5)", "slurm-gpu.yaml(5)", "slurmdbd(8)"),
    )
    yield _Daemon(
        gpuctld_parser(),
        "watches Slurm's queue for job_submit.lua",
        """Runs on each host of slurmctld, as SlurmUser. It asks slurmctld for its queue once a second, less
        often while slurmctld is slow to answer or the queue is long, and writes down who uses what. The
        policy's job_submit.lua reads that, so that slurmctld need not sum up the queue at each submission;
        limits on GPU-hours need it. Without it the script goes on by the queue itself.""",
        (
            ("/run/slurm-gpu/snapshot.txt", "Who uses what, for job_submit.lua."),
            ("/run/slurm-gpu/decisions.log", "What job_submit.lua decided, written by slurmctld."),
        ),
        ("slurm-gpu-policy(1)", "slurm-gpu-quota(1)", "policy.yaml(5)", "slurm-gpu.yaml(5)", "slurmctld(8)"),
    )

    yield _Daemon(
        gpuweb_parser(),
        "shows every GPU of a cluster and every job",
        """Runs on one host that reaches slurm-gpudbd, as a user of its own. It reads slurm-gpudbd each few
        seconds and shows the whole cluster, a square for each GPU, and every job, to people in a browser and
        to programs over HTTP. Users see their own jobs in full and of others' the occupancy, operators all.
        While slurm-gpudbd is away it shows what was told last, and how old that is. /openapi.json describes
        what programs may ask.""",
        (("/etc/slurm-gpu/slurm-gpuweb.yaml", "Where it listens: see `slurm-gpuweb.yaml`(5)."),),
        ("slurm-gpudbd(8)", "slurm-gpu-top(1)", "slurm-gpuweb.yaml(5)", "slurm-gpu.yaml(5)"),
    )


def _command(parser: argparse.ArgumentParser) -> list[nodes.Node]:
    return [*paragraphs(parser.description or ""), *_options(parser), *paragraphs(parser.epilog or "")]


def _synopsis(parser: argparse.ArgumentParser) -> nodes.paragraph:
    words = parser.format_usage().partition(":")[2].split()
    return nodes.paragraph("", "", *usage(words))


def _options(parser: argparse.ArgumentParser) -> list[nodes.Node]:
    formatter = parser._get_formatter()  # argparse tells of itself nowhere else
    items = []
    for action in parser._actions:
        words = ", ".join(action.option_strings).split()
        if action.nargs != 0:
            words.append(formatter._format_args(action, action.dest.upper()))
        items.append((usage(words), [paragraph(formatter._expand_help(action) if action.help else "")]))
    return definitions(items)
