"""Apply bundles of the model to jobs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction

from .findings import Finding, Outcome
from .model import PARTITIONS, BundleModel, PolicyModel, Request
from .modelled_limits import compare


def _suits(bundle: BundleModel, job: Request) -> bool:
    if (bundle.mgpu > 0) != (job.mgpu > 0):
        return False
    if bundle.partitions is not None and bundle.partitions.isdisjoint(job.partitions):
        return False
    if bundle.gpu_types is None or job.mgpu == 0:
        return True
    if job.named_type is not None:
        return job.named_type in bundle.gpu_types
    return any(bundle.gpu_types & PARTITIONS[name].gpu_types for name in job.partitions)


def _units(bundle: BundleModel, job: Request) -> Fraction:
    return Fraction(job.mgpu, bundle.mgpu) if bundle.mgpu else Fraction(1)


def _bundle_of(bundles: Sequence[BundleModel], job: Request) -> BundleModel | None:
    return next((bundle for bundle in bundles if _suits(bundle, job)), None)


def fitted(bundles: Sequence[BundleModel], job: Request) -> Request:
    """Return the job after its bundle has filled in the options that the job does not name."""
    bundle = _bundle_of(bundles, job)
    if bundle is None or bundle.mode != "fit" or job.mgpu == 0:
        return job
    units, gpus, full = _units(bundle, job), Fraction(job.mgpu, 1000), job
    # GPUs that come with whole nodes are not requested, so nothing can be requested per GPU.
    by_gpu = not job.only_parts and job.asked_mgpu == job.mgpu
    says_nothing = job.cpus_per_task is None and job.cpus_per_gpu is None and not job.exclusive
    if bundle.cpus is not None and says_nothing:
        cpus = math.ceil(bundle.cpus * units)
        if cpus > job.asked_cpus:
            if by_gpu and cpus >= gpus:
                full = replace(full, cpus_per_gpu=math.floor(cpus / gpus))
            elif job.tasks == 1 and job.counted_nodes == 1:
                full = replace(full, cpus_per_task=cpus)
    if bundle.mib is not None and job.mib_per_node is job.mib_per_cpu is job.mib_per_gpu is None:
        mib = bundle.mib * units
        if by_gpu and mib >= gpus:
            full = replace(full, mib_per_gpu=math.floor(mib / gpus))
        elif not by_gpu and mib >= job.counted_nodes:
            full = replace(full, mib_per_node=math.floor(mib / job.counted_nodes))
    return full


def admitted(policy: PolicyModel, job: Request, *, names_qos: bool = True) -> Request:
    """Return a job, after changes by rules, as the policy admits it: fitted, and in the assigned QOS."""
    job = fitted(policy.bundles, job)
    if names_qos or not policy.owners or job.mgpu == 0:
        return job
    own = next((owner for owner in policy.owners if owner.account == job.account), None)
    if own is not None and job.mgpu <= own.mgpu:
        return replace(job, qos=own.qos)
    return job if job.mgpu <= policy.unowned_mgpu else replace(job, qos="sg-loans")


def of_bundles(bundles: Sequence[BundleModel], job: Request) -> Iterator[Finding]:
    for_cpus = [one for one in bundles if one.mgpu == 0 == job.mgpu]
    if for_cpus and not all(
        any(one.partitions is None or name in one.partitions for one in for_cpus) for name in job.partitions
    ):
        yield Finding(f"bundle.{for_cpus[0].name}", "partitions", _mode(for_cpus[0]), Outcome.OVER)
    bundle = _bundle_of(bundles, job)
    if bundle is None:
        return
    name, units = f"bundle.{bundle.name}", _units(bundle, job)
    if bundle.cpus is not None:
        yield Finding(name, "cpus", _mode(bundle), compare(job.cpus, math.ceil(bundle.cpus * units)))
    if bundle.mib is not None:
        yield Finding(name, "memory", _mode(bundle), compare(job.mib, bundle.mib * units))


def _mode(bundle: BundleModel) -> str:
    """Return the mode of a bundle; in mode "fit", a job that exceeds the bundle only gets advice."""
    return "advise" if bundle.mode == "fit" else bundle.mode
