"""Edit one limit in the text of policy.yaml without changing anything else."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from slurm_gpu.config.yaml_source import parse_yaml
from slurm_gpu.errors import InputError
from slurm_gpu.policy.language.check import check_policy
from slurm_gpu.policy.language.limit_edit import edit_limit, unified_diff
from slurm_gpu.policy.language.limit_value import single_value, value_text

TEXT = """\
version: 1   # of the format
groups:
  grads: {accounts: [vision]}
rules:
  - id: share
    for: grads
    per: user
    why: "16 each."   # 16 is in the text, too
    limits: {gpus_running: 16, memory_running: 512G,   # one
             jobs_running: 20}
  - id: plain
    for: grads
    per: group
    why: "All."
    limits:
      gpus_running: 40
      cpus_running: 16
"""


def changed_lines(old: str, new: str) -> list[tuple[str, str]]:
    pairs = zip(old.splitlines(), new.splitlines(), strict=True)
    return [(before.strip(), after.strip()) for before, after in pairs if before != after]


@pytest.mark.parametrize(
    ("rule", "key", "value", "line"),
    [
        ("share", "gpus_running", 20_000, "limits: {gpus_running: 20, memory_running: 512G,   # one"),
        ("share", "gpus_running", 500, "limits: {gpus_running: 0.5, memory_running: 512G,   # one"),
        ("share", "memory_running", 640 * 1024, "limits: {gpus_running: 16, memory_running: 640G,   # one"),
        ("share", "memory_running", 1000, "limits: {gpus_running: 16, memory_running: 1000M,   # one"),
        ("share", "jobs_running", 25, "jobs_running: 25}"),
        ("plain", "gpus_running", 50_000, "gpus_running: 50"),
        ("plain", "cpus_running", 20, "cpus_running: 20"),
    ],
)
def test_only_one_value_changes(rule: str, key: str, value: int, line: str) -> None:
    edited = edit_limit(TEXT, "policy.yaml", rule, key, value)
    ((_, after),) = changed_lines(TEXT, edited)
    assert after == line
    rules = {one.id: one for one in check_policy(parse_yaml(edited, "policy.yaml")).rules}
    assert single_value(rules[rule], key) == value


@pytest.mark.parametrize(
    ("old", "new"),
    [
        # Two rules share the limits, so the limit of one rule cannot be changed there.
        (
            TEXT.replace("limits: {gpus_running: 16,", "limits: &all {gpus_running: 16,").replace(
                "limits:\n      gpus_running: 40\n      cpus_running: 16\n", "limits: *all\n"
            ),
            "cannot be changed separately from other values",
        ),
        (TEXT.replace("gpus_running: 16,", "gpus_running: {a100: 16},"), "is not written as a single value"),
    ],
)
def test_a_limit_that_cannot_be_edited_separately_is_refused_with_its_position(old: str, new: str) -> None:
    with pytest.raises(InputError, match=rf"policy.yaml:\d+:\d+: gpus_running of rule share .*{new}"):
        edit_limit(old, "policy.yaml", "share", "gpus_running", 20_000)


@pytest.mark.parametrize("old", [TEXT, TEXT.rstrip("\n"), TEXT.replace("\n", "\r\n")])
@pytest.mark.parametrize("key", ["gpus_running", "cpus_running"])
def test_the_diff_can_be_applied_with_patch(tmp_path: Path, old: str, key: str) -> None:
    """The last line, whether changed or context, may lack a newline."""
    path = tmp_path / "policy.yaml"
    path.write_bytes(old.encode())
    edited = edit_limit(old, str(path), "plain", key, 50_000 if key == "gpus_running" else 50)
    (tmp_path / "fix.patch").write_bytes(unified_diff(old, edited, str(path)).encode())
    subprocess.run(("patch", "-s", "-p0", "-i", str(tmp_path / "fix.patch")), check=True, cwd="/")
    assert path.read_bytes() == edited.encode()


def test_values_are_written_in_readable_units() -> None:
    assert value_text("gpus_running", 16_000) == "16"
    assert value_text("gpus_running", 250) == "0.25"
    assert value_text("memory_running", 2048) == "2G"
    assert value_text("jobs_running", 7) == "7"
