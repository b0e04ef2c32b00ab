"""slurm-gpud: the command line, and everything put together."""

from __future__ import annotations

import argparse
import functools
import gzip
import json
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from slurm_gpu import __version__, munge
from slurm_gpu.clock import SystemClock
from slurm_gpu.config import SiteConfig, default_path, load_config
from slurm_gpu.errors import OutsideError, SlurmGpuError
from slurm_gpu.node import applications_command
from slurm_gpu.node.applicationrules import NO_RULES, Rules, load_rules, rules_path
from slurm_gpu.node.daemon import Node
from slurm_gpu.node.gres import GresOrder
from slurm_gpu.node.hooks import HookDirectory
from slurm_gpu.node.hostbook import HostBook
from slurm_gpu.node.inotify import DirectoryWaiter
from slurm_gpu.node.jobcgroups import JobCgroups
from slurm_gpu.node.live import LastSeen, NodeSource
from slurm_gpu.node.nodecounters import NodeCounters
from slurm_gpu.node.post import DirectSender, HttpPost, Reply, ThreadSender
from slurm_gpu.node.processjobs import ProcessJobs
from slurm_gpu.node.readerprocess import START_DEADLINE_S, START_WAIT_S, ReaderProcess
from slurm_gpu.node.ship import Courier
from slurm_gpu.node.spool import Spool

log = logging.getLogger("slurm_gpu.node")

_NICE = -10
_JOURNAL_LEVELS = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3}


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code (2 wrong usage, 3 something outside failed)."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if list(arguments[:1]) == ["applications"]:
        return applications_command.main(arguments[1:])
    options = _parser().parse_args(arguments)
    _log_to_stderr(for_people=options.foreground or options.once)
    try:
        _run(options, load_config(options.config))
    except SlurmGpuError as error:
        log.error("%s", error)  # noqa: TRY400 - said to the admin, who has no use for a traceback
        return error.exit_code
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="slurm-gpud",
        description="Watch the GPUs of this node and tell slurm-gpudbd what jobs do with them.",
        epilog="`slurm-gpud applications --help`: which application is recognised in a process, and why.",
    )
    add = parser.add_argument
    add("--config", type=Path, default=default_path(), help="site file (default %(default)s)")
    add("--node", help="this node's name in Slurm (default: the host's short name)")
    add(
        "--run-dir",
        type=Path,
        default=Path("/run/slurm-gpu"),
        help="where the hooks write (default %(default)s)",
    )
    add(
        "--state-dir",
        type=Path,
        default=Path("/var/lib/slurm-gpu"),
        help="where the spool lies (default %(default)s)",
    )
    add("--source-address", metavar="IP", help="send from this address of the node")
    add("--once", action="store_true", help="take one look, ship, and exit")
    add("--foreground", action="store_true", help="log for a person instead of for systemd's journal")
    add("--print", action="store_true", help="print records as JSON lines instead of shipping them")
    add("--version", action="version", version=f"slurm-gpud {__version__}")
    return parser


def _log_to_stderr(*, for_people: bool) -> None:
    handler = logging.StreamHandler(sys.stderr)
    if for_people:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    else:
        handler.setFormatter(_JournalFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])


class _JournalFormatter(logging.Formatter):
    """`<6>message`, from which systemd's journal takes the priority."""

    def format(self, record: logging.LogRecord) -> str:
        return f"<{_JOURNAL_LEVELS.get(record.levelno, 5)}>{super().format(record)}"


def _run(options: argparse.Namespace, config: SiteConfig) -> None:
    name = options.node or os.uname().nodename.partition(".")[0]
    clock = SystemClock()
    hooks = HookDirectory(options.run_dir, name, clock)
    try:
        hooks.create()
        spool = Spool(options.state_dir / "spool")
    except OSError as error:
        hint = "" if os.geteuid() == 0 else "; slurm-gpud runs as root"
        raise OutsideError(f"{error.filename}: {error.strerror}{hint}") from error
    waiter = DirectoryWaiter(hooks.jobs)
    reader = ReaderProcess(clock, start_wait_s=START_DEADLINE_S if options.once else START_WAIT_S)
    seen = LastSeen(reader)
    node = Node(
        name=name,
        cluster=config.cluster,
        clock=clock,
        hooks=hooks,
        reader=seen,
        gres=GresOrder(options.node),
        spool=spool,
        processes=ProcessJobs(),
        cgroups=JobCgroups(name),
        interval_s=config.sampling.interval_s,
        hosts=HostBook(name, _rules(options.config)),
    )
    credential = functools.partial(munge.encode, socket=config.munge_socket)
    # A sender with an address of its own is one of several nodes on this host, and to be told from them.
    local = config.database_socket if options.source_address is None else None
    http = HttpPost(config.database, options.source_address, credential, local)
    post = _print if options.print else http
    sender = DirectSender(post) if options.once or options.print else ThreadSender(post, waiter.wake)
    courier = Courier(spool, sender, clock, name, NodeSource(name, clock, node, seen, NodeCounters()))
    stopping = _StopSignal(waiter)
    _go_first()
    log.info("slurm-gpud %s watches node %s of cluster %s", __version__, name, config.cluster)
    node.start()
    if options.once:
        _once(node, courier)
    else:
        while not stopping.asked:
            due_s = min(node.step(), courier.step())
            waiter.wait(due_s - clock.monotonic())
    node.stop()
    reader.close()
    spool.close()


def _rules(site_file: Path) -> Rules:
    """A mistake in the rules costs the names of applications, not the accounting."""
    try:
        return load_rules(rules_path(site_file))
    except SlurmGpuError as error:
        log.error("%s\nuntil this is mended no application is recognised", error)  # noqa: TRY400
        return NO_RULES


def _go_first() -> None:
    """Jobs may use every core, but a look that comes late is a look that sees less."""
    try:
        os.setpriority(os.PRIO_PROCESS, 0, _NICE)
    except PermissionError:
        log.debug("slurm-gpud keeps its priority: it does not run as root")


def _once(node: Node, courier: Courier) -> None:
    node.step()
    node.stop()
    courier.ship_everything()
    courier.step()


def _print(body: bytes) -> Reply:
    shipment = json.loads(gzip.decompress(body))
    for kind in ("devices", "records", "hosts", "events"):
        for item in shipment[kind]:
            print(json.dumps({kind[:-1]: item}), flush=True)
    return Reply(200, b"{}")


class _StopSignal:
    """SIGTERM and SIGINT end the loop after the step that is under way."""

    def __init__(self, waiter: DirectoryWaiter) -> None:
        self.asked = False
        self._waiter = waiter
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        self._waiter.wake()


if __name__ == "__main__":
    sys.exit(main())
