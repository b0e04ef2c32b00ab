"""Submit jobs to a policy on a simulated cluster like that of the lab, by running its job_submit.lua."""

from __future__ import annotations

import datetime as dt
import re
import shlex
from pathlib import Path
from typing import Any

from slurm_gpu.config.yaml_source import parse_yaml
from slurm_gpu.policy.explain.explain import partition_record
from slurm_gpu.policy.explain.sbatch import parse_command
from slurm_gpu.policy.language.check import check_policy
from slurm_gpu.policy.language.hour_sums import sums_of
from slurm_gpu.policy.language.limits import flat_amounts
from slurm_gpu.policy.language.names import resolve_names
from slurm_gpu.policy.lua.bundle import SiteFacts, build_bundle, compile_policy
from slurm_gpu.policy.lua.script import PolicyScript
from slurm_gpu.slurm.submission import Partition

from .submissions import ACCEPTED, named

MONDAY_AT_TEN = dt.datetime(2026, 11, 23, 10, tzinfo=dt.UTC)
_USERS = {"alice": 1001, "bob": 1002, "carol": 1003}
_ACCOUNTS = {"alice": "vision", "bob": "nlp", "carol": "vision"}
_GPU_TYPES = frozenset({"a100", "h100"})


class People:
    """A host with three users; bob is an undergraduate."""

    def uid(self, user: str) -> int | None:
        return _USERS.get(user)

    def member_uids(self, group: str) -> frozenset[int] | None:
        return frozenset({_USERS["bob"]}) if group == "undergrad" else None

    def known_users(self) -> list[str]:
        return sorted(_USERS)

    def known_groups(self) -> list[str]:
        return ["undergrad"]


class ExampleCluster:
    """Four nodes with four GPUs each and the partitions of the policy, without other users."""

    def __init__(self, policy: str, lua: str = "5.4") -> None:
        source = parse_yaml(policy, "policy.yaml")
        checked = check_policy(source)
        names = resolve_names(checked, source, People())
        assert not names.unknown
        partitions = sorted({"gpu", *named(policy, "partitions")})
        facts = SiteFacts(
            run_directory=Path("/nonexistent"),
            n_gpus=16,
            shards_per_gpu=4,
            partition_gpus=dict.fromkeys(partitions, 4),
            partition_cpus=dict.fromkeys(partitions, 32),
            partition_mib=dict.fromkeys(partitions, 100_000),
            partition_gpu_types=dict.fromkeys(partitions, _GPU_TYPES),
            default_mib={"per_gpu": 16_384, "per_cpu": 1024},
            year=2026,
        )
        compiled = compile_policy(checked, names, facts)
        snapshot = None
        sums = {
            key for rule in checked.rules for key in sums_of(flat_amounts(rule), carry_over=rule.carry_over)
        }
        if sums:
            now_s = int(MONDAY_AT_TEN.timestamp())
            starts = " ".join(f"{key.removeprefix('gpu_h_')}=1" for key in sorted(sums))
            groups = f"groups {compiled['groups_id']}\nhours {starts}"
            snapshot = f"slurm-gpu-snapshot 1 1 {now_s}\n{groups}\nend 1\n"
        self._partitions = [
            partition_record(
                Partition(name=name, is_default=name == "gpu", default_time_s=3600, max_time_s=None)
            )
            for name in partitions
        ]
        self._at = MONDAY_AT_TEN
        self._jobs: list[dict[str, Any]] = []
        self._script = PolicyScript(
            build_bundle(compiled),
            lua=lua,
            now=lambda: int(self._at.timestamp()),
            files={str(compiled["snapshot"]): snapshot},
        )

    def submit(self, user: str, command: str, at: dt.datetime | None = None) -> str:
        """Submit a job whose script exists, and return the output, with ACCEPTED at the end if accepted."""
        self._at = at or MONDAY_AT_TEN
        request = parse_command(shlex.split(command), {}, None)
        given = {"default_account": _ACCOUNTS[user], "default_qos": "normal"}
        desc = request.description(_USERS[user], user, _GPU_TYPES) | given
        decision = self._script.submit(desc, self._partitions)
        assert [text for level, text in decision.log if level == "error"] == []
        prefix = request.command if decision.accepted else f"{request.command}: error"
        # The snapshot is never written again, so all jobs count as just submitted.
        lines = [re.sub(r" \(\d+ just submitted\)", "", f"{prefix}: {line}") for line in decision.messages]
        if decision.accepted:
            lines.append(ACCEPTED)
            default = {"account": _ACCOUNTS[user], "qos": "normal", "partition": "gpu"}
            self._jobs.append(
                {
                    **decision.desc,
                    **{name: decision.desc.get(name) or value for name, value in default.items()},
                    "job_id": len(self._jobs) + 1,
                    # salloc gets its GPUs immediately.
                    "job_state": int(request.command == "salloc"),
                    "array_task_cnt": _tasks(request.options.get("array")),
                }
            )
            self._script.set_jobs(self._jobs)
        return "\n".join(lines)


def _tasks(array: str | None) -> int | None:
    """Return the number of tasks of an array such as 1-20%2."""
    if array is None:
        return None
    first, _, last = array.partition("%")[0].partition("-")
    return int(last) - int(first) + 1
