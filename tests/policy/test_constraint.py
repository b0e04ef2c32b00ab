"""Features in --constraint are accepted and refused as in Slurm 22.05."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.policy.explain.constraint import names_in, nodes_with

from .test_slurm_refusals import node

NODES = [
    replace(node(name, "a100", "gpu"), features=("a100", zone))
    for name, zone in (("n1", "zone1"), ("n2", "zone1"), ("n3", "zone2"), ("n4", "zone2"))
]


@pytest.mark.parametrize(
    ("constraint", "names"),
    [
        ("", []),
        ("a|b&a", ["a", "b"]),
        ("[zone1*1&zone2*12]", ["zone1", "zone2"]),
        ("(a|b),c", ["a", "b", "c"]),
        ("a & b", ["a ", " b"]),
        ("!a", ["!a"]),
    ],
)
def test_names(constraint: str, names: list[str]) -> None:
    assert names_in(constraint) == names


@pytest.mark.parametrize(
    ("constraint", "having"),
    [
        ("zone1", 2),
        ("zone1&zone2", 0),
        ("zone1,zone2", 0),
        ("zone1|zone2", 4),
        ("(zone1|zone2)&a100", 4),
        ("a100&(zone2)", 2),
        ("zone1&zone2|a100", 4),
        ("zone2|zone2&a100", 2),
        ("[zone1*1&zone2*1]", None),
        ("zone1*2", None),
        ("zone1&", None),
        ("(zone1", None),
        ("", None),
    ],
)
def test_the_number_of_nodes_with_a_feature(constraint: str, having: int | None) -> None:
    assert nodes_with(constraint, NODES) == having


@given(st.text("ab&|,()*[] 1", max_size=12))
def test_any_text_can_be_parsed(constraint: str) -> None:
    assert nodes_with(constraint, NODES) in (None, 0)
    assert all(names_in(constraint))
