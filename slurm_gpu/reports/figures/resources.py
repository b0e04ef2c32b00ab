"""Resource types: the bundles of CPUs, memory and GPUs in which a site hands out its nodes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slurm_gpu.policy.language.model import Bundle
from slurm_gpu.reports.category import UNKNOWN, Category, Codes
from slurm_gpu.reports.job_table import NO_GPU, JobTable

NO_BUNDLE = "no bundle"


def resource_types(jobs: JobTable, bundles: Sequence[Bundle]) -> Category:
    """Of each run the first bundle that it belongs to, as the policy has it.

    Where there are no bundles, the server type on which it held most, and NO_GPU for runs without GPUs.
    """
    if not bundles:
        names = [*jobs.server_type.names, NO_GPU]
        without: Codes = np.where(jobs.scale.is_(NO_GPU), len(names) - 1, jobs.server_type.codes).astype(
            np.int32
        )
        return Category(names, without)
    partition, kind = jobs.partition, jobs.gpu_type
    width = len(kind.names) + 1
    # Runs of one partition and GPU type belong to one bundle: few of them differ.
    keys = ((partition.codes.astype(np.int64) + 1) * width + kind.codes + 1) * 2 + (jobs.n_gpus > 0)
    different, place = np.unique(keys, return_inverse=True)
    partitions, kinds = [None, *partition.names], [None, *kind.names]
    of_key = [
        _first(bundles, partitions[key // 2 // width], kinds[key // 2 % width], with_gpus=bool(key % 2))
        for key in different.tolist()
    ]
    codes = np.array(of_key, np.int32)[place]
    codes[np.isnan(jobs.n_gpus)] = UNKNOWN
    return Category([*(bundle.name for bundle in bundles), NO_BUNDLE], codes.astype(np.int32))


def _first(bundles: Sequence[Bundle], partitions: str | None, kind: str | None, *, with_gpus: bool) -> int:
    asked = set() if partitions is None else set(partitions.split(","))
    for place, bundle in enumerate(bundles):
        fits = (bundle.mgpu > 0) == with_gpus and (
            bundle.partitions is None or not asked.isdisjoint(bundle.partitions)
        )
        if fits and (
            not with_gpus or bundle.gpu_types is None or kind is None or kind.lower() in bundle.gpu_types
        ):
            return place
    return len(bundles)
