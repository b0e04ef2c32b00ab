"""Failed nodes of a reservation are replaced, and the new nodes are reported."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurm_gpu.controller.reservations.reconciler import EVERY_S
from slurm_gpu.controller.reservations.replacement import OUT_S
from slurm_gpu.slurm.reservations import SlurmReservation
from slurm_gpu.wire.answers.reservation import ReservationState
from tests.controller.fakes import NOON_S
from tests.controller.reservations.building import JOB, ROW, UNUSED_S, WINDOW_S, Killed, Site


@pytest.mark.parametrize(
    ("down", "after"),
    [
        (("n2",), "n[1,3]"),  # in the same zone
        (("n2", "n3", "n4"), "n[1,5]"),
        (("n1", "n2"), "n[3-4]"),
        (("n3",), "n[1-2]"),  # not one of its nodes
        (("n2", "n3", "n4", "n5", "n6"), "n[1-2]"),  # no other nodes are left
    ],
)
def test_others_take_the_place_of_nodes_that_went_down(down: tuple[str, ...], after: str) -> None:
    site = Site(replace(ROW, start_s=NOON_S + 7200, end_s=NOON_S + 7200 + WINDOW_S))
    del site.slurm.there["maint"]
    site.run_for()
    site.goes_down(*down)
    site.run_for(OUT_S - EVERY_S)
    assert site.row.nodes == "n[1-2]"  # the node may only be rebooting
    site.run_for(5 * EVERY_S)
    assert (site.row.nodes, site.row.error) == (after, None)
    assert site.slurm.there["sg_3"].nodes == after
    site.goes_down()
    site.run_for(5 * EVERY_S)
    assert site.row.nodes == site.slurm.there["sg_3"].nodes == after
    assert site.acted() == ["reservation made", *["reservation moved"] * (after != "n[1-2]")]


def test_nodes_that_are_anothers_take_no_ones_place() -> None:
    start_s = NOON_S + 7200
    first = replace(ROW, start_s=start_s, end_s=start_s + WINDOW_S)
    site = Site(first, replace(first, id=4, nodes="n[3,5]"))
    backup = SlurmReservation("backup", start_s + 60, start_s + 120, "n4", frozenset({"root"}))
    site.slurm.there = {"backup": backup}
    site.run_for()
    site.goes_down("n2")
    site.run_for(OUT_S + 5 * EVERY_S)
    assert site.row.nodes == "n[1,6]"


def test_while_the_training_runs_in_it_nothing_is_moved() -> None:
    site = Site()
    site.run_for(60)
    site.slurm.jobs = [JOB]
    site.goes_down("n2")
    site.run_for(OUT_S * 2)
    assert site.row.nodes == "n[1-2]"


def test_a_kill_between_slurm_and_the_table_is_repaired() -> None:
    site = Site(replace(ROW, start_s=NOON_S + 7200, end_s=NOON_S + 7200 + WINDOW_S))
    del site.slurm.there["maint"]
    site.run_for()
    site.goes_down("n2")
    site.slurm.kills_after = "move"
    with pytest.raises(Killed):
        site.run_for(OUT_S * 2)
    assert (site.row.nodes, site.slurm.there["sg_3"].nodes) == ("n[1-2]", "n[1,3]")
    site.restart()
    site.run_for()
    assert (site.row.nodes, site.row.error) == ("n[1,3]", None)


def test_the_new_nodes_are_reported_also_after_an_outage_of_slurm_gpudbd() -> None:
    site = Site()
    del site.slurm.there["maint"]
    site.slurm.jobs = [replace(JOB, state="PENDING", reason="Resources", start_s=None, nodes="")]
    site.run_for()
    site.goes_down("n2")
    site.down = True
    site.run_for(OUT_S + 5 * EVERY_S)
    site.goes_down()
    site.slurm.jobs = [replace(JOB, nodes="n[1,3]")]
    site.run_for(60)
    site.down = False
    site.run_for()
    assert (site.row.nodes, site.row.state, site.row.first_job_id) == ("n[1,3]", ReservationState.ACTIVE, 17)


def test_a_refused_report_is_repeated_and_acted_on_once() -> None:
    """slurm-gpudbd refuses a report, for example, if the clock of slurm-gpuctld is ahead."""
    site = Site()
    site.takes_nothing = True
    site.run_for(60 + UNUSED_S + 10 * EVERY_S)
    assert site.row.state is ReservationState.APPROVED
    assert "sg_3" in site.slurm.there
    assert site.acted() == ["reservation made", "reservation released"]


def test_a_failed_replacement_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    site = Site()
    site.run_for()
    site.slurm.refuses = "Requested nodes are busy"
    site.goes_down("n2")
    site.run_for(OUT_S + 5 * EVERY_S)
    assert "reservation sg_3 lacks n2: " in caplog.text
