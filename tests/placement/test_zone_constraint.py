"""A user's constraint keeps its meaning with zones appended, and is recovered verbatim."""

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
def test_a_constraint_is_recovered_verbatim(own: str, zones: list[str]) -> None:
    found = taken_apart(joined(own, zones))
    assert found is not None
    assert (found.own, list(found.zones)) == (own, zones)


@given(own=anything, zones=zone_lists)
def test_joined_constraints_can_be_taken_apart_and_others_are_refused(own: str, zones: list[str]) -> None:
    if can_be_joined(own, zones):
        found = taken_apart(joined(own, zones))
        assert found is not None
        assert found.own == own
    else:
        with pytest.raises(ValueError, match="cannot be appended"):
            joined(own, zones)


@given(constraint=anything)
def test_parts_join_to_the_same_constraint(constraint: str) -> None:
    found = taken_apart(constraint)
    assert found is None or joined(found.own, found.zones) == constraint


@pytest.mark.parametrize(
    "own", ["[a|b]", "a*2", "(a|b)", "(a|b)&c", "a&b|c", "a,b", "a b", "zone1", "a&zone2", "a&", "|a", "!a"]
)
def test_ambiguous_constraints_are_left_alone(own: str) -> None:
    assert not can_be_joined(own, ZONES)


@pytest.mark.parametrize(
    "constraint", ["", "a", "[a|b]&c", "(a)&[zone1]", "((a|b))&[zone1]", "a&[b*2]", "a&[]"]
)
def test_constraints_of_other_forms_are_recognised(constraint: str) -> None:
    assert taken_apart(constraint) is None


@pytest.mark.parametrize("name", ["-", "-z1", ".", ".z1", "", "z 1", "z|1", "[z1]", "z1\n"])
def test_names_with_a_special_meaning_are_no_zone_names(name: str) -> None:
    """`-` means no zone in a snapshot."""
    assert not is_zone_name(name)
