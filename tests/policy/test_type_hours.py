"""Refused over a budget of one GPU type, a job is advised to use another type, or less time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from .model import Request, RuleModel
from .render import PARTITIONS, description, snapshot
from .test_snapshot import Site

A100, V100 = "gpu_hours:week:a100", "gpu_hours:30d:v100"
RULE = RuleModel("hours", "user", limits={A100: 100, V100: 10})
# The job may get A100 or V100 GPUs.
JOB = Request(1001, "vision", partition="gpu,long", per_job=4, minutes=24 * 60)


def site_of(directory: Path, used: tuple[float, float], lua: str, *rules: RuleModel) -> Site:
    site = Site(directory, lua, [RULE, *rules])
    hours = {("hours", 1001, key): value for key, value in zip((A100, V100), used, strict=True)}
    site.file.write_text(snapshot(site.second, site.second, site.rules, [], hours=hours))
    return site


@pytest.mark.parametrize("lua", ["5.1", "5.4"])
@pytest.mark.parametrize(
    ("used", "more", "advice", "accepted"),
    [
        ((0, 10), {}, "--gpus=a100:4", {"gpu_type": "a100"}),
        ((90, 10), {}, "--gpus=a100:4 --time=02:30:00", {"gpu_type": "a100", "minutes": 150}),
        ((90, 8), {}, "--gpus=a100:4 --time=02:30:00", {"gpu_type": "a100", "minutes": 150}),
        ((100, 0), {}, "--gpus=v100:4 --time=02:30:00", {"gpu_type": "v100", "minutes": 150}),
        ((0, 10), {"minutes": 0}, "--gpus=a100:4 --time=1-01:00:00", {"gpu_type": "a100", "minutes": 1500}),
        (
            (0, 0),
            {"per_job": 1, "minutes": 14 * 24 * 60},
            "--gpus=a100:1 --time=4-04:00:00",
            {"gpu_type": "a100", "minutes": 6000},
        ),
        (
            (50, 10),
            {"per_job": 1, "array_tasks": 10, "minutes": 600},
            "--gpus=a100:1 --time=05:00:00",
            {"gpu_type": "a100", "minutes": 300},
        ),
    ],
)
def test_the_type_with_most_hours_is_advised(
    used: tuple[float, float],
    more: dict[str, Any],
    advice: str,
    accepted: dict[str, Any],
    lua: str,
    tmp_path: Path,
) -> None:
    site, job = site_of(tmp_path, used, lua), replace(JOB, **more)
    refused = site.script.submit(description(job), PARTITIONS)
    assert f"  Try: sbatch {advice} ..." in refused.messages
    assert site.script.submit(description(replace(job, **accepted)), PARTITIONS).accepted


def test_if_no_type_has_hours_left_nothing_is_advised(tmp_path: Path) -> None:
    refused = site_of(tmp_path, (100, 10), "5.4").script.submit(description(JOB), PARTITIONS)
    assert any(line.startswith("  No smaller request fits the limits now.") for line in refused.messages)


def test_a_type_named_like_a_period_restricts_nodes_only_for_its_hours(tmp_path: Path) -> None:
    rule = RuleModel("odd", "group", limits={"gpu_hours:week": 1000, "gpu_hours:month:week": 100})
    site = Site(tmp_path, "5.4", [rule])
    hours = {("odd", None, "gpu_hours:week"): 0.0}
    site.file.write_text(snapshot(site.second, site.second, site.rules, [], hours=hours))
    verdict = site.script.submit(
        description(Request(1001, "vision", per_job=4, n_tasks=33, minutes=60)), PARTITIONS
    )
    assert verdict.desc["max_nodes"] == 4
