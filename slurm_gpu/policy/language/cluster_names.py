"""Find partitions, GPU types and features that a policy names but the cluster lacks."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator

from slurm_gpu.config.yaml_source import Location, YamlSource
from slurm_gpu.errors import InputError
from slurm_gpu.policy.language.amounts import GpuLimit, RuleLimits
from slurm_gpu.policy.language.hour_sums import split_type
from slurm_gpu.policy.language.membership import is_among
from slurm_gpu.policy.language.model import Policy
from slurm_gpu.policy.language.names import suggest
from slurm_gpu.policy.language.tiers import whole_rules
from slurm_gpu.slurm.client import SlurmNode

_Named = tuple[Location, str]


def unknown_to_cluster(
    policy: Policy, source: YamlSource, nodes: Iterable[SlurmNode]
) -> tuple[InputError, ...]:
    """Return errors for partitions, GPU types and features that no node has, in the order of the file.

    Partitions (or GPU types, or features) are not checked if no node reports any.
    """
    nodes = list(nodes)
    partitions = {partition for node in nodes for partition in node.partitions}
    types = {gpu_type.lower() for node in nodes for gpu_type in node.gpus if gpu_type}
    features = {feature for node in nodes for feature in node.features}
    found = [
        *_unknown(_partitions(policy), partitions, "no node is in partition {}"),
        *_unknown(_gpu_types(policy), types, "no node has a GPU of type {}"),
        *_unknown(_features(policy), features, "no node has the feature {}"),
    ]
    errors = [source.error(location, message, key=True) for location, message in found]
    return tuple(sorted(errors, key=lambda error: (error.line, error.column)))


def _unknown(named: Iterable[_Named], known: Collection[str], message: str) -> Iterator[_Named]:
    for location, name in named:
        if known and not any(is_among(one, (name,)) for one in known):
            with_suggestion = f"{message.format(repr(name))}; {suggest(name, known, 'see sinfo')}"
            yield location, with_suggestion


def _partitions(policy: Policy) -> Iterator[_Named]:
    for group in policy.groups.values():
        for index, name in enumerate(group.partitions or ()):
            yield ("groups", group.name, "partitions", index), name
    for bundle in policy.bundles.values():
        for index, name in enumerate(bundle.partitions or ()):
            yield ("bundles", bundle.name, "partitions", index), name
    for location, limits in _all_limits(policy):
        for index, name in enumerate(limits.partitions or ()):
            yield (*location, "partitions", index), name
    for location, key, value in changed_options(policy):
        for name in value.split(",") if key == "partition" else ():
            yield location, name


def _features(policy: Policy) -> Iterator[_Named]:
    for location, key, value in changed_options(policy):
        if key == "constraint":
            for name in re.split("[&|]", value):
                yield location, name


def changed_options(policy: Policy) -> Iterator[tuple[Location, str, str]]:
    """Yield the location, option and name of each partition, QOS and constraint that rules set."""
    for rule in whole_rules(policy):
        for section, options in (
            ("set", rule.set),
            ("defaults", rule.defaults),
            ("over_limit", rule.over_limit),
        ):
            for key, value in {} if options is None else options.table().items():
                if key in ("partition", "qos", "constraint") and value is not None:
                    yield (*rule.location, section, key), key, str(value)


def _gpu_types(policy: Policy) -> Iterator[_Named]:
    for bundle in policy.bundles.values():
        for index, name in enumerate(bundle.gpu_types or ()):
            yield ("bundles", bundle.name, "gpu_types", index), name
    for location, limits in _all_limits(policy):
        for index, name in enumerate(limits.gpu_types or ()):
            yield (*location, "gpu_types", index), name
        for key in ("gpus", "gpus_total", "gpus_running", "gpus_pending"):
            limit: GpuLimit | None = getattr(limits, key)
            for name in () if limit is None else limit.by_type_mgpu:
                yield (*location, key, name), name
        for part in limits.gpu_hours or ():
            period, gpu_type = split_type(part or "")
            if gpu_type is not None:
                yield (*location, "gpu_hours", period, gpu_type), gpu_type


def _all_limits(policy: Policy) -> Iterator[tuple[Location, RuleLimits]]:
    for rule in whole_rules(policy):
        for part in rule.with_limits:
            yield (*part.location, "limits"), part.limits
    for exception in policy.exceptions:
        yield (*exception.location, "limits"), exception.limits
