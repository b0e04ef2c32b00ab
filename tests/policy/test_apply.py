"""An apply or rollback takes effect completely or not at all, whatever fails during it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.errors import OutsideError, SlurmError, SlurmRefusalError
from slurm_gpu.policy import apply as force_module
from slurm_gpu.policy.apply import PolicyInstaller
from slurm_gpu.policy.journal import KEPT, ApplyJournal, ApplyState, Entry
from slurm_gpu.policy.lua.install import prepare_replacement
from slurm_gpu.policy.native.difference import LimitChange, Owned

from .limitstore import MemoryStore, account, fields, limit, of, qos, user

OLD, NEW, NO_RULES = "-- slurm-gpu old\n", "-- slurm-gpu new\n", "-- slurm-gpu no rules\n"
STEPS = (
    LimitChange(of("vision"), limit("MaxWall"), None, 60, "r1"),
    LimitChange(of("vision"), limit("MaxJobs"), 9, 4, "r1"),
    LimitChange(of("vision/alice"), limit("GrpTRES_gpu"), None, 8, "r2"),
    LimitChange(of("qos:long"), limit("Flags_deny"), None, 1, "r2"),
)
CHANGE = Entry(
    cluster="c",
    policy="/etc/slurm-gpu/policy.yaml",
    steps=STEPS,
    owned=tuple(Owned(one.entity, one.limit, one.new or 0, one.old, one.rule) for one in STEPS),
)


class Host:
    """A slurmdbd, a directory with a script, and a journal."""

    def __init__(self, root: Path, script: str | None = OLD) -> None:
        self.store = MemoryStore(
            (account("vision", MaxJobs=9), user("alice", "vision"), account("nlp", MaxJobs=1)), (qos("long"),)
        )
        self.script = root / "etc" / "job_submit.lua"
        self.script.parent.mkdir(parents=True)
        if script is not None:
            self.script.write_text(script)
        self.time = 1_000_000.0
        self.journal = ApplyJournal(root / "state", os.getuid(), lambda: self.time)
        self.installer = PolicyInstaller(self.journal, self.store, NO_RULES, lambda: self.time)
        self.root = root

    def apply(self, change: Entry = CHANGE, text: str = NEW) -> Entry:
        with self.journal.lock():
            replacement = prepare_replacement(
                text, self.script.parent, self.root / "state", owner_uid=os.getuid(), now=lambda: self.time
            )
            return self.installer.apply(change, replacement)

    def seen(self) -> object:
        text = self.script.read_text() if self.script.exists() else None
        return self.store.associations("c"), self.store.qos(), text


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_an_apply_sets_limits_and_script_and_records_them(host: Host) -> None:
    entry = host.apply()
    vision, alice, nlp = host.store.associations("c")
    assert (vision.limits, alice.limits) == (fields(MaxWall=60, MaxJobs=4), fields(GrpTRES_gpu=8))
    assert nlp.limits == fields(MaxJobs=1)
    assert host.script.read_text() == NEW
    assert host.journal.entries() == [entry]
    assert (entry.state, entry.at) == (ApplyState.DONE, "1970-01-12 13:46:40 UTC")
    assert host.journal.owned("c") == CHANGE.owned
    assert host.journal.owned("another") == ()


def test_rollback_restores_everything_and_the_script_has_a_newer_modification_time(host: Host) -> None:
    before = host.seen()
    host.apply()
    applied_at = host.script.stat().st_mtime
    back = host.installer.rollback()
    assert back is not None
    assert back.left == ()
    assert host.seen() == before
    assert host.script.stat().st_mtime == applied_at + 1
    assert host.journal.owned("c") == ()
    assert host.installer.rollback() is None


def test_a_second_rollback_undoes_the_apply_before(host: Host) -> None:
    before = host.seen()
    host.apply()
    between = host.seen()
    host.apply(
        replace(CHANGE, steps=(LimitChange(of("vision"), limit("MaxWall"), 60, None),)), NEW + "-- and more\n"
    )
    host.installer.rollback()
    assert host.seen() == between
    host.installer.rollback()
    assert host.seen() == before


@pytest.mark.parametrize("changes_despite_failure", [False, True], ids=["refused", "answer lost"])
@pytest.mark.parametrize("call", range(3))
def test_a_change_that_slurmdbd_refuses_changes_nothing(
    host: Host, call: int, changes_despite_failure: bool
) -> None:
    before = host.seen()
    host.store.fail_at, host.store.changes_despite_failure = call, changes_despite_failure
    with pytest.raises(SlurmError, match="no answer"):
        host.apply()
    assert host.seen() == before
    assert [entry.state for entry in host.journal.entries()] == [ApplyState.UNDONE]
    host.apply()
    assert host.script.read_text() == NEW


def test_if_the_script_cannot_be_installed_the_limits_are_restored(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = host.seen()

    def full(*_: object) -> None:
        raise OutsideError("No space left on device")

    monkeypatch.setattr(force_module, "install", full)
    with pytest.raises(OutsideError, match="No space left"):
        host.apply()
    assert host.seen() == before


def test_a_change_that_slurmdbd_accepts_but_does_not_make_is_an_error(host: Host) -> None:
    before = host.seen()
    missing = LimitChange(of("qos:gone"), limit("MaxWall"), None, 5, "r3")
    with pytest.raises(SlurmError, match="did not accept QOS gone: MaxWall=00:05:00"):
        host.apply(replace(CHANGE, steps=(*STEPS, missing)))
    assert host.seen() == before


class KilledError(BaseException):
    """Simulate kill -9: no code of slurm-gpu runs afterwards."""


@given(at=st.integers(0, 6))
def test_a_killed_apply_is_undone_by_the_next_command(
    tmp_path_factory: pytest.TempPathFactory, at: int
) -> None:
    host = Host(tmp_path_factory.mktemp("host"))
    before = host.seen()
    done = []

    def step(number: int) -> None:
        done.append(number)
        if len(done) > at:
            raise KilledError

    class Killed(PolicyInstaller):
        def _undo_after(self, entry: Entry, error: BaseException) -> None:
            pass

    set_limits, mark = host.store.set_limits, host.journal.mark
    host.store.set_limits = lambda *args: (step(1), set_limits(*args))[1]  # type: ignore[method-assign]
    host.journal.mark = lambda *args: (step(2), mark(*args))[1]  # type: ignore[method-assign]
    healthy, host.installer = host.installer, Killed(host.journal, host.store, NO_RULES, lambda: host.time)
    try:
        host.apply()
    except KilledError:
        host.store.set_limits, host.journal.mark = set_limits, mark  # type: ignore[method-assign]
        back = healthy.recover()
        assert back is not None
        assert back.left == ()
        assert host.seen() == before
        assert healthy.recover() is None
    else:
        assert host.script.read_text() == NEW


def test_an_apply_that_cannot_be_undone_names_rollback_and_stays_recorded(host: Host) -> None:
    before = host.seen()
    host.store.fail_at, host.store.failures = 1, 2
    with pytest.raises(OutsideError, match=r"could not be undone(.|\n)*policy rollback"):
        host.apply()
    assert host.journal.newest(ApplyState.BEGUN) is not None
    host.installer.recover()
    assert host.seen() == before


def test_a_refused_undo_is_reported_as_a_refusal_and_not_as_an_outage(host: Host) -> None:
    set_limits = host.store.set_limits

    def once(*change: Any) -> None:
        set_limits(*change)
        host.store.set_limits = refuse  # type: ignore[method-assign]

    def refuse(*_: Any) -> None:
        raise SlurmRefusalError("sacctmgr: error: QOS Preemption loop detected")

    host.store.set_limits = once  # type: ignore[method-assign]
    with pytest.raises(SlurmRefusalError, match=r"could not be undone: .*loop detected"):
        host.apply()


def test_rollback_reports_and_keeps_later_changes_by_hand(host: Host) -> None:
    host.apply()
    host.store.set_by_hand("vision", MaxJobs=50)
    host.script.write_text("-- a site's own\n")
    back = host.installer.rollback()
    assert back is not None
    assert back.left == (
        "account vision: MaxJobs=50 was set by hand after the apply, and was kept",
        f"{host.script} was changed by hand after the apply, and was kept",
    )
    assert host.store.associations("c")[0].limits == fields(MaxJobs=50)


def test_rollback_to_no_script_leaves_a_script_without_rules(tmp_path: Path) -> None:
    """slurmctld does not start without the script that its configuration names."""
    host = Host(tmp_path, script=None)
    host.apply()
    host.installer.rollback()
    assert host.script.read_text() == NO_RULES


def test_one_apply_at_a_time(host: Host) -> None:
    other = ApplyJournal(host.root / "state", os.getuid())
    with host.journal.lock(), pytest.raises(OutsideError, match="is running on this host"), other.lock():
        pass
    with other.lock():
        pass


def test_the_number_of_kept_applies_is_limited(host: Host) -> None:
    for number in range(KEPT + 5):
        host.apply(replace(CHANGE, steps=()), f"{NEW}-- {number}\n")
    names = [entry.name for entry in host.journal.entries()]
    assert len(names) == KEPT
    assert names[-1].endswith(f"Z.{KEPT + 4}")  # applies within one second are numbered in order
    host.time -= 3600
    assert host.apply(replace(CHANGE, steps=()), OLD) == host.journal.newest(ApplyState.DONE)
    assert host.journal.owned("c") == CHANGE.owned


def test_the_apply_in_force_is_kept_over_any_number_of_rolled_back_applies(host: Host) -> None:
    before = host.seen()
    host.apply()
    in_force = host.seen()
    for number in range(KEPT + 5):
        host.time += 60
        host.apply(replace(CHANGE, steps=()), f"-- slurm-gpu trial {number}\n")
        with host.journal.lock():
            host.installer.rollback()
    assert host.seen() == in_force
    assert host.journal.owned("c") == CHANGE.owned
    with host.journal.lock():
        assert host.installer.rollback() is not None
    assert host.seen() == before
    assert len(host.journal.entries()) <= KEPT + 2


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 1}', '{"version": 2}'])
def test_an_unreadable_journal_file_is_named(host: Host, text: str) -> None:
    host.apply()
    (host.root / "state" / "apply-20300101T000000Z.json").write_text(text)
    with pytest.raises(OutsideError, match=r"apply-20300101T000000Z\.json"):
        host.journal.owned("c")
