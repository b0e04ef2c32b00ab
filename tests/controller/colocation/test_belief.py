"""The speeds, memory and lost time in the store determine whether jobs may share a GPU."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.colocation.planner import Member
from slurm_gpu.controller.colocation.belief import StoreBelief
from slurm_gpu.controller.colocation.store import ColocationStore

CAP = 1.1


def test_a_key_whose_use_of_the_gpu_is_unknown_is_not_tried() -> None:
    store = ColocationStore()
    store.ran_alone("a", 5000, 0.2, 0.4)
    store.ran_alone("unknown", 5000, 0.2, None)
    belief = StoreBelief(store, 2, CAP)
    members = [Member(at, belief.index(key), 5000.0) for at, key in enumerate(("a", "unknown", "a"))]
    assert not belief.may_share(members[:2])
    assert belief.may_share(members[::2])


@given(
    speeds=st.lists(st.floats(0.5, 1.0), min_size=2, max_size=2),
    alone_s=st.lists(st.floats(10, 5000), min_size=2, max_size=2),
    done=st.lists(st.floats(0, 1), min_size=2, max_size=2),
    before=st.lists(st.floats(1 / CAP, 1.0), min_size=2, max_size=2),
)
def test_decisions_about_measured_pairs_depend_only_on_their_speeds(
    speeds: list[float], alone_s: list[float], done: list[float], before: list[float]
) -> None:
    """No job has lost more time than the cap permits for the work that the job has done."""
    store = ColocationStore()
    for key, other, speed, seconds in (("a", "b", speeds[0], alone_s[0]), ("b", "a", speeds[1], alone_s[1])):
        store.ran_alone(key, seconds, 0.2, 0.9)
        store.ran_with(key, other, speed)
    belief = StoreBelief(store, 2, CAP)
    members = [
        Member(
            at,
            belief.index(key),
            max(alone_s[at] * (1 - done[at]), 1.0),
            alone_s[at] * done[at],
            ran_s=alone_s[at] * done[at] / before[at],
        )
        for at, key in enumerate("ab")
    ]
    assert belief.may_share(members) == all(1 / speed <= CAP for speed in speeds)


def test_lost_time_limits_measured_pairs_too() -> None:
    store = ColocationStore()
    for key, other in ("ab", "ba"):
        store.ran_alone(key, 1000, 0.2, 0.4)
        store.ran_with(key, other, 0.92)
    belief = StoreBelief(store, 2, CAP)
    running, waiting = Member(0, belief.index("a"), 900.0, 100.0), Member(1, belief.index("b"), 1000.0)
    assert belief.may_share([running, waiting])
    assert not belief.may_share([dataclasses.replace(running, ran_s=150.0), waiting])
