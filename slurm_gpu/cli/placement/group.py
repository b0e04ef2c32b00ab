"""`slurm-gpu placement`: show, reset and replay the node weights of slurm-gpuctld."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import click

from slurm_gpu.cli.options import duration_value, json_option, run_directory_option, since_option
from slurm_gpu.cli.output import print_json, print_table, remark
from slurm_gpu.cli.site import CommandSite, with_site
from slurm_gpu.client.connector import DatabaseConnector
from slurm_gpu.clock import SystemClock
from slurm_gpu.config.node_groups import group_by_node
from slurm_gpu.controller.placement import original_weights as weightmemory
from slurm_gpu.controller.placement import table as placementtable
from slurm_gpu.controller.placement.original_weights import OriginalWeights
from slurm_gpu.controller.placement.table import MixLine, NodeLine, PlacementTable, lines_of, mix_lines
from slurm_gpu.controller.placement.weight_plan import Managed, plan
from slurm_gpu.controller.placement.weights import CYCLE_S, release, written_weights
from slurm_gpu.controller.queue import job_mix as jobmix
from slurm_gpu.controller.queue.job_mix import JobMix, MixedOrder
from slurm_gpu.controller.reporting.audit_reporter import AuditReporter
from slurm_gpu.errors import InputError, OutsideError, UsageError
from slurm_gpu.policy.lua.peers import this_host
from slurm_gpu.text.cells import GAP
from slurm_gpu.text.hostlist import compress
from slurm_gpu.text.units import counted, format_duration

_RUN_DIR = run_directory_option("Directory that slurm-gpuctld writes to.")
_COLUMNS = (
    "node",
    "zone",
    "state",
    "GPUs",
    "busy",
    "free",
    "useful",
    "strands",
    "weight",
    "target",
    "site's",
)


@click.group()
def placement() -> None:
    """Show, reset and simulate the node weights that keep whole nodes free."""


@placement.command(short_help="Show each managed node with its GPUs and its Weight.")
@json_option
@_RUN_DIR
@with_site
def status(site: CommandSite, run_dir: Path, as_json: bool) -> None:
    """Show each managed node with its GPUs, its current and target Weight, and the site's own Weight.

    The column "useful" shows the free GPUs that recent jobs can use. The column "strands" shows the GPUs that
    the next small job is expected to strand. The nodes with the lowest values in both columns get the lowest
    weight.

    The values are the latest that slurm-gpuctld wrote on this host. If no active slurm-gpuctld writes to this
    host, the command computes them.
    """
    table = placementtable.read(run_dir / placementtable.FILE_NAME)
    is_written = table is not None and table.in_charge
    if table is None or not table.in_charge:
        table = _worked_out(site, run_dir)
    age_s = table.age_s(site.wall())
    if as_json:
        source = "slurm-gpuctld" if is_written else "now"
        print_json({"from": source, "age_s": round(age_s, 1), **table.to_json()})
        return
    if is_written:
        late = (
            ", which is too long ago: check that slurm-gpuctld is running"
            if table.is_stale(site.wall())
            else ""
        )
        click.echo(
            f"Mode {table.mode}; slurm-gpuctld on {table.host} computed the weights "
            f"{format_duration(age_s)} ago{late}"
        )
    else:
        click.echo(f"Mode {table.mode}, from the site file; no active slurm-gpuctld writes to this host")
    _print_last_action(table)
    click.echo(f"Whole nodes free: {table.whole_free} of {len(table.nodes)}")
    click.echo(
        f"Recent jobs: {'; '.join(map(_asks, table.mix)) or 'none, so weights depend on how full nodes are'}"
    )
    if table.nodes:
        print_table(_COLUMNS, map(_row, table.nodes), right=_COLUMNS[3:], whole=("node",))
    if is_written:
        _remark_on_the_file(site, table.mode)
    if table.by_hand:
        remark(
            f"the Weight of {compress(table.by_hand)} was set by hand, and slurm-gpuctld does not change it: "
            "run `slurm-gpu doctor` for the remedy"
        )


@placement.command("release", short_help="Restore the Weight of every node.")
@_RUN_DIR
@with_site
def release_weights(site: CommandSite, run_dir: Path) -> None:
    """Restore the site's own Weight of every node, if slurm-gpuctld ended without doing so.

    Run this command as root or SlurmUser on a host of slurmctld.
    """
    table = placementtable.read(run_dir / placementtable.FILE_NAME)
    if table is not None and table.mode == "enforce" and not table.is_stale(site.wall()):
        raise UsageError(
            "slurm-gpuctld runs on this host and would set the weights again: stop it, which restores the "
            "site's own weights, or set placement: {mode: observe} in slurm-gpu.yaml and restart it. If it "
            "was just killed, wait "
            f"{placementtable.STALE_CYCLES * table.cycle_s:.0f} s"
        )
    settings = site.slurm.settings()
    memory = weightmemory.read(weightmemory.path_of(settings))
    if not memory.nodes:
        click.echo("No node has a Weight that slurm-gpuctld set")
        return
    database = DatabaseConnector(site.config)
    acts = AuditReporter(SystemClock(), lambda acts: database(lambda client: client.send_audit_events(acts)))
    names = release(site.slurm, settings, memory, acts, "slurm-gpu placement release")
    acts.close()
    click.echo(f"The site's own Weight was restored on {counted(len(names), 'node')}")


@placement.command(short_help="Simulate recorded jobs under other placement rules.")
@since_option
@click.option("--until", metavar="TIME", help="Only jobs submitted before TIME.")
@click.option(
    "--zone-wait",
    metavar="DURATION",
    default="4h",
    show_default=True,
    callback=duration_value,
    help="Time that multi-node jobs wait for one zone under the rule `ours`.",
)
@json_option
@_RUN_DIR
@with_site
def replay(
    site: CommandSite, since: str, until: str | None, zone_wait: float, as_json: bool, run_dir: Path
) -> None:
    """Simulate recorded jobs under Slurm's own placement and under other rules.

    The other rules are MostAllocated, slurm-gpuctld's node weights, and slurm-gpuctld's choice of nodes for
    each single job. The output shows the GPUs in use, the stranded GPU-hours, and the waits by size of job.
    Nothing is changed. Only operators of slurm-gpudbd may run this command.
    """
    # numpy is installed only where reports are built.
    from slurm_gpu.cli.placement.replay import replay_placement

    table = placementtable.read(run_dir / placementtable.FILE_NAME)
    weights = {node.name: node.weight for node in site.slurm.nodes()}
    if table is None or not table.in_charge:
        table = _worked_out(site, run_dir)
    weights |= {line.name: line.site for line in table.nodes}
    replay_placement(site, since, until, zone_wait, weights, as_json=as_json)


def _remark_on_the_file(site: CommandSite, mode: str) -> None:
    """Print a remark if the site file has changed since slurm-gpuctld read it at its start."""
    try:
        wanted = site.config.placement.mode
    except InputError as error:
        remark(f"The site file is invalid, so slurm-gpuctld cannot start again: {error}")
        return
    if wanted != mode:
        remark(f"The site file has mode: {wanted}: restart slurm-gpuctld to apply it")


def _worked_out(site: CommandSite, run_dir: Path) -> PlacementTable:
    """Compute the placement table on this host in the same way as slurm-gpuctld."""
    config = site.config
    nodes = site.slurm.nodes()
    settings = site.slurm.settings()
    try:
        memory = weightmemory.read(weightmemory.path_of(settings))
        written = written_weights(settings)
    except OutsideError:  # only SlurmUser may read the files, or they are on another host
        memory, written = OriginalWeights(), {}
    mix = JobMix(SystemClock(), run_dir / jobmix.FILE_NAME)
    plans = plan(nodes, Managed(config.placement).of(nodes), memory, written, {}, MixedOrder(mix).of)
    return PlacementTable(
        as_of_s=int(site.wall()),
        host=this_host(),
        mode=config.placement.mode,
        in_charge=False,
        cycle_s=CYCLE_S,
        nodes=lines_of(plans, group_by_node("zones", config.zones), {}),
        mix=mix_lines(mix),
    )


def _print_last_action(table: PlacementTable) -> None:
    last = table.last_action
    if last is not None:
        at = dt.datetime.fromtimestamp(last.at_s, dt.UTC)
        click.echo(
            f"Last action: {last.action} on {counted(last.nodes, 'node')} in {counted(last.calls, 'call')}, "
            f"{last.took_s:.2f} s, {at:%Y-%m-%d %H:%M:%S} UTC"
        )


def _row(line: NodeLine) -> tuple[str, ...]:
    target = "by hand" if line.by_hand else GAP if line.target is None else str(line.target)
    return (
        line.name,
        GAP if line.zone is None else line.zone,
        line.state,
        str(line.gpus),
        f"{line.busy:g}",
        f"{line.gpus - line.busy:g}",
        _gpus(line.useful),
        _gpus(line.strands),
        str(line.weight),
        target,
        str(line.site),
    )


def _gpus(number: float | None) -> str:
    return GAP if number is None else f"{number:.2f}"


def _asks(line: MixLine) -> str:
    """Format a kind of recent jobs, such as "62 % 1 GPU, 8 CPUs, 64.0G"."""
    gpus = f"{line.share_mgpu / 1000:g} of a GPU" if line.share_mgpu else counted(line.gpus, "GPU")
    of_type = f" {line.gpu_type}" if line.gpu_type else ""
    memory = f", {line.memory_mib / 1024:.1f}G" if line.memory_mib else ""
    return f"{line.popularity:.0%} {gpus}{of_type}, {counted(line.cpus, 'CPU')}{memory}"
