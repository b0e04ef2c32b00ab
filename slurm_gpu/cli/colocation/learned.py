"""Write the speeds that slurm-gpuctld measured for jobs that share GPUs as a table for learned planners."""

from __future__ import annotations

from pathlib import Path

import click

from slurm_gpu.cli.site import CommandSite
from slurm_gpu.colocation.co_runner_views import CoRunnerView
from slurm_gpu.colocation.tables.measured import Measured
from slurm_gpu.colocation.tables.pair_file import write_csv, write_json
from slurm_gpu.controller.colocation import store as stores
from slurm_gpu.controller.colocation.store import ColocationStore
from slurm_gpu.errors import OutsideError, UsageError
from slurm_gpu.text.units import counted


def write_learned(site: CommandSite, out: Path, gpu_model: str) -> None:
    """Write the table as CSV or JSON, depending on the suffix of `out`, and print the path."""
    if out.suffix not in (".csv", ".json"):
        raise UsageError(
            f"{out}: the table is written as CSV or JSON; name a file that ends in .csv or .json"
        )
    path = stores.path_of(site.slurm.settings())
    try:
        is_there = path.exists()
    except PermissionError:
        raise OutsideError(f"only SlurmUser may read {path}; run this as root") from None
    table = measured_of(stores.read(path) if is_there else ColocationStore(), gpu_model)
    if not table.names:
        raise UsageError(f"{path} has no measured speeds of jobs that share GPUs yet")
    if out.suffix == ".json":
        write_json(out, table)
    else:
        write_csv(out, [table])
    pairs, jobs = counted(len(table.speeds), "speed"), counted(len(table.names), "kind")
    click.echo(f"{pairs} of {jobs} of jobs", err=True)
    click.echo(out)


def measured_of(store: ColocationStore, gpu_model: str) -> Measured:
    """Return the measured speeds of pairs of applications; a whole run counts as one step.

    A pair that failed before its speed was measured gets the speed 0, since it cannot share a GPU.
    """
    names = tuple(sorted(store.profiles))
    index = {name: at for at, name in enumerate(names)}
    speeds: dict[CoRunnerView, float] = {
        (index[key], (index[other],)): speed
        for (key, other), (speed, _) in store.speeds.items()
        if key in index and other in index and (other, key) in store.speeds
    }
    for pair in store.apart:
        one, other = min(pair), max(pair)
        if pair <= index.keys() and not {(one, other), (other, one)} & store.speeds.keys():
            speeds[index[one], (index[other],)] = speeds[index[other], (index[one],)] = 0.0
    return Measured(gpu_model, names, tuple(1 / store.profiles[name].alone_s for name in names), speeds)
