"""The policies in docs/policies are short, are listed in the cookbook, and give the answers next to them."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_gpu.policy.lua.script import LUA_VERSIONS

from .explaining import ExampleCluster
from .pages import DOCS
from .submissions import ACCEPTED, JOB_SCRIPT, POLICIES, submissions

_COMMENT = re.compile(r"((?:# .+\n){1,2})version: 1\n")
FEWEST_SUBMISSIONS, MOST_LINES = 5, 40


def _in_prose(name: str) -> str:
    """Return the policy in prose, from the comment at the top of its file."""
    comment = _COMMENT.match(POLICIES[name].read_text(encoding="utf-8"))
    assert comment is not None
    return " ".join(line.removeprefix("# ") for line in comment[1].splitlines())


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Read --begin in the time zone of the policies."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("lua", LUA_VERSIONS)
@pytest.mark.parametrize("name", POLICIES)
def test_each_submission_gets_the_answer_next_to_it(
    name: str, lua: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "job.sh").write_text(JOB_SCRIPT)
    monkeypatch.chdir(tmp_path)
    cluster = ExampleCluster(POLICIES[name].read_text(encoding="utf-8"), lua)
    for one in submissions(POLICIES[name]):
        assert cluster.submit(one.user, one.command, one.at) == one.answer, one.command


@pytest.mark.parametrize("name", POLICIES)
def test_each_policy_is_short_and_has_both_answers(name: str) -> None:
    assert len(POLICIES[name].read_text(encoding="utf-8").splitlines()) <= MOST_LINES
    answers = [one.answer.endswith(ACCEPTED) for one in submissions(POLICIES[name])]
    assert len(answers) >= FEWEST_SUBMISSIONS
    assert {*answers} == {True, False}


def test_the_cookbook_lists_each_policy_in_its_own_words() -> None:
    rows = [
        f"| [{name}](policies/{name}.yaml) ([jobs](policies/{name}.jobs)) | {_in_prose(name)} |"
        for name in POLICIES
    ]
    page = (DOCS / "cookbook.md").read_text(encoding="utf-8")
    assert [line for line in page.splitlines() if "](policies/" in line and line.startswith("| [")] == rows


def test_each_file_belongs_to_a_policy() -> None:
    names = {path.name for path in (DOCS / "policies").iterdir()}
    assert names == {f"{name}.{ending}" for name in POLICIES for ending in ("yaml", "jobs")}
