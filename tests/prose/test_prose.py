"""All prose follows the rules in CONTRIBUTING.md; `python -m tests.prose PATH` lists what does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.prose.__main__ import report
from tests.prose.rules import findings, sentences
from tests.prose.texts import Passage, passages


def test_no_text_breaks_a_rule() -> None:
    assert list(report()) == []


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("Return the number of GPUs.", []),
        ("What a node tells is stored.", ["word", "opener"]),
        ("Whose head is longer is no node.", ["opener"]),
        ("What is a run?", []),
        ("Held back for ever by somebody.", ["word", "word", "word"]),
        ("It holds the GPU.", ["word"]),
        ("The job is held by its user.", []),
        ("It waits until slurmctld says so.", ["word"]),
        ("When a job ends, its records are final.", []),
        (" ".join(["word"] * 36) + ".", ["long"]),
        (" ".join(["word"] * 35) + ".", []),
    ],
)
def test_a_passage_is_found_by_the_rule_that_it_breaks(text: str, rules: list[str]) -> None:
    assert sorted(rule for rule, _ in findings(Passage(1, text))) == sorted(rules)


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("How often a node posts.", ["opener"]),
        ("Return how often a node posts.", []),
        ("Post once. When a reader asks, post again.", []),
    ],
)
def test_a_docstring_does_not_open_with_a_clause(text: str, rules: list[str]) -> None:
    assert [rule for rule, _ in findings(Passage(1, text, is_docstring=True))] == rules


def test_sentences_end_at_full_stops_and_list_items() -> None:
    text = "One is 1.5 long. Two.\n\n- three\n- four"
    assert sentences(text) == ["One is 1.5 long.", "Two.", "three", "four"]


@pytest.mark.parametrize(
    ("name", "content", "texts"),
    [
        (
            "a.md",
            "# Title\n\nSee `x` and [a\nlink](x).\n\n```\nignored text here\n```\n",
            ["Title", "See `code` and a link."],
        ),
        (
            "a.py",
            '"""Doc."""\nx = "key"  # one\n\n# two\n# three\ny = f"a message of {x} words"\n',
            ["Doc.", "a message of `x` words", "one", "two three"],
        ),
        (
            "a.lua",
            '-- first\n-- second\n\nlocal m = "a message for users" -- third\n',
            ["first second", "third", "a message for users"],
        ),
        ("a.yaml", "# note\n\nkey: value # why\n", ["note", "why"]),
        ("a.svg", "<text>a job</text>\n<text>starts</text>\n", ["a job starts"]),
    ],
)
def test_prose_is_what_a_person_reads(tmp_path: Path, name: str, content: str, texts: list[str]) -> None:
    path = tmp_path / name
    path.write_text(content)
    assert [" ".join(one.text.split()) for one in passages(path)] == texts
