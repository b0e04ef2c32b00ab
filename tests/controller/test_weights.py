"""slurm-gpuctld sets the differing weights of managed nodes soon after changes."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Any

import pytest

from slurm_gpu.controller.placement.weight_plan import RunningOnNode, running_on
from slurm_gpu.controller.placement.weights import CYCLE_S
from slurm_gpu.controller.queue.amounts import CountingFacts
from slurm_gpu.errors import SlurmError, UsageError
from slurm_gpu.slurm.queue import CountedJob, JobPhase

from .fakes import make_job
from .weight_site import ALL_ONE, PACKED, Site


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_the_fullest_comes_first_and_nodes_without_gpus_are_left_alone(site: Site) -> None:
    site.start()
    assert site.weights == PACKED
    assert site.slurm.set_calls == [(3, ["n2"]), (4, ["n3"]), (5, ["n1"]), (6, ["n4"])]


def test_only_what_changed_is_set_and_nodes_of_one_weight_in_one_call(site: Site) -> None:
    site.start()
    site.slurm.set_calls.clear()
    site.run_cycle()
    assert site.slurm.set_calls == []
    site.busy({"n1": 0, "n2": 4, "n3": 0})
    site.run_cycle()
    assert site.slurm.set_calls == [(2, ["n2"]), (6, ["n1", "n3"])]


@pytest.mark.parametrize("mode", ["observe", "advise"])
def test_without_enforce_nothing_is_set_and_the_table_shows_what_would_be(
    site: Site, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    site.start(mode)
    site.run_cycle()
    assert site.slurm.set_calls == []
    assert not site.memory.exists()
    assert {line.name: line.target for line in site.table().nodes} == {
        name: weight for name, weight in PACKED.items() if name != "c1"
    }
    typed = "scontrol update NodeName=n2 Weight=3; scontrol update NodeName=n3 Weight=4; "
    assert (typed in caplog.text) == (mode == "advise")
    assert site.stop() == []


def test_the_table_shows_state_and_actions(site: Site) -> None:
    site.start()
    table = site.table()
    assert (table.mode, table.in_charge, table.whole_free, table.by_hand) == ("enforce", True, 1, [])
    lines = {line.name: line for line in table.nodes}
    assert (lines["n2"].busy, lines["n2"].gpus, lines["n2"].zone, lines["n3"].zone) == (3, 4, "zone1", None)
    assert (lines["n2"].weight, lines["n2"].target, lines["n2"].site, lines["n2"].ours) == (3, 3, 1, True)
    assert (lines["n4"].whole, lines["n2"].whole) == (True, False)
    last = table.last_action
    assert last is not None
    assert (last.action, last.nodes, last.calls) == ("weights set", 4, 4)
    assert not table.is_stale(site.clock.wall())
    assert table.is_stale(site.clock.wall() + 3 * CYCLE_S + 1)


def test_weights_lost_in_a_reconfiguration_are_set_again_and_audited(site: Site) -> None:
    site.start()
    site.slurm.forget_weights()
    site.run_cycle()
    assert site.weights == PACKED
    assert site.stop() == ["node weights taken over", "node weights set again", "node weights restored"]


def test_a_weight_set_by_hand_is_left_alone_and_logged_once(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.start()
    site.slurm.set_weight(["n3"], 500)
    site.run_cycle()
    site.run_cycle()
    assert site.weights == PACKED | {"n3": 500}
    assert caplog.text.count("Weight of n3 was set by hand") == 1
    assert site.table().by_hand == ["n3"]
    site.slurm.set_weight(["n3"], 1)  # the command that doctor shows
    site.run_cycle()
    assert site.weights == PACKED
    site.slurm.set_weight(["n3"], 500)
    site.stop()
    assert site.weights == ALL_ONE | {"n3": 500}


def test_a_node_that_takes_no_jobs_is_not_set_until_it_does(site: Site) -> None:
    site.busy({"n3": 2}, state="mixed+drain")
    site.start()
    assert site.weights == PACKED | {"n3": 1}
    site.busy({"n3": 2})
    site.run_cycle()
    assert site.weights == PACKED


def test_nodes_of_other_partitions_are_none_of_ours(site: Site) -> None:
    site.busy({"n4": 0}, partitions=["private"])
    site.start(partitions=("gpu",))
    assert site.weights == PACKED | {"n4": 1}


def test_it_runs_when_jobs_start_or_end_and_otherwise_once_per_cycle(site: Site) -> None:
    site.start()
    site.run_cycle(3.0)
    site.slurm.asked.clear()
    site.run_cycle(1.0)
    assert site.slurm.asked == []
    site.running += 1
    site.run_cycle(1.0)
    assert site.slurm.asked == ["nodes"]
    site.run_cycle(3.0)
    assert site.slurm.asked == ["nodes"] * 2  # once more, when epilogs have run
    site.run_cycle(2.0)
    assert site.slurm.asked == ["nodes"] * 2
    site.run_cycle(CYCLE_S)
    assert site.slurm.asked == ["nodes"] * 3


def test_a_hostlist_that_cannot_be_read_is_wrong_usage(site: Site) -> None:
    with pytest.raises(UsageError, match=r"slurm-gpu\.yaml: placement: nodes: hostlist"):
        site.start(nodes="n[1-")


def test_a_failed_call_leaves_the_rest_for_the_next_cycle(site: Site) -> None:
    own, calls = site.slurm.set_weight, 0

    def set_weight(nodes: Any, weight: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise SlurmError("scontrol update failed")
        own(nodes, weight)

    site.slurm.set_weight = set_weight  # type: ignore[method-assign]
    site.start()
    assert site.weights != PACKED
    site.run_cycle()
    assert site.weights == PACKED


def test_cores_count_and_a_node_without_any_is_not_called_fuller_than_it_is(site: Site) -> None:
    # n1 has three free GPUs but no free cores, so it accepts no jobs and is never whole.
    site.busy({"n1": 1})
    site.slurm.node_list = [
        dataclasses.replace(node, cpus_allocated=32) if node.name == "n1" else node
        for node in site.slurm.node_list
    ]
    site.start()
    assert site.weights == PACKED | {"n1": 2}


@pytest.mark.parametrize(
    ("cpus", "first", "second", "useful"), [(2, "n2", "n3", 2.0), (12, "n3", "n2", 0.06)]
)
def test_gpus_without_the_cores_that_recent_jobs_need_come_first(
    site: Site, cpus: int, first: str, second: str, useful: float
) -> None:
    # n2 has one free GPU and 16 free cores; n3 has two free GPUs and 10 free cores.
    taken = {"n2": 16, "n3": 22}
    site.slurm.node_list = [
        dataclasses.replace(node, cpus_allocated=taken.get(node.name, node.cpus_allocated))
        for node in site.slurm.node_list
    ]
    tres = f"cpu={cpus},node=1,gres/gpu=1"
    site.mix.update([make_job(number, n_cpus=cpus, tres=tres) for number in range(999)], CountingFacts())
    site.start()
    assert site.weights[first] < site.weights[second] < site.weights["n1"] < site.weights["n4"]
    table = site.table()
    assert (table.mix[0].gpus, table.mix[0].cpus) == (1, cpus)
    reported = {line.name: line.useful for line in table.nodes}
    assert reported["n2"] == pytest.approx(1.0, abs=0.1)
    assert reported["n3"] == pytest.approx(useful, abs=0.1)


def test_the_mix_is_kept_when_it_ends(site: Site) -> None:
    site.mix.update([make_job(1)], CountingFacts())
    site.start()
    (site.directory / "jobmix.json").unlink()
    site.stop()
    assert (site.directory / "jobmix.json").exists()


def test_before_any_job_was_seen_the_order_is_by_fullness(site: Site) -> None:
    site.start()
    assert site.weights == PACKED
    assert site.table().mix == ()
    assert {line.useful for line in site.table().nodes} == {None}


def runs_on(nodes: str, hours: float | None, site: Site) -> CountedJob:
    end_s = None if hours is None else int(site.clock.wall() + hours * 3600)
    return make_job(len(nodes), nodes=nodes, end_s=end_s, phase=JobPhase.RUNNING)


def test_equally_full_nodes_with_longer_jobs_come_first(site: Site) -> None:
    site.busy({"n1": 2, "n2": 2, "n3": 2, "n4": 0})
    site.jobs = [runs_on("n1", 1, site), runs_on("n[1-2]", 10, site), runs_on("n3", None, site)]
    site.start()
    weights = site.weights
    assert weights["n3"] < weights["n1"] == weights["n2"] < weights["n4"]
    site.slurm.set_calls.clear()
    site.jobs = site.jobs[1:]
    site.run_cycle()
    assert site.slurm.set_calls == []
    site.run_cycle(9.5 * 3600)
    assert site.slurm.set_calls == [(site.weights["n1"], ["n1", "n2"])]
    assert weights["n1"] < site.weights["n1"] < site.weights["n4"]


def test_a_node_with_a_single_job_already_has_the_weight_of_a_whole_node(site: Site) -> None:
    site.busy({"n1": 4, "n2": 4, "n3": 1, "n4": 0})
    site.jobs = [runs_on("n1", 1, site), runs_on("n2", 1, site), runs_on("n[2-3]", 1, site)]
    site.start()
    assert site.weights["n1"] == site.weights["n4"]
    assert site.weights["n2"] < site.weights["n3"]
    site.busy({"n1": 0, "n2": 4, "n3": 1, "n4": 0})
    site.slurm.set_calls.clear()
    site.run_cycle()
    assert site.slurm.set_calls == []  # jobs that start before the next cycle therefore leave n1 whole


def test_levels_stay_those_of_timed_jobs_while_slurmctld_does_not_answer(site: Site) -> None:
    site.jobs = [runs_on("n[1-3]", 5, site)]
    site.start()
    weights = site.weights
    site.jobs = None
    site.run_cycle()
    assert site.weights == weights


def test_jobs_by_node_are_as_long_as_the_longest_and_hostlists_that_are_none_are_passed_over(
    site: Site,
) -> None:
    now = site.clock.wall()
    jobs = [
        runs_on("n[1-2]", 1, site),
        runs_on("n2", 2, site),
        runs_on("n[", 3, site),
        make_job(9, phase=JobPhase.ENDED, nodes="n1"),
        make_job(10, phase=JobPhase.PENDING, nodes=""),
    ]
    assert running_on(jobs) == {
        "n1": RunningOnNode(1, int(now + 3600)),
        "n2": RunningOnNode(2, int(now + 7200)),
    }
