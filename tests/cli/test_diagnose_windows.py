"""`slurm-gpu diagnose ID` requests windows of the job's nodes, and uses the activity of their hosts."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from slurm_gpu.client.database_client import NodeWindow
from slurm_gpu.wire.answers.node_minutes import NodeMinutes
from tests.cli.conftest import START_S, CommandLine
from tests.cli.diagnosed import BEGINS_S, add_job, add_running_job, windows_of, windows_of_a_throttled_gpu
from tests.cli.test_diagnose import make_host
from tests.diagnose.training import Training


def test_a_finding_in_the_window_decides_the_verdict(slurm_gpu: CommandLine):
    add_job(slurm_gpu, Training(n_bins=200, width_s=16.0))
    slurm_gpu.database.window_list = windows_of_a_throttled_gpu()
    assert slurm_gpu("diagnose", "17") == 1
    assert "slow or failing (throttled)" in slurm_gpu.out
    assert "who       n1 GPU 5\n" in slurm_gpu.out
    assert slurm_gpu.database.windows_asked == 1  # an ended job has only kept windows


def node_minutes(infiniband: dict[str, float]) -> list[NodeMinutes]:
    """Return ten minutes of InfiniBand traffic; in the second half, each node has only its given share."""
    at_s = tuple(float(BEGINS_S + 10 * n) for n in range(1, 61))
    return [
        NodeMinutes(
            node=node,
            at_s=at_s,
            series={"infiniband": tuple(2e9 * (1.0 if at < BEGINS_S + 300 else share) for at in at_s)},
        )
        for node, share in infiniband.items()
    ]


def test_windows_are_judged_up_to_the_end_of_the_shortest(slurm_gpu: CommandLine):
    """The seconds that only one node reported are a large part of a young job's time."""
    add_job(slurm_gpu, Training(n_bins=200, width_s=16.0), final=False)
    slurm_gpu.database.runs = [structs.replace(run, end_s=None) for run in slurm_gpu.database.runs]
    longer, shorter = windows_of(Training(n_bins=70)), windows_of(Training(n_bins=40))
    slurm_gpu.database.window_list = longer[:8] + shorter[8:]
    assert slurm_gpu("diagnose", "17", "--json") == 0
    verdict = json.loads(slurm_gpu.out)["verdict"]
    assert (verdict["cause"], verdict["coverage"]) == ("healthy", 1.0)


class TestHosts:
    """Activity of hosts that slurm-gpudbd has for a running job."""

    @pytest.fixture
    def healthy(self, slurm_gpu: CommandLine) -> CommandLine:
        """Add a running job on two nodes whose GPUs have no findings."""
        add_job(slurm_gpu, Training(n_bins=200, width_s=16.0), final=False)
        slurm_gpu.database.runs = [structs.replace(run, end_s=None) for run in slurm_gpu.database.runs]
        slurm_gpu.database.window_list = windows_of(Training())
        assert slurm_gpu("diagnose", "17") == 0
        return slurm_gpu

    def test_a_node_with_less_infiniband_traffic_is_named(self, healthy: CommandLine):
        healthy.database.host_list = node_minutes({"n1": 1.0, "n2": 0.6})
        assert healthy("diagnose", "17", "--json") == 1
        verdict = json.loads(healthy.out)["verdict"]
        assert (verdict["cause"], verdict["kind"]) == ("communication delay", "infiniband")
        assert verdict["nodes"] == ["n2"]
        assert verdict["since_s"] == pytest.approx(BEGINS_S + 300, abs=30)

    def test_traffic_of_some_nodes_gives_no_finding(self, healthy: CommandLine):
        healthy.database.host_list = node_minutes({"n2": 0.1})
        assert healthy("diagnose", "17") == 0
        healthy.database.host_list = node_minutes(
            {"n1": 1.0, "n2": 0.6, "n3": 1.0}
        )  # n3 is no longer allocated
        assert healthy("diagnose", "17") == 1


def test_a_gpu_that_differs_for_an_unknown_reason_is_not_said_to_have_the_most_work(slurm_gpu: CommandLine):
    training = Training()
    training.fetch[3, np.arange(600) % 45 < 9] = 200.0
    add_job(slurm_gpu, Training(n_bins=200, width_s=16.0))
    slurm_gpu.database.window_list = windows_of(training)
    slurm_gpu.database.run_timelines = []
    assert slurm_gpu("diagnose", "17") == 0
    assert "differ    n1 GPU 3\n" in slurm_gpu.out
    assert "no GPU is at fault" not in slurm_gpu.out


@pytest.mark.parametrize(("own_cpus", "full"), [(0.02, False), (7.5, True)])
def test_busy_cpus_of_a_node_count_if_the_job_uses_them(slurm_gpu: CommandLine, own_cpus: float, full: bool):
    """Each node has 8 CPUs of the job; other processes may use them."""
    training = Training(n_bins=200, width_s=16.0)
    training.fetch[:] = 0.7
    add_job(slurm_gpu, training, final=False)
    host = make_host(cpu_s=3600 * own_cpus)
    changes = {"end_s": None, "n_nodes": 2, "tres_allocated": {"cpu": 16.0}, "hosts": (host,)}
    slurm_gpu.database.runs = [structs.replace(run, **changes) for run in slurm_gpu.database.runs]
    late = Training()
    late.fetch[:] = 0.7
    slurm_gpu.database.window_list = windows_of(late)
    slurm_gpu.database.host_list = [
        replace(item, series={"cpu": (0.98,) * 60}) for item in node_minutes({"n1": 1.0, "n2": 1.0})
    ]
    assert slurm_gpu("diagnose", "17", "--json") == 1
    verdict = json.loads(slurm_gpu.out)["verdict"]
    assert (verdict["cause"], verdict["suspect"]) == ("input starvation", not full)
    assert any("CPUs are 98% busy" in item["text"] for item in verdict["evidence"]) is full


def test_an_ended_healthy_job_is_judged_by_its_whole_timeline(slurm_gpu: CommandLine):
    """Use the window instead if it covers the last minutes of the job."""
    add_job(slurm_gpu, Training(n_bins=200, width_s=16.0))
    slurm_gpu.database.window_list = windows_of(Training())
    for after, basis in ((60, "by its last minutes at full resolution"), (2600, "by its whole timeline")):
        slurm_gpu.database.runs = [
            structs.replace(run, end_s=BEGINS_S + 600 + after) for run in slurm_gpu.database.runs
        ]
        assert slurm_gpu("diagnose", "17") == 0
        assert f"Job 17: healthy, confidence 98%\n  {basis}" in slurm_gpu.out


def test_a_window_long_before_the_end_is_labeled_with_its_time(slurm_gpu: CommandLine, tmp_path: Path):
    add_job(slurm_gpu, Training(n_bins=200, width_s=16.0))
    slurm_gpu.database.window_list = windows_of_a_throttled_gpu()
    for after, basis in (
        (60, "its last minutes at full resolution"),
        (3600, "that end 1h00m before its end"),
    ):
        runs = [structs.replace(run, end_s=BEGINS_S + 600 + after) for run in slurm_gpu.database.runs]
        slurm_gpu.database.runs = runs
        assert slurm_gpu("diagnose", "17", "--html", str(tmp_path / "page.html")) == 1
        assert f"{basis}: 10m00s, 100% coverage" in slurm_gpu.out
        assert f"{basis}: 10" in (tmp_path / "page.html").read_text("utf-8")


def test_windows_of_all_nodes_of_a_running_job_are_awaited(slurm_gpu: CommandLine):
    add_running_job(slurm_gpu, 4.0, 10.0)
    assert slurm_gpu("diagnose", "17") == 1
    assert "by its last minutes at full resolution" in slurm_gpu.out
    assert "slow or failing (throttled)" in slurm_gpu.out
    assert (
        slurm_gpu.err == "Requesting the last ten minutes from the nodes of the job; this takes up to 80 s\n"
    )
    slurm_gpu("diagnose", "17")
    assert slurm_gpu.err == ""  # slurm-gpudbd still has the windows


def test_windows_are_kept_until_all_nodes_have_sent_theirs(slurm_gpu: CommandLine):
    """slurm-gpudbd drops windows after 20 s, so it may never have the windows of two nodes together."""
    add_running_job(slurm_gpu, 0.0, 1000.0)
    begin = slurm_gpu.site.wall()

    def in_turn(windows: list[NodeWindow]) -> list[NodeWindow]:
        node = "n1" if slurm_gpu.site.wall() < begin + 8 else "n2"
        return [item for item in windows if item.node == node]

    slurm_gpu.database.windows_of = in_turn
    assert slurm_gpu("diagnose", "17") == 1
    assert "slow or failing (throttled)" in slurm_gpu.out
    assert "no data" not in slurm_gpu.out
    assert slurm_gpu.database.windows_asked == 5


def test_waiting_for_nodes_without_an_answer_is_limited(slurm_gpu: CommandLine):
    add_running_job(slurm_gpu, 1000.0, 1000.0)
    assert slurm_gpu("diagnose", "17") == 0
    assert "by its whole timeline" in slurm_gpu.out
    assert 40 < slurm_gpu.database.windows_asked < 46


def release_n2(slurm_gpu: CommandLine, *, end_s: int | None, state: str) -> None:
    """Add a job that released n2 after ten minutes and kept its other node for longer."""
    add_job(slurm_gpu, Training(n_bins=200, width_s=16.0), final=end_s is not None)
    (run,), (run_timeline,) = slurm_gpu.database.runs, slurm_gpu.database.run_timelines
    devices = tuple(
        replace(record, final=True, last_s=START_S + 600) if record.node == "n2" else record
        for record in run.devices or ()
    )
    slurm_gpu.database.runs = [structs.replace(run, devices=devices, end_s=end_s, state=state)]
    kept = tuple(item for item in run_timeline.devices or () if item.node == "n1")
    slurm_gpu.database.run_timelines = [replace(run_timeline, devices=kept)]


@pytest.mark.parametrize(("end_s", "state"), [(None, "RUNNING"), (START_S + 3600, "CANCELLED")])
def test_released_nodes_are_not_reported_as_missing(slurm_gpu: CommandLine, end_s: int | None, state: str):
    release_n2(slurm_gpu, end_s=end_s, state=state)
    assert slurm_gpu("diagnose", "17", "--groups", "pp=2") == 0
    assert "Job 17: healthy" in slurm_gpu.out
    assert "no data" not in slurm_gpu.out


def test_a_node_that_failed_is_reported_as_missing(slurm_gpu: CommandLine):
    release_n2(slurm_gpu, end_s=START_S + 3600, state="NODE_FAIL")
    assert slurm_gpu("diagnose", "17") == 0
    assert "8 GPUs on n2: no data" in slurm_gpu.out


def test_windows_of_another_task_of_the_array_are_ignored(slurm_gpu: CommandLine):
    """Another task of the array used the same GPUs before."""
    add_job(slurm_gpu, Training(n_bins=200, width_s=16.0))
    slurm_gpu.database.runs = [structs.replace(run, job_id=19, id="17_2") for run in slurm_gpu.database.runs]
    slurm_gpu.database.run_timelines = [
        replace(run_timeline, job_id=19) for run_timeline in slurm_gpu.database.run_timelines
    ]
    slurm_gpu.database.window_list = windows_of_a_throttled_gpu()
    assert slurm_gpu("diagnose", "17_2") == 0
    assert "Job 17_2: healthy" in slurm_gpu.out
