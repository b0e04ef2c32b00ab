"""Check that `policy apply` was completed, and that nothing has changed its limits since."""

from __future__ import annotations

from collections.abc import Iterator

from slurm_gpu.cli.doctor.checks.finding import CheckResult, DoctorContext, fail, may_read, ok, skipped, warn
from slurm_gpu.policy.journal import ApplyJournal, ApplyState
from slurm_gpu.policy.native.difference import drift
from slurm_gpu.policy.native.plan import read_accounting
from slurm_gpu.text.units import counted

_STATUS = "run slurm-gpu policy status to list them, and slurm-gpu policy apply to set them again"


def applied(at: DoctorContext) -> Iterator[CheckResult]:
    """Check that no apply was interrupted, and that limits are as the last apply set them."""
    if not at.is_controller:
        yield skipped("policies are applied on hosts of slurmctld, and this host is not one")
        return
    if not at.policy_state.exists():
        yield skipped(f"no policy was ever applied on this host: {at.policy_state} does not exist")
        return
    if not may_read(at.policy_state):
        yield skipped(f"only SlurmUser may read {at.policy_state}; run doctor as root")
        return
    journal = ApplyJournal(at.policy_state)
    begun = journal.newest(ApplyState.BEGUN)
    if begun is not None:
        yield fail(
            f"the apply of {begun.at} ({begun.policy}) was interrupted, or is still running",
            "if it is not running, run slurm-gpu policy rollback to undo it",
        )
    owned = journal.owned(at.settings.cluster)
    changed = drift(read_accounting(at.site.limits, at.settings.cluster).limits(), owned) if owned else ()
    if changed:
        more = f", and {len(changed) - 1} more" if len(changed) > 1 else ""
        yield warn(f"Slurm's own limits differ from the applied ones: {changed[0]}{more}", _STATUS)
    elif begun is None:
        yield ok(f"{counted(len(owned), 'limit')} in slurmdbd as last applied")
