"""Whether Slurm and slurm-gpuctld can do what the policy says of jobs that share GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from slurm_gpu.cli.doctor.checks.daemons.services import start_and_log
from slurm_gpu.cli.doctor.checks.finding import CheckResult, DoctorContext, fail, ok, skipped, warn
from slurm_gpu.controller.colocation import status
from slurm_gpu.policy.lua.install import SCRIPT_NAME
from slurm_gpu.policy.lua.installed import ColocationInForce, read_policy_in_force
from slurm_gpu.text.units import counted

_RESTART = "restart slurmctld and slurmd on all nodes"


def colocation(at: DoctorContext) -> Iterator[CheckResult]:
    """Shards where they are needed, nothing that takes them apart, and a slurm-gpuctld that gives places."""
    if not at.is_controller:
        yield skipped("jobs that share are looked after on the hosts of slurmctld, and this host is none")
        return
    policy = read_policy_in_force(Path(at.settings.conf_path).parent / SCRIPT_NAME)
    said = policy.colocation if policy is not None else None
    if policy is None or said is None:
        yield skipped("no policy in force has jobs share GPUs")
        return
    found = [*_slurm(at), *_places(at, said)]
    yield from found
    if not found:
        sharing = [node for node in at.nodes if node.shards_per_gpu]
        yield ok(f"mode {said.mode}: jobs can share the GPUs of {counted(len(sharing), 'node')}")


def _slurm(at: DoctorContext) -> Iterator[CheckResult]:
    raw = at.settings.raw
    if raw.get("SelectType", "") != "select/cons_tres":
        yield fail(
            f"SelectType is {raw.get('SelectType') or 'not set'}: only select/cons_tres knows shards",
            f"write SelectType=select/cons_tres into slurm.conf, and {_RESTART}",
        )
    if "LL_SHARED_GRES" in raw.get("SelectTypeParameters", ""):
        yield fail(
            "SelectTypeParameters has LL_SHARED_GRES: jobs go to the emptiest GPU, and do not share GPUs",
            f"take it out of slurm.conf, and {_RESTART}",
        )
    if "MULTIPLE_SHARING_GRES_PJ" in raw.get("SelectTypeParameters", ""):
        yield fail(
            "SelectTypeParameters has MULTIPLE_SHARING_GRES_PJ: shards of a job may be of several GPUs",
            f"take it out of slurm.conf, and {_RESTART}",
        )
    if raw.get("JobRequeue", "1") == "0":
        yield warn(
            "JobRequeue is 0: only jobs of `sbatch --requeue` share, as others cannot be sent back",
            "write JobRequeue=1 into slurm.conf, and `scontrol reconfigure`; then `slurm-gpu policy apply`",
        )
    numbers = {node.shards_per_gpu for node in at.nodes if node.n_gpus}
    with_shards = {number for number in numbers if number is not None}
    if not with_shards:
        yield fail(
            "no node has shards: there is nothing to share",
            "with 4 GPUs a node: GresTypes=gpu,shard and Gres=gpu:4,shard:32 in slurm.conf, Name=shard "
            f"Count=32 in gres.conf; {_RESTART}",
        )
    elif len(with_shards) > 1:
        yield warn(
            f"GPUs have {' or '.join(map(str, sorted(with_shards)))} shards, by node: jobs share where they "
            f"have {max(with_shards)}",
            "give all GPUs that are shared as many",
        )
    elif min(with_shards) < 4:
        yield warn(
            f"a GPU has {min(with_shards)} shards: jobs are sized in steps of so much of its memory",
            "8 or more in gres.conf and slurm.conf have them fit better",
        )


def _places(at: DoctorContext, said: ColocationInForce) -> Iterator[CheckResult]:
    seen = status.last_seen(at.controller_run / status.FILE_NAME)
    if seen is None or at.site.wall() - seen > status.FRESH_S:
        yield fail(
            f"mode is {said.mode}, but no slurm-gpuctld here gives places: every job keeps its GPU",
            start_and_log(at, "slurm-gpuctld"),
        )
        return
    serving = status.serving_of(at.controller_run / status.FILE_NAME)
    if serving is not None and serving.why is not None:
        yield warn(
            f"planner {serving.serves} is used instead of {serving.asked}: {serving.why}",
            "put its model where policy.yaml says, readable for SlurmUser; slurm-gpuctld finds it by itself",
        )
