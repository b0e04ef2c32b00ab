"""Jobs that a reservation drew in and would cut short go on beyond it, where nobody else needs its nodes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurm_gpu.slurm.reservations import SlurmReservation
from slurm_gpu.wire.answers.reservation import ReservationState
from tests.controller.fakes import NOON_S
from tests.controller.reservations.building import JOB, ROW, WINDOW_S, Site

BEYOND = replace(JOB, time_limit_s=2 * WINDOW_S)
END_S = WINDOW_S + 60
"""Seconds after the beginning of a test at which ROW's window ends."""


def test_a_job_that_would_end_with_it_goes_on_where_nobody_needs_its_nodes() -> None:
    """Slurm looks at no time limit when it draws a job in; nor does it while the job was submitted before."""
    site = Site()
    site.turns(60)
    site.slurm.jobs = [BEYOND, replace(JOB, job_id=18), replace(BEYOND, job_id=19, time_limit_s=None)]
    site.turns(END_S - 60 - 310)
    assert site.slurm.removed_jobs == []
    site.turns(300)
    assert site.slurm.removed_jobs == [17, 19]
    assert site.acted()[1:] == ["job continues beyond its reservation"] * 2


@pytest.mark.parametrize(
    ("from_s", "until_s", "nodes", "goes_on"),
    [
        (0, 60, "n2", False),
        (0, 60, "n3", True),
        (WINDOW_S + 60, WINDOW_S + 120, "n[1-2]", True),  # by then the job is over
        (WINDOW_S - 120, WINDOW_S, "n[1-2]", False),
    ],
)
@pytest.mark.parametrize("sites_own", [True, False])
def test_a_job_ends_with_it_where_its_nodes_are_anothers_then(
    from_s: int, until_s: int, nodes: str, goes_on: bool, sites_own: bool
) -> None:
    end_s = NOON_S + END_S
    after = replace(ROW, id=4, user="bob", start_s=end_s + from_s, end_s=end_s + until_s, nodes=nodes)
    site = Site(ROW) if sites_own else Site(ROW, after)
    if sites_own:
        later = SlurmReservation("backup", end_s + from_s, end_s + until_s, nodes, frozenset({"root"}))
        site.slurm.there["backup"] = later
    site.turns(60)
    site.slurm.jobs = [BEYOND]
    site.turns(END_S - 100)
    assert site.slurm.removed_jobs == ([17] if goes_on else [])


def test_where_slurm_does_not_let_a_job_go_that_is_said(caplog: pytest.LogCaptureFixture) -> None:
    site = Site()
    site.turns(60)
    site.slurm.jobs, site.slurm.refuses = [BEYOND], "Invalid job id specified"
    site.turns(END_S - 100)
    assert "job 17 will end with sg_3: " in caplog.text
    assert site.row.state is ReservationState.ACTIVE
