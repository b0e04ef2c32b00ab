"""`make demo`: run a dozen jobs in the lab, and show their users' output and slurm-gpu's records."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from lab import scenario, truth
from lab.cluster import Lab
from lab.errors import LabError
from lab.scenario import Refusal, Submitted

DEADLINE_S = 120.0
TOLERANCE_PCT = 1.0
_POLL_S = 1.0
_FINAL = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"}


@dataclass(frozen=True)
class Difference:
    """The difference between one run's row and the truth, in percentage points; None without GPUs."""

    job: str
    core: float | None
    memory: float | None

    @property
    def worst(self) -> float:
        """The larger of the two differences; 0 for a run without GPUs."""
        return (
            max(abs(self.core), abs(self.memory))
            if self.core is not None and self.memory is not None
            else 0.0
        )


def demo(console: Console, *, setup_s: float | None = None) -> bool:
    """Run the demo on a new lab; return whether every row agrees with the true use of the simulated GPUs."""
    start = time.monotonic()
    lab = Lab(report=lambda line: console.print(f"[dim]{line}[/]", highlight=False))
    if any(lab.status().values()):
        raise LabError("a lab is up, but the demo requires a new one; take it down first: lab/down")
    lab.down()  # an interrupted lab may have left files, mounts or processes
    try:
        with console.status("Bringing up munge, MariaDB, slurmdbd, slurmctld, four slurmd and slurm-gpu …"):
            lab.up()
        console.print(
            f"Cluster up in {time.monotonic() - start:.0f} s: 4 nodes, 4 simulated GPUs each.\n",
            highlight=False,
        )
        accepted, refusals = submit_all(lab)
        _show_refusals(console, refusals)
        runs = _watch(console, lab, accepted)
        _show(console, lab, "carol", ["slurm-gpu", "jobs", "--all-users"])
        distributed = next(entry for entry in accepted if "-N2" in entry.job.options)
        _show(console, lab, distributed.job.user, ["slurm-gpu", "job", str(distributed.job_id)])
        good = show_accuracy(console, differences(lab, runs))
    finally:
        with console.status("Taking the cluster down …"):
            lab.down()
    if setup_s is not None:
        console.print(f"Installing took {setup_s:.0f} s.", highlight=False)
    console.print(
        f"The lab ran for {time.monotonic() - start:.0f} s. Nothing remains of the lab on this machine.\n"
        "To use the same cluster by hand, run lab/up, then for example lab/as carol slurm-gpu jobs -a.\n"
        "docs/quickstart.md shows more.",
        highlight=False,
    )
    return good


def submit_all(lab: Lab) -> tuple[list[Submitted], list[Refusal]]:
    """Submit every job of the scenario; raise LabError if the policy decides differently than expected."""
    # Sorted by user: a job that exceeds a user's share is submitted while the user's other jobs run.
    jobs = sorted((*scenario.ACCEPTED, *scenario.REFUSED), key=lambda job: job.user)
    outcomes = [scenario.submit(lab, job) for job in jobs]
    accepted = [outcome for outcome in outcomes if isinstance(outcome, Submitted)]
    refused = [outcome for outcome in outcomes if isinstance(outcome, Refusal)]
    if {entry.job for entry in accepted} != set(scenario.ACCEPTED):
        surprises = {o.job for o in outcomes if isinstance(o, Refusal)} ^ set(scenario.REFUSED)
        texts = [f"{job.user}$ {job.typed}" for job in surprises] + [entry.message for entry in refused]
        raise LabError("the policy did not decide as the demo expects:\n" + "\n".join(texts))
    return accepted, refused


def wait_for_runs(
    lab: Lab, accepted: Sequence[Submitted], progress: Any = None, deadline_s: float = DEADLINE_S
) -> list[Mapping[str, Any]]:
    """Return the rows of `slurm-gpu jobs -a --json` once every run has ended and its records are complete."""
    expected = sum(entry.job.n_runs for entry in accepted)
    ids = {entry.job_id for entry in accepted}
    end = time.monotonic() + deadline_s
    whole: dict[str, Mapping[str, Any]] = {}
    while True:
        rows = [row for row in rows_of(lab) if (row["array_job_id"] or row["job_id"]) in ids]
        done = [row for row in rows if row["state"] in _FINAL and _is_of_whole_records(lab, row, whole)]
        if progress is not None:
            progress(len(done), expected)
        if len(done) == expected:
            return done
        if time.monotonic() > end:
            open_rows = [row for row in rows if row not in done]
            waiting = [f"{row['id']} {row['state']} coverage {row['coverage']}" for row in open_rows]
            raise LabError(
                f"only {len(done)} of {expected} runs are complete after {deadline_s:g} s; "
                f"waiting for: {', '.join(waiting) or 'rows that slurm-gpudbd has not read from Slurm yet'}"
            )
        time.sleep(_POLL_S)


def _is_of_whole_records(lab: Lab, row: Mapping[str, Any], whole: dict[str, Mapping[str, Any]]) -> bool:
    """Return whether a run's records are final and agree with its row; add such runs to `whole`.

    A run's first record arrives while it runs, and the next pass of the import updates the row.
    """
    if not row["nGPU"]:
        return True
    if row["coverage"] is None:
        return False
    if row["id"] not in whole:
        shown = lab.run_as("carol", ["slurm-gpu", "job", row["id"], "--json"], check=False)
        (run,) = json.loads(shown.stdout)["runs"] if shown.returncode == 0 else ({"devices": []},)
        final = [device for device in run["devices"] if device["final"]]
        if len(final) < max(1, row["nGPU"]) or len(final) < len(run["devices"]):
            return False
        whole[row["id"]] = run
    run = whole[row["id"]]
    return run["coverage"] is not None and all(
        _are_alike(row[name], run[name]) for name in ("uGPUcore", "uGPUmem", "coverage")
    )


def _are_alike(one: float | None, other: float | None) -> bool:
    """Return whether two values agree up to rounding; None agrees only with None."""
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, abs_tol=1e-6)


def rows_of(lab: Lab) -> list[Mapping[str, Any]]:
    """Return all runs, as an operator sees them."""
    printed = lab.output(["slurm-gpu", "jobs", "--all-users", "--json"], user="carol")
    rows: list[Mapping[str, Any]] = json.loads(printed)["runs"]
    return rows


def differences(lab: Lab, rows: Sequence[Mapping[str, Any]]) -> list[Difference]:
    """Compare rows with the truth, integrated over the allocation of each job."""
    found = []
    for row in rows:
        means = truth.mean_pct(truth.of_job(lab.layout, tuple(lab.nodes.values()), row["job_id"]))
        core, memory = row["uGPUcore"], row["uGPUmem"]
        if means is None and core is None and memory is None:
            found.append(Difference(row["id"], None, None))
        elif means is None or core is None or memory is None:
            raise LabError(f"job {row['id']}: recorded {core}, {memory}; the truth is {means}")
        else:
            found.append(Difference(row["id"], core - means[0], memory - means[1]))
    return found


def _watch(console: Console, lab: Lab, accepted: Sequence[Submitted]) -> list[Mapping[str, Any]]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("Jobs run, and their records arrive")
        return wait_for_runs(lab, accepted, lambda done, total: bar.update(task, completed=done, total=total))


def _show_refusals(console: Console, refusals: Sequence[Refusal]) -> None:
    console.print("[bold]Refused, as the user saw it[/]")
    for refusal in refusals:
        console.print(f"\n[dim]{refusal.job.user}$[/] {refusal.job.typed}", highlight=False, soft_wrap=True)
        console.print(refusal.message, markup=False, highlight=False, soft_wrap=True)
    console.print()


def _show(console: Console, lab: Lab, user: str, argv: Sequence[str]) -> None:
    console.print(f"[dim]{user}$[/] {' '.join(argv)}", highlight=False)
    result = lab.run_as(user, argv, extra={"COLUMNS": str(console.width)})
    console.print(result.stdout.rstrip(), markup=False, highlight=False, soft_wrap=True)
    console.print()


def show_accuracy(console: Console, found: Sequence[Difference]) -> bool:
    """Print how far the rows differ from the truth, and a remedy if the differences are too large.

    Return whether the differences are within the tolerance.
    """
    worst = max(found, key=lambda difference: difference.worst)
    n_with_gpus = sum(difference.core is not None for difference in found)
    good = worst.worst <= TOLERANCE_PCT
    verdict = "[green]Right[/]" if good else "[red]WRONG[/]"
    load, cpus = os.getloadavg()[0], len(os.sched_getaffinity(0))
    console.print(
        f"{verdict}: in {n_with_gpus} runs with GPUs, uGPUcore and uGPUmem differ from the true use of the "
        f"simulated GPUs by at most {worst.worst:.2f} percentage points (job {worst.job}).",
        highlight=False,
        soft_wrap=True,
    )
    if not good:
        console.print(
            "A loaded machine can cause this: slurm-gpud then samples late, and simulated jobs start their "
            f"steps late. The load of the last minute is {load:.1f}, on {cpus} CPUs. Stop other programs and "
            "try again; if it fails on an idle machine too, please report it as a defect.",
            highlight=False,
            soft_wrap=True,
        )
    return good
