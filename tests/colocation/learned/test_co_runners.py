"""The values of a group do not depend on which places its applications have, or which had them before."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.colocation.learned.co_runners import ApplicationPlaces
from slurm_gpu.colocation.simulation.known_belief import KnownBelief
from tests.colocation.building import pairs, profile

N, ROOM = 9, 5
WORLD = pairs(
    np.random.default_rng(7).uniform(0.3, 1, (N, N)).tolist(),
    *(profile(f"app{number}", (60.0, 1500.0 * (1 + number % 4))) for number in range(N)),
)


def places(room: int, cap: float = math.inf) -> ApplicationPlaces:
    belief = KnownBelief(WORLD, most_together=3, cap=cap)
    return ApplicationPlaces(belief, WORLD.profiles, WORLD.capacity_mib, room=room)


@given(
    st.lists(st.lists(st.integers(0, N - 1), min_size=1, max_size=ROOM), min_size=1, max_size=8),
    st.sampled_from((math.inf, 1.5)),
)
def test_applications_that_take_the_places_of_others_have_their_own_values(
    decisions: list[list[int]], cap: float
):
    few, all_ = places(ROOM, cap), places(N, cap)
    all_.place(range(N))
    for applications in decisions:
        here, there = few.place(applications), all_.place(applications)
        groups, same = (
            np.array([[[[a, b, c] for a in some] for b in some] for c in some])
            for some in ([*here, few.empty], [*there, all_.empty])
        )
        assert few.speeds(groups) == pytest.approx(all_.speeds(same))
        for few_asks, all_ask in (
            (few.pays, all_.pays),
            (few.may_share, all_.may_share),
            (few.fits, all_.fits),
        ):
            assert (few_asks(groups) == all_ask(same)).all()
        for few_pairs, all_pairs in ((few.pair_speed, all_.pair_speed), (few.pair_may, all_.pair_may)):
            assert few_pairs[np.ix_(here, here)] == pytest.approx(all_pairs[np.ix_(there, there)])
        assert [few.applications[one] for one in here] == applications


def test_a_new_application_is_paired_with_the_others_without_asking_again_about_them():
    class CountingBelief(KnownBelief):
        def speeds(self, applications: tuple[int, ...]) -> tuple[float, ...]:
            asked.append(applications)
            return super().speeds(applications)

        def may_share(self, members: object) -> bool:
            return True

    asked: list[tuple[int, ...]] = []
    belief = CountingBelief(WORLD, most_together=3)
    some = ApplicationPlaces(belief, WORLD.profiles, WORLD.capacity_mib, room=ROOM)
    some.place([0, 1, 2, 3, 4])
    asked.clear()
    some.place([1, 2, 8])
    assert len(asked) == ROOM + 1
    assert all(8 in applications for applications in asked)


def test_more_applications_than_places_are_rejected():
    with pytest.raises(ValueError, match="6 applications do not fit into 5 places"):
        places(ROOM).place(range(ROOM + 1))
