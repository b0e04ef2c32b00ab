"""A plan continues between views, even if GPUs are added or removed and starts are delayed."""

from __future__ import annotations

from slurm_gpu.colocation.planner import Member, PlannerGpu, PlannerView
from slurm_gpu.colocation.planners.annealing import Annealing
from slurm_gpu.colocation.simulation.known_belief import KnownBelief
from tests.colocation.building import pairs, profile

LONERS = pairs([[0.3]], profile("loner", (1000.0, 100.0)))
WAITING = tuple(Member(job, 0, 100.0 + 30 * job) for job in range(6))


def busy(name: str, job: int, left_s: float) -> PlannerGpu:
    return PlannerGpu((Member(job, 0, left_s, 1000.0 - left_s),), name)


def test_the_plan_of_a_gpu_is_found_by_its_name() -> None:
    planner = Annealing(KnownBelief(LONERS), evaluations=400, again=0.0)
    one, two = busy("n1/0", 100, 300.0), busy("n1/1", 101, 50.0)
    assert planner.choose(PlannerView(0.0, WAITING, (one, two))) == []
    plan = {name: list(order) for name, order in planner._plan.items()}
    assert set(plan) == {"n1/0", "n1/1"}
    assert all(plan.values())
    assert planner.choose(PlannerView(1.0, WAITING, (two, one))) == []
    assert planner._plan == plan


def test_a_start_that_was_put_off_keeps_its_place_in_the_plan() -> None:
    planner = Annealing(KnownBelief(LONERS), evaluations=400, again=0.0)
    idle, other = PlannerGpu((), "n1/0"), busy("n1/1", 101, 50.0)
    (first,) = planner.choose(PlannerView(0.0, WAITING, (idle, other)))
    plan = {name: list(order) for name, order in planner._plan.items()}
    # The start did not happen: it is decided again, and no job counts as ended.
    assert planner.choose(PlannerView(1.0, WAITING, (idle, other))) == [first]
    assert planner._plan == plan
    assert planner._history.ended == 0
    gone = tuple(one for one in WAITING if one.job != first.jobs[0])
    running = PlannerGpu((WAITING[first.jobs[0]],), "n1/0")
    assert planner.choose(PlannerView(2.0, gone, (running, other))) == []
    assert planner._plan["n1/0"] == plan["n1/0"][1:]
