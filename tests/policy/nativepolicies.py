"""Read policies for a small slurmdbd, and return the limits that they require."""

from __future__ import annotations

import datetime as dt
import textwrap
from collections.abc import Mapping
from types import MappingProxyType

from slurm_gpu.config.yaml_source import parse_yaml
from slurm_gpu.policy.language.check import check_policy
from slurm_gpu.policy.language.names import resolve_names
from slurm_gpu.policy.native.required import RequiredLimits, SlurmdbdLimits, derive_required_limits
from slurm_gpu.slurm.sacctmgr import Association, Qos

from .limitstore import TRES, account, of, user
from .users import UIDS, Directory

TODAY = dt.date(2026, 11, 21)
ASSOCIATIONS = (
    Association(account="root"),
    user("root", "root"),
    account("vision"),
    user("alice", "vision"),
    user("bob", "vision"),
    account("nlp"),
    user("bob", "nlp"),
    account("other"),
    user("carol", "other"),
)


def load(text: str):
    source = parse_yaml(textwrap.dedent(text), "policy.yaml")
    policy = check_policy(source)
    return policy, resolve_names(policy, source, Directory())


def wanted_limits(
    text: str,
    associations=ASSOCIATIONS,
    qos: tuple[Qos, ...] = (),
    today=TODAY,
    tres=TRES,
    partitions: Mapping[str, str | None] = MappingProxyType({"gpu": None, "night": None}),
) -> RequiredLimits:
    policy, names = load(text)
    found = SlurmdbdLimits(
        cluster="c", associations=associations, qos=qos, tres=tres, partition_qos=partitions
    )
    return derive_required_limits(policy, names, found, today, UIDS.get)


def numbers(wanted: RequiredLimits) -> dict[str, dict[str, int]]:
    """Return limits by entity: {"vision/alice": {"GrpTRES=gres/gpu": 4}}."""
    names = {of(name): name for name in ("vision", "vision/alice", "vision/bob", "nlp", "nlp/bob", "other")}
    return {
        names.get(entity, str(entity)): {str(field): bound.value for field, bound in bounds.items()}
        for entity, bounds in wanted.bounds.items()
    }


RULES = """\
    version: 1
    mode: enforce
    manages: {accounts: [vision, nlp], qos: [sg-*]}
    groups:
      grads: {accounts: [vision]}
      both: {accounts: [vision, nlp]}
      undergrads: {unix_groups: [undergrad]}
      alice: {users: [alice]}
      long: {qos: [SG-long]}
      night: {partitions: [night]}
      everyone: {}
      course: {accounts: [nlp], until: 2026-11-20}
    rules:
"""


def rules(*lines: str, more: str = "") -> str:
    written = "".join(f"      - {{id: r{number}, why: x, {line}}}\n" for number, line in enumerate(lines, 1))
    return textwrap.dedent(RULES + written) + textwrap.dedent(more)
