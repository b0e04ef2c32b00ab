"""`slurm-gpu policy adjust`: move a limit one step within the bounds of `adjust:`, or undo the last move."""

from __future__ import annotations

import datetime as dt
import os
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slurm_gpu.cli.output import remark
from slurm_gpu.cli.policy.apply import apply
from slurm_gpu.cli.policy.file import apply_command, existing_policy, file_argument
from slurm_gpu.cli.policy.loaded import LoadedPolicy, owned_by_policy, run_option, state_option
from slurm_gpu.cli.progress import status_line
from slurm_gpu.cli.site import CommandSite, with_site
from slurm_gpu.errors import OutsideError, UsageError
from slurm_gpu.policy.journal import ApplyJournal
from slurm_gpu.policy.language.adjustments import Move, Moved, read_moves, write_moves
from slurm_gpu.policy.language.check import load_moved
from slurm_gpu.policy.lua.in_force import InForce
from slurm_gpu.policy.lua.peers import is_backup, this_host

if TYPE_CHECKING:  # numpy and httpx are not needed if there is nothing to adjust
    from slurm_gpu.reports.recommend.rules import RuleLimit
    from slurm_gpu.reports.recommend.search import Findings

_DAY_S = 86400
_PERIOD_S = 30 * _DAY_S
# Minimum period with unchanged limits from which the model can predict the effect of another step.
_LEAST_S = 7 * _DAY_S


@click.command(short_help="Move one limit of FILE by one step within the bounds of `adjust:`.")
@file_argument
@click.option("--dry-run", is_flag=True, help="Print the move without making it.")
@click.option("--undo", is_flag=True, help="Undo the last move, and exclude that limit from further moves.")
@state_option
@run_option
@with_site
def adjust(
    site: CommandSite, file: Path | None, dry_run: bool, undo: bool, state_dir: Path, run_dir: Path
) -> None:
    """Move one limit of FILE by one step within the bounds of `adjust:`, if this shortens waits.

    The move is chosen as in `report recommend`, but only limits with bounds are considered.
    FILE is not edited: the move is written to a file next to FILE, activated by `policy apply`, and recorded
    in slurm-gpudbd. Run this command on slurmctld's host; slurm-gpu-adjust.timer runs it weekly. If the
    active policy differs from FILE, no limit is moved and the exit code is 1.
    """
    if dry_run and undo:
        raise UsageError("--dry-run and --undo are mutually exclusive")
    path = existing_policy(site, file)
    moved, _ = load_moved(path)
    if not undo and not any(rule.adjust for rule in moved.policy.rules):
        click.echo(f"No rule of {path} has `adjust:`, so no limit is moved")
        return
    settings = site.slurm.settings()
    if is_backup(settings, this_host()):
        click.echo("This is a backup host of slurmctld: limits are adjusted on the primary host")
        return
    if not dry_run and os.geteuid() not in (0, settings.slurm_user_uid):
        raise UsageError(
            f"policy adjust applies limits: run it as root or {settings.slurm_user} (SlurmUser), or "
            "try it with --dry-run"
        )
    if dry_run:
        _require_in_force(site, file, state_dir)
        move, _ = _find_move(site, file, path, moved)
        if move is not None:
            click.echo(f"Would move: {move} ({move.why})")
        return
    mover = _Mover(site, file, path, state_dir, run_dir)
    # Two runs at once would overwrite each other's move.
    with ApplyJournal(state_dir, settings.slurm_user_uid).adjust_lock():
        moved, _ = load_moved(path)
        _require_in_force(site, file, state_dir)
        if undo:
            mover.undo(moved)
            return
        move, evidence = _find_move(site, file, path, moved)
        if move is not None:
            mover.carry_out(move, evidence)


def _require_in_force(site: CommandSite, file: Path | None, state_dir: Path) -> None:
    """Exit with code 1 if the active policy differs from FILE: an adjustment must apply only its own step."""
    loaded = LoadedPolicy.read(site, file)
    native = loaded.native(site, owned_by_policy(ApplyJournal(state_dir), loaded.settings.cluster))
    if loaded.in_force() is not InForce.SAME or native.difference.steps or native.new_qos:
        remark(
            f"the active policy differs from {loaded.path}, so no limit is moved: `slurm-gpu policy status` "
            f"shows the differences, and `{apply_command(file)}` activates the file"
        )
        raise click.exceptions.Exit(1)


def _find_move(
    site: CommandSite, file: Path | None, path: Path, moved: Moved
) -> tuple[Move | None, dict[str, Any]]:
    """Return the step that shortens waits the most, and all findings of the search as JSON."""
    from slurm_gpu.cli.policy.limit_search import findings_json, replayed

    now_s = int(site.wall())
    last_s = max((move.at_s for move in moved.counting), default=0)
    if now_s - last_s < _LEAST_S:
        click.echo(
            f"The last move was {(now_s - last_s) / _DAY_S:.1f} days ago: no limit is moved until "
            f"{_LEAST_S // _DAY_S} days after it"
        )
        return None, {}
    since = dt.datetime.fromtimestamp(max(now_s - _PERIOD_S, last_s), dt.UTC).isoformat()
    with status_line() as report:
        found = replayed(site, file, since, None, report)
        findings = found.search.findings(_bounds(moved), most_changes=1, progress=report)
    for text in (*found.remarks, *findings.refused):
        remark(text)
    if not findings.changes:
        tried = len(findings.trials)
        click.echo(f"No limit is moved: {_why_none(tried, findings)}")
        return None, {}
    change = findings.changes[0]
    why = (
        f"according to the model, the mean wait of all jobs falls from {_mean_h(findings.before)} to "
        f"{_mean_h(findings.after)} h, and no group waits much longer"
    )
    move = Move(change.limit.rule, change.limit.key, change.old, change.new, now_s, why)
    return move, findings_json(found, findings)


def _bounds(moved: Moved) -> dict[RuleLimit, tuple[int, int]]:
    from slurm_gpu.reports.recommend.rules import RuleLimit

    left_alone = {(move.rule, move.limit) for move in moved.undone}
    return {
        RuleLimit(rule.id, one.key): (one.low, one.high)
        for rule in moved.policy.rules
        for one in rule.adjust
        if (rule.id, one.key) not in left_alone
    }


def _why_none(tried: int, findings: Findings) -> str:
    if tried:
        return f"no step shortens waits enough without making a group wait longer (steps tried: {tried})"
    if findings.refused:
        return "the model does not reproduce the recorded waits, or too few waits are recorded"
    return "every limit with `adjust:` was rolled back once, and such limits are not moved again"


def _mean_h(waits: Any) -> str:
    from slurm_gpu.reports.recommend.waits import ALL

    return f"{waits[ALL].mean_h:.2f}"


class _Mover:
    """Record moves in slurm-gpudbd, and apply them as `policy apply` does."""

    def __init__(
        self, site: CommandSite, file: Path | None, path: Path, state_dir: Path, run_dir: Path
    ) -> None:
        self._site, self._file, self._path = site, file, path
        self._state_dir, self._run_dir = state_dir, run_dir

    def carry_out(self, move: Move, evidence: dict[str, Any]) -> None:
        """Record and apply one move."""
        self._record("limit moved", move, move.old, move.new, move.why, evidence)
        before = read_moves(self._path)
        try:
            self._put_into_force(before, (*self._still_counting(before), move))
        except BaseException as error:
            try:
                self._record("limit not moved", move, move.new, move.old, f"it could not be applied: {error}")
            except OutsideError as second:
                remark(f"warning: the failure could not be recorded in slurm-gpudbd: {second}")
            raise
        click.echo(f"Moved: {move} ({move.why})")
        click.echo("`slurm-gpu policy adjust --undo` undoes this")

    def undo(self, moved: Moved) -> None:
        """Undo the last move, even if slurm-gpudbd is unavailable."""
        if not moved.counting:
            raise UsageError(f"nothing to undo: no adjustment of a limit of {self._path} is in effect")
        last, now_s = moved.counting[-1], int(self._site.wall())
        before = read_moves(self._path)
        kept = [move for move in before if move != last]
        self._put_into_force(before, (*kept, replace(last, undone_s=now_s)))
        try:
            self._record("limit moved back", last, last.new, last.old, "undone with policy adjust --undo")
        except OutsideError as error:
            remark(f"warning: the change could not be recorded in slurm-gpudbd: {error}")
        click.echo(f"Rolled back: {last}; the limit is not moved again until policy.yaml changes its value")

    def _still_counting(self, moves: Sequence[Move]) -> tuple[Move, ...]:
        void = {move for move, _ in load_moved(self._path)[0].void}
        return tuple(move for move in moves if move not in void)

    def _put_into_force(self, before: Sequence[Move], after: Sequence[Move]) -> None:
        write_moves(self._path, after)
        try:
            click.get_current_context().invoke(
                apply,
                file=self._file,
                dry_run=False,
                replace=False,
                lua_only=False,
                state_dir=self._state_dir,
                run_dir=self._run_dir,
            )
        except BaseException:
            write_moves(self._path, before)
            raise

    def _record(
        self, action: str, move: Move, old: int, new: int, why: str, evidence: dict[str, Any] | None = None
    ) -> None:
        from slurm_gpu.policy.language.limit_value import value_text
        from slurm_gpu.wire.answers.runs import AuditEvent

        with self._site.database() as database:
            database.send_audit_events(
                [
                    AuditEvent(
                        id=uuid.uuid4().hex,
                        at_s=int(self._site.wall()),
                        host=this_host(),
                        action=action,
                        subject=f"{move.limit} of {move.rule}",
                        old=value_text(move.limit, old),
                        new=value_text(move.limit, new),
                        why=why,
                        evidence=evidence,
                    )
                ]
            )
