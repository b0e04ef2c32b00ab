"""`slurm-gpu job ID`: the runs of one job, and what each of its GPUs did."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from zoneinfo import ZoneInfo

import click

from slurm_gpu.cli.cells import GAP, count, energy, memory, moment, number, span, text
from slurm_gpu.cli.deviceuse import DeviceUse, device_uses, idle_advice
from slurm_gpu.cli.output import print_json, print_table
from slurm_gpu.cli.site import Site, with_site
from slurm_gpu.database.client import Run
from slurm_gpu.errors import UsageError

_GPU_COLUMNS = ("node", "GPU", "util", "p5", "p50", "p95", "memory", "max", "power", "energy", "sampled")

_SHORT_UUID = 12


@click.command()
@click.argument("job_id", metavar="ID")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; docs/commands.md has its keys.")
@with_site
def job(site: Site, job_id: str, as_json: bool) -> None:
    """Show every run of job ID (17, 17_3 for an array task, 17+1 for a het component) and its GPUs.

    util is the share of time in which the GPU ran anything, in percent, with its 5th, 50th and 95th
    percentile of time; sampled is the share of the time held that was measured. Power and energy of a GPU
    are not known while jobs share it; a dash where that was long.
    """
    with site.database() as database:
        runs = database.run(job_id)
    if not runs:
        every = span(site.config.import_interval_s)
        raise UsageError(
            f"no job {job_id} in the accounting yet; it is read every {every} (squeue has the queue)"
        )
    min_coverage = site.config.sampling.min_coverage
    if as_json:
        print_json({"runs": [_to_json(run, min_coverage) for run in runs]})
        return
    zone = ZoneInfo(site.config.timezone)
    for index, run in enumerate(runs):
        if index:
            click.echo()
        _print_run(run, zone, min_coverage)


def _to_json(run: Run, min_coverage: float) -> dict[str, object]:
    uses = device_uses(run.devices) if run.devices is not None else None
    return {
        **run.to_json(),
        "gpus": None if uses is None else [use.to_json() for use in uses],
        "advice": None if uses is None else idle_advice(run, uses, min_coverage),
    }


def _print_run(run: Run, zone: ZoneInfo, min_coverage: float) -> None:
    click.echo(f"Job {run.id} {text(run.name) if run.name else ''}".rstrip() + f"  {run.state}")
    click.echo(
        f"  {text(run.user)} in {text(run.account)}, partition {text(run.partition)}, QOS {text(run.qos)}"
    )
    nodes = "1 node" if run.n_nodes == 1 else f"{number(run.n_nodes)} nodes"
    if not run.has_started:
        asked = "not started yet; asks for" if run.end_s is None else "never started; asked for"
        # Of a job that was cancelled as soon as it was submitted, accounting may not know what it asked for.
        click.echo(f"  {asked} {_gpus_requested(run)} on {nodes}" if run.n_nodes else "  never started")
        click.echo(f"  submitted {moment(run.submit_s, zone)}")
        if run.end_s is not None:
            click.echo(f"  ended     {moment(run.end_s, zone)}")
        return
    click.echo(f"  {nodes} {text(run.nodes)}, {_gpus(run.n_gpus, run.gpu_type)}")
    click.echo(f"  submitted {moment(run.submit_s, zone)}")
    click.echo(f"  started   {moment(run.start_s, zone)}  after waiting {span(_seconds(run.wait_h))}")
    click.echo(f"  ended     {moment(run.end_s, zone)}  having run {span(run.elapsed_s)}")
    if not run.full:
        click.echo("  GPU use is shown to the job's owner and to operators.")
        return
    if run.n_gpus == 0:
        click.echo("  It had no GPU.")
        return
    click.echo(
        f"  uGPUcore {_percent(run.ugpucore)}  uGPUmem {_percent(run.ugpumem)}  "
        f"coverage {number(run.coverage, 2)}  energy {energy(run.energy_j)}"
    )
    uses = device_uses(run.devices) if run.devices is not None else []
    if not uses:
        came = (
            "the first record of a running job comes within 6 minutes"
            if run.end_s is None
            else "the record of an ended job comes at once; on its nodes, slurm-gpu doctor says what keeps it"
        )
        click.echo(f"  No node has told anything about its GPUs yet: {came}.")
        return
    _print_gpus(uses, min_coverage)
    advice = idle_advice(run, uses, min_coverage)
    if advice is not None:
        click.echo(f"  {advice}")


def _gpus(n_gpus: float | None, kind: str | None = None) -> str:
    """The count with its noun, such as "2 a100 GPUs"."""
    return f"{count(n_gpus)} {kind + ' ' if kind else ''}GPU{'' if n_gpus == 1 else 's'}"


def _gpus_requested(run: Run) -> str:
    """What shards make of a GPU is known only once they have a node."""
    return _gpus(run.n_gpus_requested) if run.n_gpus_requested is not None else "shards of GPUs"


def _percent(value: float | None) -> str:
    return GAP if value is None else f"{number(value, 1)} %"


def _print_gpus(uses: Sequence[DeviceUse], min_coverage: float) -> None:
    names = _device_names([use.device for use in uses])
    rows = [
        [
            use.node,
            names[use.device],
            number(use.util_mean_pct, 1),
            number(use.util_p5_pct),
            number(use.util_p50_pct),
            number(use.util_p95_pct),
            memory(use.mem_mean_mib),
            memory(use.mem_max_mib),
            f"{number(use.power_mean_w)}W" if use.stands_for_all(use.power_s, min_coverage) else GAP,
            energy(use.energy_j) if use.stands_for_all(use.energy_s, min_coverage) else GAP,
            number(use.coverage, 2),
        ]
        for use in uses
    ]
    print_table(_GPU_COLUMNS, rows, right=_GPU_COLUMNS[2:], whole=("GPU",))


def _device_names(devices: Sequence[str]) -> Mapping[str, str]:
    """UUIDs in full, or on a terminal as far as GPU-1a2b3c4d where that tells them apart."""
    short = {device: device[:_SHORT_UUID] for device in devices}
    if not sys.stdout.isatty() or len(set(short.values())) < len(short):
        return {device: device for device in devices}
    return short


def _seconds(hours: float | None) -> float | None:
    return None if hours is None else hours * 3600
