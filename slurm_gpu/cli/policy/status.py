"""`slurm-gpu policy status`: compare the active policy with FILE and with the last apply."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import click

from slurm_gpu.cli.output import print_json, print_table
from slurm_gpu.cli.policy.file import PATH, apply_command, file_argument
from slurm_gpu.cli.policy.loaded import LoadedPolicy, state_option
from slurm_gpu.cli.policy.native_text import plan_json, plan_lines
from slurm_gpu.cli.site import CommandSite, with_site
from slurm_gpu.errors import OutsideError
from slurm_gpu.policy.journal import ApplyJournal, ApplyState, Entry
from slurm_gpu.policy.language.adjustments import Moved
from slurm_gpu.policy.language.check import load_moved
from slurm_gpu.policy.lua.decisions import DecisionCounts, count_decisions
from slurm_gpu.policy.lua.in_force import InForce
from slurm_gpu.policy.lua.install import made_by
from slurm_gpu.policy.lua.installed import read_policy_in_force
from slurm_gpu.text.cells import minute
from slurm_gpu.text.units import counted


@click.command(short_help="Compare the active policy with FILE.")
@file_argument
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@state_option
@click.option(
    "--run-dir", type=PATH, metavar="DIR", help="Directory of decisions.log. [default: as in job_submit.lua]"
)
@with_site
def status(
    site: CommandSite, file: Path | None, as_json: bool, state_dir: Path, run_dir: Path | None
) -> None:
    """Compare the active policy with FILE, and list limits changed by hand.

    The exit code is 1 if anything differs. Decisions are counted as far back as decisions.log reaches.
    """
    loaded = LoadedPolicy.read(site, file)
    journal = ApplyJournal(state_dir)
    found = loaded.in_force()
    last, begun = journal.newest(ApplyState.DONE), journal.newest(ApplyState.BEGUN)
    taken_back = journal.taken_back()
    maker = made_by(journal, loaded.script)
    counts = _decisions(run_dir, loaded.script)
    moved, _ = load_moved(loaded.path)
    if not as_json:  # print first: slurmdbd may be down
        for line in _applied(last, taken_back):
            click.echo(line)
        if begun is not None:
            click.echo(f"An apply of {begun.at} was interrupted: `slurm-gpu policy rollback` undoes it")
        standing = _standing(found, maker, taken_back, loaded, file)
        click.echo(f"{loaded.script}: {standing}")
        _print_moves(moved)
        if counts is not None and counts.since_s is not None:
            _print_counts(counts, counts.since_s)
    native = loaded.native(site, journal.owned(loaded.settings.cluster))
    changes = native.difference.steps or native.new_qos or native.drift
    differs = bool(changes or begun) or found is not InForce.SAME
    if as_json:
        print_json(
            {
                "applied": _plain(last),
                "taken_back": [_plain(entry) for entry in taken_back],
                "cut_short": None if begun is None else begun.name,
                "compared_with": str(loaded.path.absolute()),
                "script": found.value,
                "script_from": _plain(maker),
                "native": plan_json(native),
                "moved": [
                    asdict(move) | {"counts": move in moved.counting}
                    for move in (*moved.counting, *moved.undone, *(move for move, _ in moved.void))
                ],
                "differs": differs,
                "decisions": None if counts is None else asdict(counts),
            }
        )
    else:
        for line in plan_lines(native):
            click.echo(line)
    if differs:
        raise click.exceptions.Exit(1)


def _applied(last: Entry | None, taken_back: Sequence[Entry]) -> Iterator[str]:
    """Yield the apply in effect, and the later applies that were rolled back."""
    if last is not None:
        yield f"Applied {last.at} from {last.policy}"
    elif not taken_back:
        yield "Never applied"
    else:
        yield "Nothing is applied: every apply was rolled back"
    if taken_back:
        those = ", ".join(entry.at for entry in taken_back)
        applies = "the apply" if len(taken_back) == 1 else f"{len(taken_back)} applies"
        yield f"Rolled back later by `policy rollback`: {applies} of {those}"


def _standing(
    found: InForce,
    maker: Entry | None,
    taken_back: Sequence[Entry],
    loaded: LoadedPolicy,
    file: Path | None,
) -> str:
    """Describe how the script differs from the file, and the remedy."""
    path = loaded.path
    apply = apply_command(file)
    if found is InForce.SAME:
        return f"matches {path}"
    if found is InForce.MISSING:
        return f"missing: `{apply}` installs it"
    if found is InForce.FOREIGN:
        return f"not slurm-gpu's: `{apply}` prints the remedy"
    if taken_back and maker is None and _has_no_rules(loaded.script):
        return f"accepts every job, and differs from {path}: `{apply}` installs the file"
    if taken_back and (maker is None or Path(maker.policy) == path.absolute()):
        return f"restored by a rollback, and differs from {path}: `{apply}` installs the file"
    if maker is None:
        return f"differs from {path}, and from the last apply on this host: `{apply}` installs the file"
    if Path(maker.policy) != path.absolute():
        return (
            f"applied from {maker.policy}, and differs from {path}: `{apply}` installs {path}, "
            f"and `slurm-gpu policy status {maker.policy}` compares the script with {maker.policy}"
        )
    return (
        f"differs from {path}: the file, members of its groups, GPUs of the cluster, or slurm-gpu changed "
        f"since it was applied; `{apply}` installs it again"
    )


def _has_no_rules(script: Path) -> bool:
    """Return whether the script accepts every job, as it does after the first apply is rolled back."""
    try:
        policy = read_policy_in_force(script)
    except OutsideError:
        return False
    return policy is not None and not policy.rules


def _decisions(run_dir: Path | None, script: Path) -> DecisionCounts | None:
    """Count the decisions in the log of `run_dir`, or else in the log that the script names."""
    if run_dir is not None:
        return count_decisions(run_dir)
    try:
        policy = read_policy_in_force(script)
    except OutsideError:
        return None  # a script edited by hand may be unreadable; status reports the difference
    if policy is None or policy.decisions_log is None:
        return None
    return count_decisions(policy.decisions_log.parent)


def _plain(entry: Entry | None) -> dict[str, str] | None:
    return None if entry is None else {"at": entry.name, "policy": entry.policy}


def _print_moves(moved: Moved) -> None:
    """Print the limits that `policy adjust` moved."""
    for move in moved.counting:
        click.echo(f"Moved by policy adjust {_day(move.at_s)}: {move} ({move.why})")
    for move in moved.undone:
        click.echo(f"Rolled back {_day(move.at_s if move.undone_s is None else move.undone_s)}: {move}")
    for move, why in moved.void:
        click.echo(f"No longer in effect: {move}; {why}")


def _day(at_s: int) -> str:
    return f"{minute(at_s, dt.UTC)} UTC"


def _print_counts(counts: DecisionCounts, since_s: int) -> None:
    failed = f", {counts.failed} in which a rule failed" if counts.failed else ""
    click.echo(
        f"Decisions since {_second(since_s)} UTC: "
        f"{counts.accepted} accepted, {counts.refused} refused{failed}"
    )
    if counts.rules:
        columns = ("RULE", "REFUSED", "CHANGED", "ADVISED", "OBSERVED", "ERRORS")
        rows = [
            (rule, *map(str, (one.refused, one.changed, one.advised, one.observed, one.errors)))
            for rule, one in counts.rules.items()
        ]
        print_table(columns, rows, right=columns[1:])
    for rule, one in counts.rules.items():
        if one.errors_from_s is not None and one.errors_to_s is not None:
            click.echo(
                f"Rule {rule} was not checked in {counted(one.errors, 'decision')} from "
                f"{_second(one.errors_from_s)} to {_second(one.errors_to_s)} UTC"
            )


def _second(at_s: int) -> str:
    return f"{dt.datetime.fromtimestamp(at_s, dt.UTC):%Y-%m-%d %H:%M:%S}"
