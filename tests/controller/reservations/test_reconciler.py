"""Slurm has the reservations that were approved and no others, whatever is killed or lost in between."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.controller.reservations.reconciler import EVERY_S
from slurm_gpu.controller.reservations.rows import exchanged
from slurm_gpu.slurm.reservations import SlurmReservation
from slurm_gpu.wire.answers.reservation import Report, Reservation, ReservationState
from tests.controller.fakes import NOON_S
from tests.controller.reservations.building import JOB, ROW, SITES_OWN, UNUSED_S, WINDOW_S, Killed, Site


def test_what_is_approved_is_made_for_its_user_on_its_nodes() -> None:
    site = Site()
    site.turns()
    made = site.slurm.there["sg_3"]
    assert (made.start_s, made.end_s, made.nodes) == (ROW.start_s, ROW.end_s, "n[1-2]")
    assert (made.users, made.accounts) == ({"alice"}, {"vision"})
    assert site.acted() == ["reservation made"]
    assert re.fullmatch(r"n\[1-2\] from 20\S+T\d\d:\d\dZ to 20\S+Z", site.told[0].new or "")
    assert site.row.state is ReservationState.APPROVED
    site.turns(60)
    assert site.row.state is ReservationState.ACTIVE


def test_it_is_not_made_for_another_uid_that_has_the_name_by_now() -> None:
    site = Site(replace(ROW, uid=1001))
    site.uids["alice"] = 2001
    site.turns()
    assert "sg_3" not in site.slurm.there
    assert site.rows[3].error == "alice has uid 2001 now, but had uid 1001 when this was requested"
    site.uids["alice"] = 1001
    site.turns()
    site.turns()
    assert "sg_3" in site.slurm.there
    assert site.rows[3].error is None


def test_where_jobs_would_still_run_it_is_made_all_the_same_and_that_is_said() -> None:
    site = Site()
    site.slurm.busy = True
    site.turns()
    assert site.slurm.ignored == [True]
    site.acts.close()
    assert site.told[0].why == "it was approved; jobs may still run on its nodes when it starts"


def test_what_slurm_refuses_is_told_and_tried_again() -> None:
    site = Site()
    site.slurm.refuses = "Requested reservation overlaps with another reservation"
    site.turns()
    assert site.row.error == "Requested reservation overlaps with another reservation"
    site.slurm.refuses = None
    site.turns(3 * EVERY_S)
    assert site.row.error is None
    assert "sg_3" in site.slurm.there


def test_the_first_job_is_kept_with_its_start_and_a_used_one_is_not_released() -> None:
    site = Site()
    site.turns(60)
    site.slurm.jobs = [JOB, replace(JOB, job_id=16, start_s=NOON_S + 65, state="COMPLETED")]
    site.turns(UNUSED_S * 2)
    assert (site.row.first_job_id, site.row.first_start_s, site.row.state) == (
        16,
        NOON_S + 65,
        ReservationState.ACTIVE,
    )


@pytest.mark.parametrize(
    ("changes", "keeps"),
    [
        ({}, True),
        ({"reservation": ""}, True),  # by magnetism
        ({"account": "nlp"}, False),
        ({"partitions": frozenset({"cpu"})}, False),
        ({"time_limit_s": 7200}, False),  # never fits the window
        ({"time_limit_s": None}, False),
        ({"reason": "JobHeldUser"}, False),
        ({"eligible_s": None}, False),  # a dependency
        ({"eligible_s": NOON_S + 10**6}, False),  # --begin
        ({"reservation": "maint"}, False),
        ({"reason": "Priority"}, True),
        ({"reason": "(QOSMaxGRESPerUser)"}, False),
        ({"reason": "AssocGrpGRES"}, False),
    ],
)
def test_a_job_that_could_start_in_it_keeps_it(changes: dict[str, object], keeps: bool) -> None:
    site = Site()
    waiting = replace(JOB, state="PENDING", reason="Resources", reservation="sg_3", start_s=None, nodes="")
    site.slurm.jobs = [replace(waiting, **changes)]  # type: ignore[arg-type]
    site.turns(60 + UNUSED_S + 5 * EVERY_S)
    assert site.row.state is (ReservationState.ACTIVE if keeps else ReservationState.RELEASED)


def test_whom_an_operator_let_in_by_hand_uses_it_as_well() -> None:
    site = Site()
    site.turns(60)
    there = site.slurm.there["sg_3"]
    site.slurm.there["sg_3"] = replace(there, users=frozenset({"alice", "bob"}))
    site.slurm.jobs = [replace(JOB, user="bob")]
    site.turns(UNUSED_S * 2)
    assert (site.row.state, site.row.error) == (ReservationState.ACTIVE, None)
    site.slurm.jobs = [replace(JOB, user="bob", state="PENDING", reservation="", start_s=None, nodes="")]
    site.turns(UNUSED_S * 1.5)
    assert site.row.state is ReservationState.ACTIVE
    site.slurm.jobs = []
    site.rows[3] = replace(site.row, state=ReservationState.CANCELLED)
    site.turns()
    assert "sg_3" not in site.slurm.there


def test_a_job_that_cannot_start_in_it_does_not_keep_it_for_ever() -> None:
    """It asks for more than there is, say: Slurm tells no reason by which that could be known."""
    site = Site()
    site.slurm.jobs = [replace(JOB, state="PENDING", reason="Resources", start_s=None, nodes="")]
    site.turns(60 + 2 * UNUSED_S - 3 * EVERY_S)
    assert site.row.state is ReservationState.ACTIVE
    site.turns(6 * EVERY_S)
    assert (site.row.state, site.row.ended_why) == (
        ReservationState.RELEASED,
        "job 17 did not start in 20m, with all nodes free: it cannot",
    )


def test_a_job_that_waits_for_a_node_that_is_down_keeps_it() -> None:
    site = Site()
    site.slurm.jobs = [replace(JOB, state="PENDING", reason="Resources", start_s=None, nodes="")]
    site.goes_down("n2", "n3", "n4", "n5", "n6")
    site.turns(60 + 3 * UNUSED_S)
    assert site.row.state is ReservationState.ACTIVE


def test_a_job_that_was_cancelled_while_it_waited_is_not_the_first() -> None:
    """Slurm tells the second in which it was cancelled as its start."""
    site = Site()
    gone = replace(JOB, job_id=16, state="CANCELLED", start_s=NOON_S + 20, nodes="")
    site.turns(60)
    site.slurm.jobs = [gone]
    site.turns()
    assert site.row.first_start_s is None
    site.slurm.jobs = [gone, JOB]
    site.turns()
    assert site.row.first_job_id == JOB.job_id


def test_one_that_nobody_uses_is_given_up_and_taken_away() -> None:
    site = Site()
    site.turns(60 + UNUSED_S - EVERY_S)
    assert site.row.state is ReservationState.ACTIVE
    site.turns(5 * EVERY_S)
    assert (site.row.state, site.row.ended_why) == (ReservationState.RELEASED, "unused for 10m")
    assert site.slurm.there == {"maint": SITES_OWN}
    assert site.acted() == ["reservation made", "reservation released", "reservation removed"]


def test_when_the_training_is_over_the_rest_is_given_up() -> None:
    site = Site()
    site.turns(60)
    site.slurm.jobs = [JOB]
    site.turns(300)
    site.slurm.jobs = [replace(JOB, state="COMPLETED")]
    site.turns(UNUSED_S + 5 * EVERY_S)
    assert site.row.ended_why == "no job for 10m: the training is over"
    assert "sg_3" not in site.slurm.there


def test_an_outage_of_slurmctld_is_not_time_that_nobody_used() -> None:
    site = Site()
    site.turns(60)
    site.slurm.away = True
    site.turns(UNUSED_S)
    site.slurm.away = False
    site.turns(UNUSED_S - 3 * EVERY_S)
    assert site.row.state is ReservationState.ACTIVE


def test_what_was_cancelled_is_deleted_once_no_job_is_in_it() -> None:
    site = Site()
    site.turns(60)
    site.slurm.jobs = [JOB]
    site.rows[3] = replace(site.row, state=ReservationState.CANCELLED)
    site.turns()
    assert "sg_3" in site.slurm.there
    site.slurm.jobs = []
    site.turns(3 * EVERY_S)
    assert "sg_3" not in site.slurm.there


@pytest.mark.parametrize("refuses", [None, "Invalid flags specified"])
def test_while_a_job_keeps_one_that_is_over_it_draws_no_others_and_that_is_said_once(
    caplog: pytest.LogCaptureFixture, refuses: str | None
) -> None:
    caplog.set_level("INFO")
    site = Site()
    site.turns(60)
    site.slurm.refuses = refuses
    site.slurm.jobs = [JOB]
    site.rows[3] = replace(site.row, state=ReservationState.CANCELLED)
    site.turns(10 * EVERY_S)
    assert site.slurm.no_longer_magnetic == ["sg_3"]
    assert caplog.text.count("sg_3 is cancelled, but still in Slurm") == 1
    assert caplog.text.count("sg_3 still attracts jobs: ") == (refuses is not None)
    assert "not looked after" not in caplog.text


def test_the_sites_own_are_left_alone_even_by_our_name() -> None:
    site = Site(replace(ROW, state=ReservationState.CANCELLED), replace(ROW, id=4))
    others = [
        SlurmReservation("sg_3", NOON_S, NOON_S + 9, "n[1-2]", frozenset({"bob"})),
        SlurmReservation("sg_4", NOON_S, NOON_S + 9, "n[3-4]", frozenset({"alice"})),
        SlurmReservation("sg_77", NOON_S, NOON_S + 9, "n[1-2]", frozenset({"alice"})),  # no such row
    ]
    site.slurm.there |= {one.name: one for one in others}
    before = dict(site.slurm.there)
    site.turns(60)
    assert site.slurm.there == before
    assert site.rows[4].error == "Slurm has another reservation called sg_4"


def test_what_slurm_lost_is_made_again_for_what_is_left_of_it() -> None:
    site = Site()
    site.turns(120)
    site.slurm.there = {}
    site.turns()
    assert site.slurm.there["sg_3"].start_s >= NOON_S + 120
    assert site.slurm.there["sg_3"].end_s == ROW.end_s
    site.acts.close()
    assert site.told[-1].why == "Slurm had lost it"


def test_its_end_is_told_and_whether_anybody_used_it() -> None:
    site = Site()
    site.slurm.jobs = [JOB]
    site.turns(WINDOW_S + 60 + 3 * EVERY_S)
    assert (site.row.state, site.row.ended_why) == (ReservationState.ENDED, "its window is over")
    assert site.row.was_made
    del site.slurm.there["sg_3"]  # as Slurm does by itself
    site.turns()
    assert "sg_3" not in site.slurm.there


def test_one_that_slurm_never_had_is_not_called_unused_alone() -> None:
    site = Site()
    site.slurm.refuses = "Invalid node name specified"
    site.turns(WINDOW_S + 60 + 3 * EVERY_S)
    assert (site.row.state, site.row.ended_why) == (
        ReservationState.ENDED,
        "its window is over, and it was not used; it was not in Slurm: Invalid node name specified",
    )
    assert not site.row.was_made


def test_as_many_as_there_may_be_are_told_in_pieces_that_slurm_gpudbd_takes() -> None:
    asked: list[tuple[int, int]] = []

    class Database:
        def tell_reservations(self, reports: Sequence[Report]) -> None:
            asked.append((len(reports), 0))

        def reservations(self, ids: Sequence[int]) -> Sequence[Reservation]:
            asked.append((0, len(ids)))
            return [replace(ROW, id=number) for number in (1, *ids)]

    reports = [Report(id=number, at_s=NOON_S, state=ReservationState.ACTIVE) for number in range(250)]
    rows = exchanged(Database(), reports, range(1, 701))
    assert asked == [(100, 0), (100, 0), (50, 0), (0, 500), (0, 200)]
    assert [row.id for row in rows] == list(range(1, 701))


def test_beside_a_slurmctld_that_is_not_in_charge_nothing_is_done() -> None:
    site = Site()
    site.in_charge = False
    site.turns(60)
    assert list(site.slurm.there) == ["maint"]


def test_while_slurm_gpudbd_is_away_what_is_known_goes_on_and_the_outcome_is_told_later() -> None:
    site = Site()
    site.turns(60)
    site.away = True
    site.slurm.jobs = [JOB]
    site.slurm.there = {}
    site.turns(60)
    assert "sg_3" in site.slurm.there
    assert site.row.first_start_s is None
    site.away = False
    site.turns(3 * EVERY_S)
    assert site.row.first_start_s == JOB.start_s


def test_without_any_answer_of_slurm_gpudbd_nothing_is_touched() -> None:
    site = Site()
    site.slurm.there["sg_3"] = SlurmReservation("sg_3", NOON_S, NOON_S + 9, "n[1-2]", frozenset({"alice"}))
    site.away = True
    site.turns(60)
    assert set(site.slurm.there) == {"maint", "sg_3"}
    assert site.acted() == []


STEPS = st.lists(
    st.sampled_from(
        ["turn", "kill", "kill after create", "kill after delete", "lose", "cancel", "away", "back", "hour"]
    ),
    max_size=12,
)


@given(STEPS)
def test_whatever_is_killed_or_lost_slurm_ends_with_what_is_promised(steps: list[str]) -> None:
    rows = [replace(ROW, id=number, nodes=f"n{number}", n_nodes=1) for number in range(1, 4)]
    rows.append(replace(ROW, id=9, start_s=NOON_S + 86400, end_s=NOON_S + 2 * 86400))
    site = Site(*rows)

    def turn(seconds: float) -> None:
        try:
            site.turns(seconds)
        except Killed:
            site.restart()

    for step in steps:
        if step == "kill":
            site.restart()
        elif step.startswith("kill after"):
            site.slurm.kills_after = step.split()[-1]
        elif step == "lose":
            site.slurm.there = {"maint": SITES_OWN}
        elif step == "cancel":
            first = next((row for row in site.rows.values() if row.state.is_promised), None)
            if first is not None:
                site.rows[first.id] = replace(first, state=ReservationState.CANCELLED)
        elif step in ("away", "back"):
            site.away = step == "away"
        turn(3600 if step == "hour" else 3 * EVERY_S)
    site.away, site.slurm.kills_after = False, None
    turn(5 * EVERY_S)
    promised = {row.name for row in site.rows.values() if row.state.is_promised}
    assert set(site.slurm.there) == {"maint", *promised}
    assert "sg_9" in promised or any(step == "cancel" for step in steps)
