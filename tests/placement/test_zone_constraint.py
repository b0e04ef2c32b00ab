"""What a user asks for survives: behind zones it means the same, and comes back to the letter."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.placement.zone_constraint import can_be_joined, is_zone_name, joined, taken_apart

ZONES = ("zone1", "zone2", "rack-7.b")
FEATURES = ("a100", "h100", "nvlink", "ib:4x", "gen=2", "x.y-z+1")

plain = st.builds(
    lambda sign, names: sign.join(names),
    st.sampled_from("&|"),
    st.lists(st.sampled_from(FEATURES), min_size=1, max_size=4),
)
anything = st.text(alphabet="ab1&|()[]*, !zone", max_size=24) | plain
zone_lists = st.lists(st.sampled_from(ZONES), min_size=1, unique=True)


@given(own=st.just("") | plain, zones=zone_lists)
def test_a_constraint_comes_back_to_the_letter(own: str, zones: list[str]) -> None:
    found = taken_apart(joined(own, zones))
    assert found is not None
    assert (found.own, list(found.zones)) == (own, zones)


@given(own=anything, zones=zone_lists)
def test_what_can_be_joined_can_be_taken_apart_and_all_else_is_refused(own: str, zones: list[str]) -> None:
    if can_be_joined(own, zones):
        found = taken_apart(joined(own, zones))
        assert found is not None
        assert found.own == own
    else:
        with pytest.raises(ValueError, match="cannot have"):
            joined(own, zones)


@given(constraint=anything)
def test_what_is_taken_apart_is_what_would_be_written(constraint: str) -> None:
    found = taken_apart(constraint)
    assert found is None or joined(found.own, found.zones) == constraint


@pytest.mark.parametrize(
    "own", ["[a|b]", "a*2", "(a|b)", "(a|b)&c", "a&b|c", "a,b", "a b", "zone1", "a&zone2", "a&", "|a", "!a"]
)
def test_what_slurm_might_read_otherwise_is_left_alone(own: str) -> None:
    assert not can_be_joined(own, ZONES)


@pytest.mark.parametrize(
    "constraint", ["", "a", "[a|b]&c", "(a)&[zone1]", "((a|b))&[zone1]", "a&[b*2]", "a&[]"]
)
def test_what_was_not_written_here_is_known_as_such(constraint: str) -> None:
    assert taken_apart(constraint) is None


@pytest.mark.parametrize("name", ["-", "-z1", ".", ".z1", "", "z 1", "z|1", "[z1]", "z1\n"])
def test_what_has_a_meaning_of_its_own_names_no_zone(name: str) -> None:
    """`-` is no zone at all in a snapshot."""
    assert not is_zone_name(name)
