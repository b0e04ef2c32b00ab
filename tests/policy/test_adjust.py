"""Bounds of `policy adjust` are read and checked, and recorded moves apply to the loaded policy."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from slurm_gpu.errors import InputError
from slurm_gpu.policy.language.adjustments import Move, moves_path, read_moves, with_moves, write_moves
from slurm_gpu.policy.language.check import load_policy
from slurm_gpu.policy.language.limit_value import single_value
from slurm_gpu.policy.language.model import Adjust
from slurm_gpu.policy.pages.page import make_page
from slurm_gpu.policy.pages.policy_json import to_json
from slurm_gpu.policy.pages.text import render_text
from tests.policy.checking import check, mistakes

TEXT = """\
version: 1
mode: enforce
manages: {accounts: [vision]}
groups: {grads: {accounts: [vision]}}
rules:
  - id: share
    for: grads
    per: user
    why: "Two each."
    limits: {gpus_running: 2, memory_running: 512G, gpus_total: 9}
    adjust: {gpus_running: [1, 4], memory_running: [256G, 1T]}
"""
MOVE = Move("share", "gpus_running", 2000, 3000, 1_795_262_400, "shorter waits")


def test_bounds_are_read_in_the_unit_of_their_limit() -> None:
    (rule,) = check(TEXT).rules
    assert rule.adjust == (
        Adjust("gpus_running", 1000, 4000),
        Adjust("memory_running", 256 * 1024, 1024 * 1024),
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("{gpus_running: [", "{gpus_total: [", "'gpus_total': only limits on running jobs can be moved"),
        ("{gpus_running: [", "{jobs_running: [", "'jobs_running': rule share does not set this limit"),
        ("[1, 4]", "[3, 4]", "gpus_running: the limit, 2, is outside [3, 4]"),
        ("[1, 4]", "[4, 1]", "gpus_running: [4, 1] must be ascending and greater than 0"),
        ("[1, 4]", "[0, 4]", "gpus_running: [0, 4] must be ascending and greater than 0"),
        ("[1, 4]", "4", "gpus_running: 4 must be two numbers, a minimum and a maximum, such as [8, 24]"),
        ("[1, 4]", "[1, many]", "must be a number of GPUs ≥ 0"),
        ("256G", "256", "has no unit"),
        ("gpus_running: 2", "gpus_running: {a100: 2}", "limits by GPU type cannot be moved; write one"),
        ("    why", "    mode: advise\n    why", "adjust: allowed only in rules with mode: enforce"),
        ("    why", "    kind: batch\n    why", "adjust: allowed only in rules with mode: enforce"),
        ("adjust: {gpus_running: [1, 4], memory_running: [256G, 1T]}", "adjust: {}", "adjust is empty"),
    ],
)
def test_unusable_bounds_are_errors(old: str, new: str, message: str) -> None:
    assert any(message in mistake for mistake in mistakes(TEXT.replace(old, new, 1)))


def test_pages_and_json_show_the_bounds() -> None:
    policy = check(TEXT)
    text = " ".join(render_text(make_page(policy), 100).split())
    assert "A weekly adjustment may move the limit on GPUs of running jobs between 1 and 4." in text
    assert "A weekly adjustment may move the limit on memory of running jobs between 256G and 1024G." in text
    assert to_json(policy)["rules"][0]["adjust"] == {
        "gpus_running": [1, 4],
        "memory_running": [262144, 1048576],
    }


@pytest.fixture
def policy_file(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text(TEXT)
    return path


def test_a_move_applies_to_the_loaded_policy_and_leaves_the_file_unchanged(policy_file: Path) -> None:
    further = dataclasses.replace(MOVE, old=3000, new=4000)
    write_moves(policy_file, [MOVE, further])
    policy, _ = load_policy(policy_file)
    assert single_value(policy.rules[0], "gpus_running") == 4000
    assert policy_file.read_text() == TEXT
    assert read_moves(policy_file) == (MOVE, further)
    assert str(MOVE) == "gpus_running of share: 2 → 3"
    assert moves_path(policy_file).stat().st_mode & 0o777 == 0o644
    write_moves(policy_file, [])
    assert load_policy(policy_file)[0] == check(TEXT)
    assert not moves_path(policy_file).exists()


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("gpus_running: 2", "gpus_running: 3", "the value in policy.yaml was changed"),
        ("gpus_running: [1, 4], ", "", "adjust: of the rule no longer contains this limit"),
        (
            "gpus_running: [1, 4]",
            "gpus_running: [1, 2.5]",
            "the new value is outside the current bounds in adjust:",
        ),
        ("id: share", "id: portion", "the rule no longer exists"),
    ],
)
def test_edits_of_the_policy_take_precedence_over_a_move(old: str, new: str, why: str) -> None:
    edited = check(TEXT.replace(old, new, 1))
    moved = with_moves(edited, [MOVE])
    assert moved.policy == edited
    assert moved.void == ((MOVE, why),)
    assert not moved.counting


def test_an_undone_move_does_not_apply_and_is_listed_until_the_policy_changes(
    policy_file: Path,
) -> None:
    undone = dataclasses.replace(MOVE, undone_s=MOVE.at_s + 60)
    write_moves(policy_file, [undone])
    assert load_policy(policy_file)[0] == check(TEXT)
    assert with_moves(check(TEXT), read_moves(policy_file)).undone == (undone,)
    edited = check(TEXT.replace("gpus_running: 2", "gpus_running: 3"))
    assert with_moves(edited, read_moves(policy_file)).undone == ()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"version": 2, "moved": []}',
        '{"version": 1, "moved": [{"rule": "share"}]}',
        '{"version": 1, "moved": [{"rule": "s", "limit": "x", "old": 1, "new": 2, "at_s": 3, "why": ""}]}',
        '{"version": 1, "moved": [{"rule": "", "limit": "cpus", "old": .5, "new": 2, "at_s": 3, "why": ""}]}',
    ],
)
def test_unreadable_moves_are_an_error_that_names_the_file(policy_file: Path, text: str) -> None:
    moves_path(policy_file).write_text(text)
    with pytest.raises(
        InputError, match=r"policy\.moved\.json: (cannot be read|was written by another version)"
    ):
        load_policy(policy_file)
