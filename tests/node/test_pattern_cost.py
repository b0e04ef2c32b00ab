"""No arguments of a user make the admin's patterns slow."""

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_gpu.node.application.pattern_cost import LONGEST_TEXT, MOST_WAYS, ways_to_match


@pytest.mark.parametrize(
    ("pattern", "ways"),
    [
        (r"--batch-size", 1),
        (r"--batch[-_]size[= ](\d{1,7})", 7),
        (r"(?:train[-_])?batch (\d{4})", 2),
        (r"a|b|c", 1),  # alternatives that differ in the first letter
        (r"one|two|ten", 3),
        (r"\d+", LONGEST_TEXT),
        (r"(?>a{1,9})\b", 9),
        (r"(?:ab?){2}", 4),
        (r"(?=a{0,3})x", 4),
    ],
)
def test_ways(pattern: str, ways: int) -> None:
    assert ways_to_match(pattern) == ways


@pytest.mark.parametrize(
    "pattern",
    [
        r"(a+)+$",
        r"(a|aa)+$",
        r"(a*)*b",
        r"(?:a{0,9}){9}",
        r".*.*=.*",
        r"\s+(\d+)",
        r"(\w)\1+",
        r"((a{1,40}){1,40}){1,40}",
        r"(?:a?){400}",
    ],
)
def test_slow_patterns_exceed_the_limit(pattern: str) -> None:
    assert ways_to_match(pattern) > MOST_WAYS


@pytest.mark.parametrize("pattern", ["(", "[a", "a{2,1}", "*", r"(?P<1>a)"])
def test_an_invalid_pattern_is_an_error(pattern: str) -> None:
    with pytest.raises(re.error):
        ways_to_match(pattern)


PIECES = st.sampled_from(
    ["a", ".", "a?", "[ab]{1,20}", "(?:a|ab)", "(?:a|b|ab)?", "a{0,60}", "(?:aa?){1,4}", r"\w+"]
)


@settings(max_examples=25)
@given(st.lists(PIECES, min_size=1, max_size=5))
def test_patterns_within_the_limit_are_fast_on_the_worst_text(pieces: list[str]) -> None:
    pattern = "".join(pieces) + "!"
    if ways_to_match(pattern) > MOST_WAYS:
        return
    compiled = re.compile(pattern)
    for text in ("a" * LONGEST_TEXT, "ab" * (LONGEST_TEXT // 2)):
        began = time.process_time()
        assert compiled.search(text) is None
        assert time.process_time() - began < 2
