"""Whether what `policy apply` did is whole, and still so."""

from __future__ import annotations

from collections.abc import Iterator

from slurm_gpu.cli.doctor.checks.finding import CheckResult, DoctorContext, fail, may_read, ok, skipped, warn
from slurm_gpu.policy.journal import ApplyJournal, ApplyState
from slurm_gpu.policy.native.difference import drift
from slurm_gpu.policy.native.plan import read_accounting
from slurm_gpu.text.units import counted

_STATUS = "slurm-gpu policy status lists each; slurm-gpu policy apply sets them again"


def applied(at: DoctorContext) -> Iterator[CheckResult]:
    """Check that no apply was interrupted, and that limits are as the last one set them."""
    if not at.is_controller:
        yield skipped("policies are applied on the controller, and this host is none")
        return
    if not at.policy_state.exists():
        yield skipped(f"no policy was ever applied here: there is no {at.policy_state}")
        return
    if not may_read(at.policy_state):
        yield skipped(f"{at.policy_state} is SlurmUser's; run doctor as root")
        return
    journal = ApplyJournal(at.policy_state)
    begun = journal.newest(ApplyState.BEGUN)
    if begun is not None:
        yield fail(
            f"the apply of {begun.at} ({begun.policy}) was cut short, unless it is still running",
            "slurm-gpu policy rollback undoes it",
        )
    owned = journal.owned(at.settings.cluster)
    changed = drift(read_accounting(at.site.limits, at.settings.cluster).limits(), owned) if owned else ()
    if changed:
        more = f", and {len(changed) - 1} more" if len(changed) > 1 else ""
        yield warn(f"Slurm's own limits are not as they were applied: {changed[0]}{more}", _STATUS)
    elif begun is None:
        yield ok(f"{counted(len(owned), 'limit')} of Slurm's own, as applied")
