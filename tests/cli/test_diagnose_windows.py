"""`slurm-gpu diagnose ID` by windows: nodes are asked for them, and what hosts did is told beside."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from slurm_gpu.client.database_client import NodeWindow
from slurm_gpu.wire.answers.node_minutes import NodeMinutes
from tests.cli.conftest import START_S, CommandLine
from tests.cli.diagnosed import BEGINS_S, a_job, running, windows_of, windows_of_a_throttled_gpu
from tests.diagnose.training import Training


def test_the_window_counts_where_something_is_found_in_it(slurm_gpu: CommandLine):
    a_job(slurm_gpu, Training(n_bins=200, width_s=16.0))
    slurm_gpu.database.window_list = windows_of_a_throttled_gpu()
    assert slurm_gpu("diagnose", "17") == 1
    assert "slow or failing (throttled)" in slurm_gpu.out
    assert "who       n1 GPU 5\n" in slurm_gpu.out
    assert slurm_gpu.database.windows_asked == 1  # of a job that is over what was kept is all


def minutes_of(infiniband: dict[str, float]) -> list[NodeMinutes]:
    """Each ten seconds as much over InfiniBand, from the middle of the ten minutes on as given."""
    at_s = tuple(float(BEGINS_S + 10 * n) for n in range(1, 61))
    return [
        NodeMinutes(
            node=node,
            at_s=at_s,
            series={"infiniband": tuple(2e9 * (1.0 if at < BEGINS_S + 300 else share) for at in at_s)},
        )
        for node, share in infiniband.items()
    ]


def test_windows_that_were_sent_seconds_apart_are_judged_up_to_the_first(slurm_gpu: CommandLine):
    """Of a young job the seconds in which one node has told more are much of its time."""
    a_job(slurm_gpu, Training(n_bins=200, width_s=16.0), final=False)
    slurm_gpu.database.runs = [structs.replace(run, end_s=None) for run in slurm_gpu.database.runs]
    longer, shorter = windows_of(Training(n_bins=70)), windows_of(Training(n_bins=40))
    slurm_gpu.database.window_list = longer[:8] + shorter[8:]
    assert slurm_gpu("diagnose", "17", "--json") == 0
    verdict = json.loads(slurm_gpu.out)["verdict"]
    assert (verdict["cause"], verdict["coverage"]) == ("healthy", 1.0)


class TestHosts:
    """What its nodes do as a whole, which slurm-gpudbd knows of a job that runs."""

    @pytest.fixture
    def well(self, slurm_gpu: CommandLine) -> CommandLine:
        """A job that runs on two nodes, of whose GPUs nothing is to be said."""
        a_job(slurm_gpu, Training(n_bins=200, width_s=16.0), final=False)
        slurm_gpu.database.runs = [structs.replace(run, end_s=None) for run in slurm_gpu.database.runs]
        slurm_gpu.database.window_list = windows_of(Training())
        assert slurm_gpu("diagnose", "17") == 0
        return slurm_gpu

    def test_a_node_whose_infiniband_carries_less_since_is_named(self, well: CommandLine):
        well.database.host_list = minutes_of({"n1": 1.0, "n2": 0.6})
        assert well("diagnose", "17", "--json") == 1
        verdict = json.loads(well.out)["verdict"]
        assert (verdict["cause"], verdict["kind"]) == ("communication delay", "infiniband")
        assert verdict["nodes"] == ["n2"]
        assert verdict["since_s"] == pytest.approx(BEGINS_S + 300, abs=30)

    def test_of_some_of_its_nodes_alone_nothing_follows(self, well: CommandLine):
        well.database.host_list = minutes_of({"n2": 0.1})
        assert well("diagnose", "17") == 0
        well.database.host_list = minutes_of({"n1": 1.0, "n2": 0.6, "n3": 1.0})  # it gave n3 back
        assert well("diagnose", "17") == 1


def test_a_job_that_was_well_was_so_for_its_whole_course(slurm_gpu: CommandLine):
    """Where its last minutes were not asked for, minutes before say less."""
    a_job(slurm_gpu, Training(n_bins=200, width_s=16.0))
    slurm_gpu.database.window_list = windows_of(Training())
    for after, told in ((60, "by its last minutes at full resolution"), (2600, "by its whole timeline")):
        slurm_gpu.database.runs = [
            structs.replace(run, end_s=BEGINS_S + 600 + after) for run in slurm_gpu.database.runs
        ]
        assert slurm_gpu("diagnose", "17") == 0
        assert f"Job 17: healthy, confidence 80%\n  {told}" in slurm_gpu.out


def test_a_window_that_was_asked_for_long_before_the_end_is_not_called_its_last_minutes(
    slurm_gpu: CommandLine, tmp_path: Path
):
    a_job(slurm_gpu, Training(n_bins=200, width_s=16.0))
    slurm_gpu.database.window_list = windows_of_a_throttled_gpu()
    for after, told in ((60, "its last minutes at full resolution"), (3600, "that end 1h00m before its end")):
        runs = [structs.replace(run, end_s=BEGINS_S + 600 + after) for run in slurm_gpu.database.runs]
        slurm_gpu.database.runs = runs
        assert slurm_gpu("diagnose", "17", "--html", str(tmp_path / "page.html")) == 1
        assert f"{told}: 10m00s, 100% coverage" in slurm_gpu.out
        assert f"{told}: 10" in (tmp_path / "page.html").read_text("utf-8")


def test_all_nodes_of_a_job_that_runs_are_waited_for_once_they_are_asked(slurm_gpu: CommandLine):
    running(slurm_gpu, 4.0, 10.0)
    assert slurm_gpu("diagnose", "17") == 1
    assert "by its last minutes at full resolution" in slurm_gpu.out
    assert "slow or failing (throttled)" in slurm_gpu.out
    assert slurm_gpu.err == "Its nodes are asked for the last ten minutes, which takes up to 80 s\n"
    slurm_gpu("diagnose", "17")
    assert slurm_gpu.err == ""  # it is there


def test_what_a_node_told_is_kept_until_the_others_have(slurm_gpu: CommandLine):
    """Windows are forgotten after 20 s: those of two nodes may never be there at once."""
    running(slurm_gpu, 0.0, 1000.0)
    begin = slurm_gpu.site.wall()

    def in_turn(windows: list[NodeWindow]) -> list[NodeWindow]:
        node = "n1" if slurm_gpu.site.wall() < begin + 8 else "n2"
        return [item for item in windows if item.node == node]

    slurm_gpu.database.windows_of = in_turn
    assert slurm_gpu("diagnose", "17") == 1
    assert "slow or failing (throttled)" in slurm_gpu.out
    assert "no data" not in slurm_gpu.out
    assert slurm_gpu.database.windows_asked == 5


def test_nodes_that_do_not_answer_are_not_waited_for_for_ever(slurm_gpu: CommandLine):
    running(slurm_gpu, 1000.0, 1000.0)
    assert slurm_gpu("diagnose", "17") == 0
    assert "by its whole timeline" in slurm_gpu.out
    assert 40 < slurm_gpu.database.windows_asked < 46


def gave_back(slurm_gpu: CommandLine, *, end_s: int | None, state: str) -> None:
    """n2 ended ten minutes after the start, and the rest goes on, or went on for an hour."""
    a_job(slurm_gpu, Training(n_bins=200, width_s=16.0), final=end_s is not None)
    (run,), (course,) = slurm_gpu.database.runs, slurm_gpu.database.courses
    devices = tuple(
        replace(record, final=True, last_s=START_S + 600) if record.node == "n2" else record
        for record in run.devices or ()
    )
    slurm_gpu.database.runs = [structs.replace(run, devices=devices, end_s=end_s, state=state)]
    kept = tuple(item for item in course.devices or () if item.node == "n1")
    slurm_gpu.database.courses = [replace(course, devices=kept)]


@pytest.mark.parametrize(("end_s", "state"), [(None, "RUNNING"), (START_S + 3600, "CANCELLED")])
def test_nodes_that_a_job_gave_back_are_not_missed(slurm_gpu: CommandLine, end_s: int | None, state: str):
    gave_back(slurm_gpu, end_s=end_s, state=state)
    assert slurm_gpu("diagnose", "17", "--groups", "pp=2") == 0
    assert "Job 17: healthy" in slurm_gpu.out
    assert "no data" not in slurm_gpu.out


def test_a_node_that_a_job_died_with_is_missed(slurm_gpu: CommandLine):
    gave_back(slurm_gpu, end_s=START_S + 3600, state="NODE_FAIL")
    assert slurm_gpu("diagnose", "17") == 0
    assert "8 GPUs on n2: no data" in slurm_gpu.out


def test_windows_of_another_task_of_its_array_are_not_the_jobs(slurm_gpu: CommandLine):
    """It had the same GPUs before."""
    a_job(slurm_gpu, Training(n_bins=200, width_s=16.0))
    slurm_gpu.database.runs = [structs.replace(run, job_id=19, id="17_2") for run in slurm_gpu.database.runs]
    slurm_gpu.database.courses = [replace(course, job_id=19) for course in slurm_gpu.database.courses]
    slurm_gpu.database.window_list = windows_of_a_throttled_gpu()
    assert slurm_gpu("diagnose", "17_2") == 0
    assert "Job 17_2: healthy" in slurm_gpu.out
