"""Check that Slurm and slurm-gpuctld support jobs that share GPUs, if the policy allows sharing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from slurm_gpu.cli.doctor.checks.daemons.services import start_and_log
from slurm_gpu.cli.doctor.checks.finding import CheckResult, DoctorContext, fail, ok, skipped, warn
from slurm_gpu.cli.doctor.checks.slurm.unread import reads
from slurm_gpu.controller.colocation import status
from slurm_gpu.policy.lua.install import SCRIPT_NAME
from slurm_gpu.policy.lua.installed import ColocationInForce, read_policy_in_force
from slurm_gpu.text.units import counted

_RESTART = "restart slurmctld and slurmd on all nodes"


@reads("SelectType", "SelectTypeParameters", "JobRequeue", remedy=_RESTART)
def colocation(at: DoctorContext) -> Iterator[CheckResult]:
    """Check that Slurm has shards and the options for sharing GPUs, and that slurm-gpuctld places jobs."""
    if not at.is_controller:
        yield skipped("jobs that share GPUs are placed on the hosts of slurmctld, and this host is not one")
        return
    policy = read_policy_in_force(Path(at.settings.conf_path).parent / SCRIPT_NAME)
    rule = policy.colocation if policy is not None else None
    if policy is None or rule is None:
        yield skipped("no active policy lets jobs share GPUs")
        return
    found = [*_slurm(at), *_places(at, rule)]
    yield from found
    if not found:
        sharing = [node for node in at.nodes if node.shards_per_gpu]
        yield ok(f"mode {rule.mode}: jobs can share the GPUs of {counted(len(sharing), 'node')}")


def _slurm(at: DoctorContext) -> Iterator[CheckResult]:
    raw = at.settings.raw
    if raw.get("SelectType", "") != "select/cons_tres":
        yield fail(
            f"SelectType is {raw.get('SelectType') or 'not set'}, but only select/cons_tres supports shards",
            f"set SelectType=select/cons_tres in slurm.conf, and {_RESTART}",
        )
    if "LL_SHARED_GRES" in raw.get("SelectTypeParameters", ""):
        yield fail(
            "SelectTypeParameters has LL_SHARED_GRES, so jobs go to the emptiest GPU and do not share GPUs",
            f"remove it from slurm.conf, and {_RESTART}",
        )
    if "MULTIPLE_SHARING_GRES_PJ" in raw.get("SelectTypeParameters", ""):
        yield fail(
            "SelectTypeParameters has MULTIPLE_SHARING_GRES_PJ, so a job may get shards of several GPUs",
            f"remove it from slurm.conf, and {_RESTART}",
        )
    if raw.get("JobRequeue", "1") == "0":
        yield warn(
            "JobRequeue is 0, so only jobs of `sbatch --requeue` share GPUs: Slurm cannot requeue others",
            "set JobRequeue=1 in slurm.conf, run scontrol reconfigure, then slurm-gpu policy apply",
        )
    numbers = {node.shards_per_gpu for node in at.nodes if node.n_gpus}
    with_shards = {number for number in numbers if number is not None}
    if not with_shards:
        yield fail(
            "no node has shards, so jobs cannot share GPUs",
            "for 4 GPUs per node, set GresTypes=gpu,shard and Gres=gpu:4,shard:32 in slurm.conf and "
            f"Name=shard Count=32 in gres.conf; then {_RESTART}",
        )
    elif len(with_shards) > 1:
        yield warn(
            f"GPUs have {' or '.join(map(str, sorted(with_shards)))} shards, depending on the node, so jobs "
            f"share only GPUs with {max(with_shards)} shards",
            "give all shared GPUs the same number of shards",
        )
    elif min(with_shards) < 4:
        yield warn(
            f"a GPU has {min(with_shards)} shards, so jobs get memory in steps of "
            f"{100 // min(with_shards)} %",
            "set 8 shards or more per GPU in gres.conf and slurm.conf",
        )


def _places(at: DoctorContext, rule: ColocationInForce) -> Iterator[CheckResult]:
    seen = status.last_seen(at.controller_run / status.FILE_NAME)
    if seen is None or at.site.wall() - seen > status.FRESH_S:
        yield fail(
            f"mode is {rule.mode}, but slurm-gpuctld on this host does not place jobs: every job keeps its "
            "GPU",
            start_and_log(at, "slurm-gpuctld"),
        )
        return
    serving = status.serving_of(at.controller_run / status.FILE_NAME)
    if serving is not None and serving.why is not None:
        yield warn(
            f"planner {serving.serves} is used instead of {serving.asked}: {serving.why}",
            "put the planner's model at the path in policy.yaml, readable by SlurmUser; slurm-gpuctld then "
            "uses it automatically",
        )
