"""Run the function of `slurm-gpu explain` for a policy and a command line on an idle cluster."""

from __future__ import annotations

import datetime as dt
import shlex
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from unittest.mock import patch

from slurm_gpu.config.yaml_source import parse_yaml
from slurm_gpu.policy.explain.explain import explain
from slurm_gpu.policy.explain.sbatch import parse_command
from slurm_gpu.policy.language.check import check_policy
from slurm_gpu.policy.language.names import resolve_names
from slurm_gpu.policy.lua.bundle import SiteFacts, build_bundle, compile_policy
from slurm_gpu.policy.lua.script import PolicyScript
from slurm_gpu.slurm.submission import Partition, UserDefaults

MONDAY_AT_TEN = dt.datetime(2026, 11, 23, 10, tzinfo=dt.UTC)
_USERS = {"alice": 1001, "bob": 1002}
_BOB = 1002, "bob"
_PARTITIONS = [
    Partition(name=name, is_default=name == "gpu", default_time_s=3600, max_time_s=None)
    for name in ("gpu", "cpu", "debug", "teaching")
]
_CLUSTER = SiteFacts(
    n_gpus=128,
    shards_per_gpu=4,
    partition_gpus={"gpu": 8, "cpu": 0, "debug": 8, "teaching": 8},
    partition_cpus={"gpu": 64, "cpu": 64, "debug": 64, "teaching": 64},
    partition_mib=dict.fromkeys(("gpu", "cpu", "debug", "teaching"), 512 * 1024),
    partition_gpu_types={"gpu": frozenset({"a100"}), "debug": frozenset({"a100"})},
    default_mib={"per_gpu": 64 * 1024, "per_cpu": 4096},
    run_directory=Path("/nonexistent"),
    year=2026,
)


class People:
    """A host with alice and the undergraduate bob."""

    def uid(self, user: str) -> int | None:
        return _USERS.get(user)

    def member_uids(self, group: str) -> frozenset[int] | None:
        return frozenset({1002}) if group == "undergrad" else None

    def known_users(self) -> list[str]:
        return sorted(_USERS)

    def known_groups(self) -> list[str]:
        return ["undergrad"]


def printed_answer(policy: str, command: str, environ: Mapping[str, str] | None = None) -> str:
    """Return the output for bob on a Monday at ten; the job script must exist."""
    source = parse_yaml(policy, "policy.yaml")
    checked = check_policy(source)
    names = resolve_names(checked, source, People())
    assert not names.unknown
    script = build_bundle(compile_policy(checked, names, _CLUSTER))
    request = parse_command(shlex.split(command), environ or {}, None)
    now = int(MONDAY_AT_TEN.timestamp())
    with patch("slurm_gpu.policy.explain.explain.PolicyScript", partial(PolicyScript, now=lambda: now)):
        answer = explain(script, request, _BOB, UserDefaults(account="nlp", qos="normal"), [], _PARTITIONS)
    assert not answer.notes
    prefix = request.command if answer.verdict.accepted else f"{request.command}: error"
    return "".join(f"{prefix}: {line}\n" for line in answer.verdict.messages)
