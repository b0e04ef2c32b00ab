"""Slurm has exactly the approved reservations, even after a kill or a loss of state."""

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


def test_an_approved_reservation_is_created_for_its_user_on_its_nodes() -> None:
    site = Site()
    site.run_for()
    made = site.slurm.there["sg_3"]
    assert (made.start_s, made.end_s, made.nodes) == (ROW.start_s, ROW.end_s, "n[1-2]")
    assert (made.users, made.accounts) == ({"alice"}, {"vision"})
    assert site.acted() == ["reservation made"]
    assert re.fullmatch(r"n\[1-2\] from 20\S+T\d\d:\d\dZ to 20\S+Z", site.reported[0].new or "")
    assert site.row.state is ReservationState.APPROVED
    site.run_for(60)
    assert site.row.state is ReservationState.ACTIVE


def test_a_reservation_is_not_created_for_another_uid_with_the_same_name() -> None:
    site = Site(replace(ROW, uid=1001))
    site.uids["alice"] = 2001
    site.run_for()
    assert "sg_3" not in site.slurm.there
    assert site.rows[3].error == "alice has uid 2001 now, but had uid 1001 when the reservation was requested"
    site.uids["alice"] = 1001
    site.run_for()
    site.run_for()
    assert "sg_3" in site.slurm.there
    assert site.rows[3].error is None


def test_a_reservation_over_running_jobs_is_created_with_a_remark() -> None:
    site = Site()
    site.slurm.busy = True
    site.run_for()
    assert site.slurm.ignored == [True]
    site.acts.close()
    assert site.reported[0].why == "it was approved; jobs may still run on its nodes when it starts"


def test_a_refused_reservation_is_reported_and_retried() -> None:
    site = Site()
    site.slurm.refuses = "Requested reservation overlaps with another reservation"
    site.run_for()
    assert site.row.error == "Requested reservation overlaps with another reservation"
    site.slurm.refuses = None
    site.run_for(3 * EVERY_S)
    assert site.row.error is None
    assert "sg_3" in site.slurm.there


def test_the_first_job_is_kept_with_its_start_and_a_used_one_is_not_released() -> None:
    site = Site()
    site.run_for(60)
    site.slurm.jobs = [JOB, replace(JOB, job_id=16, start_s=NOON_S + 65, state="COMPLETED")]
    site.run_for(UNUSED_S * 2)
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
    site.run_for(60 + UNUSED_S + 5 * EVERY_S)
    assert site.row.state is (ReservationState.ACTIVE if keeps else ReservationState.RELEASED)


def test_users_added_by_an_operator_count() -> None:
    site = Site()
    site.run_for(60)
    there = site.slurm.there["sg_3"]
    site.slurm.there["sg_3"] = replace(there, users=frozenset({"alice", "bob"}))
    site.slurm.jobs = [replace(JOB, user="bob")]
    site.run_for(UNUSED_S * 2)
    assert (site.row.state, site.row.error) == (ReservationState.ACTIVE, None)
    site.slurm.jobs = [replace(JOB, user="bob", state="PENDING", reservation="", start_s=None, nodes="")]
    site.run_for(UNUSED_S * 1.5)
    assert site.row.state is ReservationState.ACTIVE
    site.slurm.jobs = []
    site.rows[3] = replace(site.row, state=ReservationState.CANCELLED)
    site.run_for()
    assert "sg_3" not in site.slurm.there


def test_a_job_that_cannot_start_does_not_keep_its_reservation() -> None:
    """For example, the job may request too much; Slurm's reason does not show this."""
    site = Site()
    site.slurm.jobs = [replace(JOB, state="PENDING", reason="Resources", start_s=None, nodes="")]
    site.run_for(60 + 2 * UNUSED_S - 3 * EVERY_S)
    assert site.row.state is ReservationState.ACTIVE
    site.run_for(6 * EVERY_S)
    assert (site.row.state, site.row.ended_why) == (
        ReservationState.RELEASED,
        "job 17 did not start in 20m although all nodes were free",
    )


def test_a_job_that_waits_for_a_node_that_is_down_keeps_it() -> None:
    site = Site()
    site.slurm.jobs = [replace(JOB, state="PENDING", reason="Resources", start_s=None, nodes="")]
    site.goes_down("n2", "n3", "n4", "n5", "n6")
    site.run_for(60 + 3 * UNUSED_S)
    assert site.row.state is ReservationState.ACTIVE


def test_a_job_that_was_cancelled_while_it_waited_is_not_the_first() -> None:
    """Slurm reports the time of the cancellation as the job's start."""
    site = Site()
    gone = replace(JOB, job_id=16, state="CANCELLED", start_s=NOON_S + 20, nodes="")
    site.run_for(60)
    site.slurm.jobs = [gone]
    site.run_for()
    assert site.row.first_start_s is None
    site.slurm.jobs = [gone, JOB]
    site.run_for()
    assert site.row.first_job_id == JOB.job_id


def test_an_unused_reservation_is_released_and_deleted() -> None:
    site = Site()
    site.run_for(60 + UNUSED_S - EVERY_S)
    assert site.row.state is ReservationState.ACTIVE
    site.run_for(5 * EVERY_S)
    assert (site.row.state, site.row.ended_why) == (ReservationState.RELEASED, "unused for 10m")
    assert site.slurm.there == {"maint": SITES_OWN}
    assert site.acted() == ["reservation made", "reservation released", "reservation removed"]


def test_after_the_training_the_rest_is_released() -> None:
    site = Site()
    site.run_for(60)
    site.slurm.jobs = [JOB]
    site.run_for(300)
    site.slurm.jobs = [replace(JOB, state="COMPLETED")]
    site.run_for(UNUSED_S + 5 * EVERY_S)
    assert site.row.ended_why == "no job for 10m: the training is over"
    assert "sg_3" not in site.slurm.there


def test_an_outage_of_slurmctld_is_not_unused_time() -> None:
    site = Site()
    site.run_for(60)
    site.slurm.down = True
    site.run_for(UNUSED_S)
    site.slurm.down = False
    site.run_for(UNUSED_S - 3 * EVERY_S)
    assert site.row.state is ReservationState.ACTIVE


def test_a_cancelled_reservation_is_deleted_once_it_is_empty() -> None:
    site = Site()
    site.run_for(60)
    site.slurm.jobs = [JOB]
    site.rows[3] = replace(site.row, state=ReservationState.CANCELLED)
    site.run_for()
    assert "sg_3" in site.slurm.there
    site.slurm.jobs = []
    site.run_for(3 * EVERY_S)
    assert "sg_3" not in site.slurm.there


@pytest.mark.parametrize("refuses", [None, "Invalid flags specified"])
def test_an_ended_reservation_with_a_job_attracts_no_others_and_is_logged_once(
    caplog: pytest.LogCaptureFixture, refuses: str | None
) -> None:
    caplog.set_level("INFO")
    site = Site()
    site.run_for(60)
    site.slurm.refuses = refuses
    site.slurm.jobs = [JOB]
    site.rows[3] = replace(site.row, state=ReservationState.CANCELLED)
    site.run_for(10 * EVERY_S)
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
    site.run_for(60)
    assert site.slurm.there == before
    assert site.rows[4].error == "Slurm has another reservation called sg_4"


def test_a_lost_reservation_is_recreated_for_its_remaining_time() -> None:
    site = Site()
    site.run_for(120)
    site.slurm.there = {}
    site.run_for()
    assert site.slurm.there["sg_3"].start_s >= NOON_S + 120
    assert site.slurm.there["sg_3"].end_s == ROW.end_s
    site.acts.close()
    assert site.reported[-1].why == "Slurm had lost it"


def test_the_end_of_a_reservation_and_its_use_are_reported() -> None:
    site = Site()
    site.slurm.jobs = [JOB]
    site.run_for(WINDOW_S + 60 + 3 * EVERY_S)
    assert (site.row.state, site.row.ended_why) == (ReservationState.ENDED, "its window is over")
    assert site.row.was_made
    del site.slurm.there["sg_3"]  # as Slurm does by itself
    site.run_for()
    assert "sg_3" not in site.slurm.there


def test_a_reservation_that_slurm_never_had_is_not_only_called_unused() -> None:
    site = Site()
    site.slurm.refuses = "Invalid node name specified"
    site.run_for(WINDOW_S + 60 + 3 * EVERY_S)
    assert (site.row.state, site.row.ended_why) == (
        ReservationState.ENDED,
        "its window is over, and it was not used; it was not in Slurm: Invalid node name specified",
    )
    assert not site.row.was_made


def test_the_maximum_of_reports_is_sent_in_accepted_batches() -> None:
    asked: list[tuple[int, int]] = []

    class Database:
        def send_reservation_reports(self, reports: Sequence[Report]) -> None:
            asked.append((len(reports), 0))

        def reservations(self, ids: Sequence[int]) -> Sequence[Reservation]:
            asked.append((0, len(ids)))
            return [replace(ROW, id=number) for number in (1, *ids)]

    reports = [Report(id=number, at_s=NOON_S, state=ReservationState.ACTIVE) for number in range(250)]
    rows = exchanged(Database(), reports, range(1, 701))
    assert asked == [(100, 0), (100, 0), (50, 0), (0, 500), (0, 200)]
    assert [row.id for row in rows] == list(range(1, 701))


def test_next_to_an_inactive_slurmctld_nothing_is_done() -> None:
    site = Site()
    site.in_charge = False
    site.run_for(60)
    assert list(site.slurm.there) == ["maint"]


def test_during_an_outage_of_slurm_gpudbd_reservations_continue_and_are_reported_later() -> None:
    site = Site()
    site.run_for(60)
    site.down = True
    site.slurm.jobs = [JOB]
    site.slurm.there = {}
    site.run_for(60)
    assert "sg_3" in site.slurm.there
    assert site.row.first_start_s is None
    site.down = False
    site.run_for(3 * EVERY_S)
    assert site.row.first_start_s == JOB.start_s


def test_without_any_answer_of_slurm_gpudbd_nothing_is_touched() -> None:
    site = Site()
    site.slurm.there["sg_3"] = SlurmReservation("sg_3", NOON_S, NOON_S + 9, "n[1-2]", frozenset({"alice"}))
    site.down = True
    site.run_for(60)
    assert set(site.slurm.there) == {"maint", "sg_3"}
    assert site.acted() == []


STEPS = st.lists(
    st.sampled_from(
        ["cycle", "kill", "kill after create", "kill after delete", "lose", "cancel", "down", "back", "hour"]
    ),
    max_size=12,
)


@given(STEPS)
def test_after_any_kill_or_loss_slurm_has_what_is_promised(steps: list[str]) -> None:
    rows = [replace(ROW, id=number, nodes=f"n{number}", n_nodes=1) for number in range(1, 4)]
    rows.append(replace(ROW, id=9, start_s=NOON_S + 86400, end_s=NOON_S + 2 * 86400))
    site = Site(*rows)

    def run_cycle(seconds: float) -> None:
        try:
            site.run_for(seconds)
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
        elif step in ("down", "back"):
            site.down = step == "down"
        run_cycle(3600 if step == "hour" else 3 * EVERY_S)
    site.down, site.slurm.kills_after = False, None
    run_cycle(5 * EVERY_S)
    promised = {row.name for row in site.rows.values() if row.state.is_promised}
    assert set(site.slurm.there) == {"maint", *promised}
    assert "sg_9" in promised or any(step == "cancel" for step in steps)
