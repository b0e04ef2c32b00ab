"""The estimated shards of an unknown job suffice, or there is no estimate."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.colocation.profiles.library import Library
from slurm_gpu.colocation.profiles.profile import ApplicationProfile, ProfilePhase
from slurm_gpu.colocation.profiles.shards import HEADROOM, Shards, shards_of

CARD = "A100"


def shards_needed(
    memory_mib: float | None,
    *,
    application: str = "resnet",
    input_size: float | None = 64,
    there: float | None = 64,
    of: int = 8,
    capacity_mib: float = 81920,
) -> Shards:
    phases = (ProfilePhase(seconds=10, memory_mib=100), ProfilePhase(seconds=90, memory_mib=memory_mib))
    library = Library([ApplicationProfile("resnet", CARD, phases, "training", there)])
    match = library.nearest(application, CARD, kind="training", input_size=input_size)
    assert match is not None
    return shards_of(match, input_size, of, capacity_mib)


@given(st.floats(0, 200_000), st.integers(1, 64), st.floats(1000, 200_000))
def test_its_memory_fits_with_headroom_and_in_one_shard_less_it_does_not(
    memory_mib: float, of: int, capacity_mib: float
):
    peak_mib = max(memory_mib, 100)
    needed = shards_needed(memory_mib, of=of, capacity_mib=capacity_mib).needed
    assert needed is not None
    assert 1 <= needed <= of
    share_mib = capacity_mib / of
    if needed < of:
        assert needed * share_mib >= peak_mib * (1 + HEADROOM) * (1 - 1e-6)
    if needed > 1:
        assert (needed - 1) * share_mib <= peak_mib * (1 + HEADROOM) * (1 + 1e-6)


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"memory_mib": None}, "the profile lacks memory values for 90 s of 100 s"),
        ({"memory_mib": 9000.0, "application": "vgg"}, "the application has no profile"),
        ({"memory_mib": 9000.0, "input_size": 128.0}, "the profile has a smaller input, 64"),
        ({"memory_mib": 9000.0, "there": None}, "the profile's input is unknown"),
    ],
)
def test_without_a_similar_job_there_is_no_answer(asked: dict[str, object], why: str):
    assert shards_needed(**asked) == Shards(None, 8, why)  # type: ignore[arg-type]


def test_a_smaller_input_and_one_that_is_unknown_need_no_more_than_the_nearest():
    assert shards_needed(9000, input_size=16).needed == shards_needed(9000, input_size=None).needed == 2
