"""Hostlists expand as in Slurm, and compress to lists that expand to the same."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.text.hostlist import compress, count_tasks, expand, parse_indices


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("", []),
        ("login", ["login"]),
        ("n[1-4,7]", ["n1", "n2", "n3", "n4", "n7"]),
        ("a[08-10]b", ["a08b", "a09b", "a10b"]),
        ("r[1-2]n[1-2],login", ["r1n1", "r1n2", "r2n1", "r2n2", "login"]),
        ("n[5]", ["n5"]),
        ("n-1,n-2", ["n-1", "n-2"]),
        ("n[099-101]", ["n099", "n100", "n101"]),
    ],
)
def test_expand(expression: str, names: list[str]):
    assert expand(expression) == names


@pytest.mark.parametrize(
    ("names", "expression"),
    [
        ([], ""),
        (["login"], "login"),
        (["n3", "n1", "n2", "n7", "n1"], "n[1-3,7]"),
        (["n9", "n10", "n11"], "n[9-11]"),
        (["n09", "n10"], "n[09-10]"),
        (["n9", "n010"], "n[9,010]"),
        (["r1n1", "r1n2", "r2n1"], "r1n[1-2],r2n1"),
        (["a08b", "a09b"], "a[08-09]b"),
    ],
)
def test_compress(names: list[str], expression: str):
    assert compress(names) == expression


_NAMES = st.from_regex(re.compile(r"[a-z]{0,3}[0-9]{0,4}(-[a-z]{1,2}[0-9]{0,3})?"), fullmatch=True).filter(
    bool
)


@given(st.lists(_NAMES))
def test_a_compressed_list_expands_to_the_same_names(names: list[str]):
    expanded = expand(compress(names))
    assert sorted(expanded) == sorted(set(names))


@given(st.text(alphabet="n0123456789[]-,", max_size=20))
def test_any_text_expands_or_is_refused_with_the_text(text: str):
    try:
        expand(text)
    except ValueError as error:
        assert repr(text) in str(error)  # noqa: PT017


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("n[1-4", "not closed"),
        ("n1]", "do not match"),
        ("n[4-1]", "runs backwards"),
        ("n[a-b]", "'a-b' is not a number"),
        ("n1,,n2", "missing next to a comma"),
        ("n[1-999999999]", "more than"),
        ("n[]", "'' is not a number"),
    ],
)
def test_expand_reports_invalid_expressions(expression: str, problem: str):
    with pytest.raises(ValueError, match=problem):
        expand(expression)


def test_indices_of_devices():
    assert parse_indices("0-2,5") == [0, 1, 2, 5]
    assert parse_indices("N/A") == []


@pytest.mark.parametrize(
    ("expression", "count"), [("0-9%4", 10), ("1,3,5", 3), ("0-10:5", 3), ("7", 1), ("1-4,9", 5)]
)
def test_array_expressions_count_their_tasks(expression: str, count: int):
    assert count_tasks(expression) == count
