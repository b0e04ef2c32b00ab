"""Descriptions of limits use the singular or the plural."""

from __future__ import annotations

import pytest

from slurm_gpu.policy.language.amounts import GpuLimit, RuleLimits
from slurm_gpu.policy.language.limit_text import limit_texts
from slurm_gpu.text.units import format_gpus


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        (RuleLimits(jobs_running=1), "at most 1 job running"),
        (RuleLimits(jobs_total=2), "at most 2 jobs running and pending"),
        (RuleLimits(jobs_running=0), "at most 0 jobs running"),
        (RuleLimits(cpus=1), "at most 1 CPU"),
        (RuleLimits(cpus_per_gpu=1), "at most 1 CPU per GPU"),
        (RuleLimits(array_tasks=1), "at most 1 array task"),
        (RuleLimits(nodes_running=1), "at most 1 node running"),
        (RuleLimits(gpu_hours={"day": 1.0, "week": 1.5}), "at most 1 GPU-hour a day"),
        (RuleLimits(gpu_hours={None: 1}), "at most 1 GPU-hour"),
        (RuleLimits(gpu_hours={"30d:a100": 2}), "at most 2 GPU-hours on a100 GPUs in 30 days"),
        (RuleLimits(gpus_running=GpuLimit(1000, {})), "at most 1 GPU running"),
    ],
)
def test_a_limit_of_one_has_a_singular_noun(limits: RuleLimits, text: str) -> None:
    assert limit_texts(limits)[0] == text


@pytest.mark.parametrize(("mgpu", "text"), [(1000, "1 GPU"), (250, "0.25 GPUs"), (0, "0 GPUs")])
def test_numbers_of_gpus_have_the_right_noun(mgpu: int, text: str) -> None:
    assert format_gpus(mgpu) == text
