"""Build the pages of the daemons from their argparse parsers."""

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
    ("0", "The daemon was stopped, or its command succeeded."),
    ("2", "Invalid usage or file. systemd does not restart the daemon."),
    ("3", "Slurm, the database, MUNGE, NVML or another external component failed."),
)
_SITE_FILE = ("/etc/slurm-gpu/slurm-gpu.yaml", "The site file: see `slurm-gpu.yaml`(5).")
_ENVIRONMENT_FILE = (
    "/etc/sysconfig/slurm-gpu, /etc/default/slurm-gpu",
    "Environment of the units, such as `PATH=` if Slurm's commands are not in /usr/bin.",
)
_UNITS = (
    "The unit is `{name}.service`. It has Type=notify: `systemctl status {name}` shows the current "
    "activity of the daemon, and the watchdog restarts a daemon that hangs. It logs to the journal: "
    "`journalctl -u {name}`."
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
    """Yield slurm-gpud(8), slurm-gpudbd(8), slurm-gpuctld(8), slurm-gpuweb(8)."""
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
        "measure the GPUs of a node for slurm-gpudbd",
        """Runs on each node that has GPUs, as root. Slurm's prolog and epilog hooks report the GPUs of each
        job. The daemon reads the GPUs through NVML and the job's processes from /proc. It sends a record for
        each job and GPU to slurm-gpudbd. Records wait in the spool until they are sent, even if the daemon
        restarts.

        The daemon never blocks a job or makes it fail.""",
        (
            ("/etc/slurm-gpu/applications.yaml", "The site's rules for recognising applications."),
            ("/run/slurm-gpu/jobs/", "Event files of the hooks, not read by the daemon yet."),
            ("/run/slurm-gpu/rejected/", "Invalid files from /run/slurm-gpu/jobs/."),
            (
                "/var/lib/slurm-gpu/spool/",
                "Running jobs, and records that slurm-gpudbd has not accepted yet.",
            ),
        ),
        ("slurm-gpudbd(8)", "slurm-gpu-nodes(1)", "slurm-gpu-doctor(1)", "slurm-gpu.yaml(5)", "slurmd(8)"),
        (("applications", applications_parser()),),
    )
    yield _Daemon(
        gpudbd_parser(),
        "store the measurements of the nodes with Slurm's accounting",
        """Runs once in a cluster, as SlurmUser. Nodes send their records to it over HTTP, and slurm-gpu(1)
        queries it. MUNGE authenticates clients; on the Unix socket, the kernel does. Each minute the daemon
        reads Slurm's accounting with sacct(1) and matches the records to it. It creates its tables in an
        empty SQLite or MariaDB database. It does not start with older tables; `slurm-gpu db upgrade` upgrades
        them.""",
        (
            ("/etc/slurm-gpu/slurm-gpudbd.yaml", "The address of the database: see `slurm-gpudbd.yaml`(5)."),
            ("/run/slurm-gpu/slurm-gpudbd.sock", "Its Unix socket."),
            ("/var/lib/slurm-gpu/slurm-gpu.db", "The database, if SQLite is used."),
        ),
        ("slurm-gpud(8)", "slurm-gpu-db(1)", "slurm-gpudbd.yaml(5)", "slurm-gpu.yaml(5)", "slurmdbd(8)"),
    )
    yield _Daemon(
        gpuctld_parser(),
        "read Slurm's queue for job_submit.lua",
        """Runs on each host of slurmctld, as SlurmUser. It reads slurmctld's queue once a second, or less
        often if slurmctld is slow or the queue is long, and writes a snapshot with the use of each user. The
        policy's job_submit.lua reads the snapshot instead of the whole queue at each submission. Limits on
        GPU-hours require the daemon. Without a snapshot, the script reads the queue itself.""",
        (
            ("/run/slurm-gpu/snapshot.txt", "The snapshot for job_submit.lua."),
            ("/run/slurm-gpu/decisions.log", "Decisions of job_submit.lua, written by slurmctld."),
        ),
        ("slurm-gpu-policy(1)", "slurm-gpu-quota(1)", "policy.yaml(5)", "slurm-gpu.yaml(5)", "slurmctld(8)"),
    )

    yield _Daemon(
        gpuweb_parser(),
        "show every GPU of a cluster and every job",
        """Runs on one host that reaches slurm-gpudbd, as its own system user. It queries slurm-gpudbd every
        few seconds. Its web pages and its HTTP API show the whole cluster, with a square for each GPU, and
        every job. Users see full details of their own jobs, and only the occupancy of GPUs by the jobs of
        others; operators see everything. While slurm-gpudbd is down, slurm-gpuweb shows the last data with
        their age. /openapi.json describes the API.""",
        (("/etc/slurm-gpu/slurm-gpuweb.yaml", "Its address and sign-in: see `slurm-gpuweb.yaml`(5)."),),
        ("slurm-gpudbd(8)", "slurm-gpu-top(1)", "slurm-gpuweb.yaml(5)", "slurm-gpu.yaml(5)"),
    )


def _command(parser: argparse.ArgumentParser) -> list[nodes.Node]:
    return [*paragraphs(parser.description or ""), *_options(parser), *paragraphs(parser.epilog or "")]


def _synopsis(parser: argparse.ArgumentParser) -> nodes.paragraph:
    words = parser.format_usage().partition(":")[2].split()
    return nodes.paragraph("", "", *usage(words))


def _options(parser: argparse.ArgumentParser) -> list[nodes.Node]:
    formatter = parser._get_formatter()  # argparse has no public API for this
    items = []
    for action in parser._actions:
        words = ", ".join(action.option_strings).split()
        if action.nargs != 0:
            words.append(formatter._format_args(action, action.dest.upper()))
        items.append((usage(words), [paragraph(formatter._expand_help(action) if action.help else "")]))
    return definitions(items)
