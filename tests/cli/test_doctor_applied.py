"""`slurm-gpu doctor` reports an interrupted apply, and limits that changed after an apply."""

from slurm_gpu.cli.doctor.checks.finding import DoctorContext
from slurm_gpu.cli.doctor.checks.slurm import journal
from slurm_gpu.policy.journal import ApplyJournal, ApplyState, Entry
from slurm_gpu.policy.native.difference import Owned
from tests.cli.installation import Installation, levels, worst
from tests.policy.limitstore import MemoryStore, account, limit, of

LIMIT = Owned(of("vision"), limit("MaxTRES_gpu"), 4, None, "size")


def applied(installed: Installation, state: ApplyState, *owned: Owned, found: int = 4) -> DoctorContext:
    """Return a controller with an apply in this state, whose slurmdbd has the limit `found`."""
    at = installed.at()
    written = ApplyJournal(at.policy_state)
    with written.lock():
        entry = Entry(cluster=at.settings.cluster, policy="/etc/slurm-gpu/policy.yaml", owned=owned)
        written.mark(written.begin(entry), state)
    at.site.connect_limits = lambda: MemoryStore([account("vision", MaxTRES_gpu=found)])
    return at


def test_without_an_apply_the_check_is_skipped(installed: Installation):
    assert levels(journal.applied(installed.at())) == ["skipped"]


def test_unchanged_limits_are_ok(installed: Installation):
    assert levels(journal.applied(applied(installed, ApplyState.DONE, LIMIT))) == ["ok"]


def test_an_interrupted_apply_is_reported(installed: Installation):
    finding = worst(journal.applied(applied(installed, ApplyState.BEGUN)))
    assert "(/etc/slurm-gpu/policy.yaml) was interrupted" in finding.message
    assert finding.remedy == "if it is not running, run slurm-gpu policy rollback to undo it"


def test_a_limit_changed_by_hand_is_reported(installed: Installation):
    finding = worst(journal.applied(applied(installed, ApplyState.DONE, LIMIT, found=7)))
    assert finding.message == (
        "Slurm's own limits differ from the applied ones: "
        "account vision: MaxTRES=gres/gpu=4 (rule size) was set to 7 by hand"
    )


def test_other_hosts_are_skipped(installed: Installation):
    at = applied(installed, ApplyState.BEGUN)
    at.host = "n1"
    assert levels(journal.applied(at)) == ["skipped"]
