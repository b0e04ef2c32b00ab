"""For any rules and any request, the command that a refusal advises is accepted."""

from __future__ import annotations

import re
import shlex

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from slurm_gpu.policy.explain.sbatch import parse_command
from slurm_gpu.policy.lua.bundle import build_bundle
from slurm_gpu.policy.lua.script import PolicyScript, ScriptDecision

from .compile import compiled
from .fuzzing import examples
from .model import BundleModel, Request, RuleModel
from .policystrategies import BUNDLES, rule_lists
from .render import PARTITIONS, record
from .strategies import full_requests, queued
from .test_messages import advice, sbatch_words


def command_words(request: Request) -> list[str]:
    """Return the command line of a request."""
    values = {
        "--cpus-per-task": request.cpus_per_task,
        "--cpus-per-gpu": request.cpus_per_gpu,
        "--mem": request.mib_per_node,
        "--mem-per-cpu": request.mib_per_cpu,
        "--mem-per-gpu": request.mib_per_gpu,
    }
    *words, script = sbatch_words(request)
    if request.gpu_type:
        words = [word.replace("--gpus=", f"--gpus={request.gpu_type}:") for word in words]
        words = [word.replace("per-task=", f"per-task={request.gpu_type}:") for word in words]
        words = [word.replace("--gres=gpu:", f"--gres=gpu:{request.gpu_type}:") for word in words]
    return [*words, *(f"{name}={value}" for name, value in values.items() if value is not None), script]


# Options that the advised command keeps, unless the advice changes them. Some options name three nodes.
LIST, COUNTS = "--nodelist=n[1-3]", "--constraint=[a*3]"
KEPT: list[tuple[str, ...]] = [
    (),
    ("--exclusive",),
    (LIST,),
    (COUNTS,),
    (LIST, COUNTS),
    (LIST, "--exclusive"),
]


@settings(max_examples=examples(20, one_in=10), deadline=None)
@given(
    rules=rule_lists(kinds=False, hours=False),
    bundles=BUNDLES,
    queue=st.lists(queued(), max_size=4),
    request=full_requests(),
    kept=st.sampled_from(KEPT),
)
def test_every_advised_command_is_accepted(
    rules: list[RuleModel],
    bundles: list[BundleModel],
    queue: list[tuple[Request, bool]],
    request: Request,
    kept: tuple[str, ...],
) -> None:
    table = compiled(rules, "/nonexistent/decisions.log", bundles, partition_gpus={"gpu": 4, "long": 2})
    script = PolicyScript(build_bundle(table), now=lambda: 1_000_000)
    script.set_jobs(record(number, job, running=running) for number, (job, running) in enumerate(queue))
    *words, wrap = command_words(request)

    def ask(*more: str) -> ScriptDecision:
        desc = parse_command([*more, wrap], {}).description(request.uid, "alice")
        return script.submit(desc, PARTITIONS)

    refusal = ask(*words, *kept)
    assume(not refusal.accepted)
    options = advice(refusal)
    if options is not None:
        opening = " ".join(line for line in refusal.messages if "ry without --" in line)
        own, left = (
            [option for option in given if option.partition("=")[0] not in opening] for given in (words, kept)
        )
        verdict = ask(*own, *left, *shlex.split(options))
        assert verdict.accepted, (words, options, verdict.messages)
        if any("3" in option for option in left):
            counts = re.findall(r"--(?:nodes|ntasks)=(\d+)", options)
            assert all(int(count) >= 3 for count in counts), (words, left, options)


def refused(rule: RuleModel, *words: str, bundles: tuple[BundleModel, ...] = ()) -> list[str]:
    """Return the lines of the refusal of one user's command."""
    table = compiled([rule], "/nonexistent/decisions.log", bundles)
    desc = parse_command([*words, "--wrap=true"], {}).description(1001, "alice")
    verdict = PolicyScript(build_bundle(table), now=lambda: 1_000_000).submit(desc, PARTITIONS)
    assert not verdict.accepted
    return list(verdict.messages)


def test_advice_of_fewer_nodes_for_a_range_names_the_tasks_too() -> None:
    rule = RuleModel("r", "job", limits={"nodes": 2, "gpus": 2000})
    lines = refused(rule, "--gpus-per-task=2", "--nodes=1-3")
    assert lines[2].endswith("sbatch --nodes=1 --ntasks=1 ...")


def test_each_limit_states_its_numbers_and_an_accepted_option() -> None:
    def lines(
        limit: dict[str, float | frozenset[str] | tuple[tuple[int, int], ...]], *words: str
    ) -> list[str]:
        said = refused(RuleModel("r", "job", limits=limit), *words)
        return [line.strip() for line in said[1:-1]]

    mark = "Try: sbatch "
    assert lines({"cpus_per_gpu": 8}, "--gpus=2", "-c32") == [
        "CPUs per GPU: limit 8, requested 16.",
        mark + "--cpus-per-task=16 ...",
    ]
    assert lines({"cpus_per_gpu": 8}, "--gpus=2", "--cpus-per-gpu=10") == [
        "CPUs per GPU: limit 8, requested 10.",
        mark + "--cpus-per-gpu=8 ...",
    ]
    assert lines({"memory_per_gpu": 65536}, "--gpus=2", "--mem=200G") == [
        "memory per GPU: limit 64G, requested 100G.",
        mark + "--mem=128G ...",
    ]
    assert lines({"memory": 65536}, "-n4", "--mem-per-cpu=20G") == [
        "memory of one job: limit 64G, requested 80G.",
        mark + "--mem-per-cpu=16G ...",
    ]
    assert lines({"nodes": 2}, "-N4", "--gres=gpu:1") == [
        "nodes in one job: limit 2, requested 4.",
        mark + "--nodes=2 ...",
    ]
    assert lines({"gpu_hours": 6}, "--gpus=4", "-t", "3:00:00", "--array=0-9") == [
        "GPU-hours of one job: limit 6, requested 12.",
        mark + "--time=01:30:00 ...",
    ]
    on_node = "GPUs on one node: limit 4, requested 8."
    assert lines({"gpus_per_node": 4}, "-N2", "--gres=gpu:8") == [on_node, mark + "--gres=gpu:4 ..."]
    assert lines({"gpus_per_node": 4}, "--gpus=8") == [on_node, mark + "--gpus=4 ..."]
    per_task = ["-n16", "--ntasks-per-node=8", "--gpus-per-task=1"]
    assert lines({"gpus_per_node": 4}, *per_task) == [on_node, mark + "--ntasks=4 ..."]
    assert lines({"tasks": 4}, "-n16") == [
        "tasks of one job (--ntasks): limit 4, requested 16.",
        mark + "--ntasks=4 ...",
    ]
    assert lines({"array_tasks": 10}, "--array=0-99") == [
        "tasks of one array: limit 10, requested 100.",
        mark + "--array=0-9 ...",
    ]
    long = ",".join(map(str, range(0, 200, 3)))  # longer than a line of the message
    assert lines({"array_tasks": 40}, f"--array={long}%5")[1:] == [mark + "--array=0-39%5 ..."]
    assert lines({"walltime": ((1000, 86400), (8000, 7200))}, "--gpus=8", "-t", "3:00:00") == [
        "time limit: limit 02:00:00, requested 03:00:00.",
        mark + "--time=02:00:00 ...",
    ]
    by_gpus = {"cpus": ((0, 4), (1000, 8), (4000, 48)), "memory": ((0, 4096), (1000, 65536))}
    assert lines({"cpus": by_gpus["cpus"]}, "--gpus=2", "-c16") == [
        "CPUs in one job: limit 8, requested 16.",
        mark + "--cpus-per-task=8 ...",
    ]
    assert lines({"memory": by_gpus["memory"]}, "--mem=8G") == [
        "memory of one job: limit 4G, requested 8G.",
        mark + "--mem=4G ...",
    ]
    assert lines({"partitions": frozenset({"long"})}, "-p", "gpu") == [
        "partition: allowed long, requested gpu.",
        mark + "--partition=long ...",
    ]
    assert lines({"qos": frozenset({"sg-long", "sg-short"})}, "--gpus=2") == [
        "QOS: allowed sg-long, sg-short, requested normal.",
        mark + "--qos=sg-long ...",
    ]
    assert lines({"gpu_types": frozenset({"v100"})}, "-p", "long", "--gpus=2") == [
        "GPU type: allowed v100, requested any type in partition long.",
        mark + "--gpus=v100:2 ...",
    ]
    assert lines({"gpus:a100": 2000}, "--gpus=a100:4") == [
        "a100 GPUs in one job: limit 2, requested 4.",
        mark + "--gpus=a100:2 ...",
    ]


@pytest.mark.parametrize(
    ("limit", "words", "advised"),
    [
        ({"gpus": 4000}, "-w n[1-2] --gres=gpu:4", "Try: sbatch --gres=gpu:2 ..."),
        ({"gpus": 4000}, "-N2 -C [a*1&b*1] --gres=gpu:4", "Try: sbatch --gres=gpu:2 ..."),
        ({"gpus": 5000}, "-N1-3 -w n[1-2] --gres=gpu:2", "Try: sbatch --nodes=2 ..."),
        (
            {"gpus": 1000},
            "-w n[1-2] --gres=gpu:4",
            "Try without --nodelist: sbatch --nodes=1 --gres=gpu:1 ...",
        ),
        ({"gpus": 2000}, "-w n[1-4] --gpus=8", "Try without --nodelist: sbatch --nodes=2 --gpus=2 ..."),
        (
            {"gpus": 2000},
            "-w n[1-4] -n8 --gpus-per-task=1",
            "Try without --nodelist: sbatch --nodes=2 --ntasks=2 ...",
        ),
        ({"nodes": 1}, "-w n1,n2", "Try without --nodelist: sbatch --nodes=1 ..."),
        ({"nodes": 1}, "-N2 -C [a*1&b*1]", "Try without --constraint: sbatch --nodes=1 ..."),
        ({"nodes": 1}, "-C [a*1&b*1]", "Try without --constraint: sbatch ..."),
        (
            {"nodes": 1},
            "-w n[1-2] -C [a*1&b*1]",
            "Try without --nodelist and --constraint: sbatch --nodes=1 ...",
        ),
    ],
)
def test_advice_names_no_fewer_nodes_than_the_options_that_it_keeps(
    limit: dict[str, float], words: str, advised: str
) -> None:
    assert refused(RuleModel("r", "job", limits=limit), *words.split())[2] == f"  {advised}"


@pytest.mark.parametrize(
    "words",
    [
        ["-N2", "--gres=gpu:4"],
        ["--gpus=8", "--gpus-per-node=4"],
        ["-n8", "--ntasks-per-node=4", "--gpus-per-task=1"],
    ],
    ids=str,
)
def test_gpus_per_node_are_those_that_the_request_allows_on_one_node(words: list[str]) -> None:
    def accepted(most: int) -> bool:
        table = compiled(
            [RuleModel("r", "job", limits={"gpus_per_node": most})], "/nonexistent/decisions.log"
        )
        desc = parse_command([*words, "--wrap=true"], {}).description(1001, "alice")
        return PolicyScript(build_bundle(table)).submit(desc, PARTITIONS).accepted

    assert [accepted(4), accepted(3)] == [True, False]


@pytest.mark.parametrize(
    ("limit", "words", "numbers", "advised"),
    [
        ({"gpus_running": 2000}, ["--gpus=8"], "GPUs of running jobs: limit 2, requested 8", "--gpus=2"),
        (
            {"gpus_running:a100": 2000},
            ["--gpus=a100:4"],
            "a100 GPUs of running jobs: limit 2, requested 4",
            "--gpus=a100:2",
        ),
        ({"cpus_running": 8}, ["-c16"], "CPUs of running jobs: limit 8, requested 16", "--cpus-per-task=8"),
        (
            {"memory_running": 1024},
            ["--mem=2G"],
            "memory of running jobs: limit 1G, requested 2G",
            "--mem=1G",
        ),
        ({"nodes_running": 1}, ["-N2"], "nodes of running jobs: limit 1, requested 2", "--nodes=1"),
        ({"jobs_running": 0}, [], "running jobs: limit 0, requested 1", None),
    ],
    ids=str,
)
@pytest.mark.parametrize("per", ["user", "group"])
def test_a_job_that_alone_exceeds_a_limit_on_running_jobs_is_refused(
    limit: dict[str, float], words: list[str], numbers: str, advised: str | None, per: str
) -> None:
    _, *lines, _ = refused(RuleModel("turns", per, limits=limit), *words)
    together = " (limit shared by group group-turns)" if per == "group" else ""
    advice = "" if advised is None else f" Try: sbatch {advised} ..."
    assert " ".join(line.strip() for line in lines) == f"{numbers}{together}.{advice}"


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ({"gpus_running": 2000}, ["--gpus=1", "--array=0-9"]),  # each task is a job
        ({"gpus_running": 0}, ["--gres=shard:2"]),  # Slurm does not count shards as GPUs
        ({"gpus_running:a100": 0}, ["--gpus=4"]),  # Slurm counts only named types
        ({"jobs_running": 1}, []),
    ],
    ids=str,
)
def test_a_job_that_slurm_can_start_within_a_limit_on_running_jobs_is_accepted(
    limit: dict[str, float], words: list[str]
) -> None:
    table = compiled([RuleModel("turns", "user", limits=limit)], "/nonexistent/decisions.log")
    desc = parse_command([*words, "--wrap=true"], {}).description(1001, "alice")
    assert PolicyScript(build_bundle(table)).submit(desc, PARTITIONS).accepted


def test_a_bundle_refuses_and_advises_like_a_rule() -> None:
    train = BundleModel("train", 1000, cpus=8, mib=65536, mode="enforce")
    idle = RuleModel("r", "job", limits={})
    assert refused(idle, "--gpus=2", "-c20", "--mem=256G", bundles=(train,)) == [
        "Refused by bundle train: Reason of train.",
        "  CPUs with 2 GPUs: limit 16, requested 20.",
        "  memory with 2 GPUs: limit 128G, requested 256G.",
        "  Try: sbatch --cpus-per-task=16 --mem=128G ...",
        "  Questions: gpu-help",
    ]


def test_a_bundle_of_one_gpu_is_named_in_the_singular() -> None:
    train = BundleModel("train", 1000, cpus=8, mode="enforce")
    lines = refused(RuleModel("r", "job"), "--gpus=1", "-c20", bundles=(train,))
    assert lines[1] == "  CPUs with 1 GPU: limit 8, requested 20."


@pytest.mark.parametrize(
    ("limits", "words", "advised"),
    [
        ({"gpus:v100": 0}, "--gpus=4", "Try: sbatch --gpus=a100:4 ..."),
        ({"gpus:v100": 0}, "-n4 --gpus-per-task=1", "Try: sbatch --gpus-per-task=a100:1 ..."),
        ({"gpus:v100": 2000}, "--gpus=4", "Try: sbatch --gpus=a100:4 ..."),
        ({"gpus:v100": 0, "gpus:a100": 2000}, "--gpus=4", "Try: sbatch --gpus=a100:2 ..."),
        ({"gpus:v100": 2000, "gpus:a100": 2000}, "--gpus=4", "Try: sbatch --gpus=2 ..."),
        ({"gpus:v100": 2000, "gpus_running:a100": 1000}, "--gpus=4", "Try: sbatch --gpus=v100:2 ..."),
        ({"gpus:v100": 0}, "--gres=shard:4", None),
        ({"gpus:v100": 0}, "--gpus=v100:4", None),
    ],
)
def test_advice_names_a_gpu_type_if_a_limit_on_another_type_is_too_low(
    limits: dict[str, float], words: str, advised: str | None
) -> None:
    lines = refused(RuleModel("r", "job", limits=limits), "-p", "long", *words.split())
    assert next((line.strip() for line in lines if "Try" in line), None) == advised


def test_a_job_without_gpus_is_advised_to_use_the_partition_of_its_bundle() -> None:
    prep = BundleModel("prep", 0, partitions=frozenset({"long"}), mode="enforce")
    assert refused(RuleModel("r", "job"), "-p", "gpu", "-c4", bundles=(prep,))[1:3] == [
        "  partition of a job without GPUs: allowed long, requested gpu.",
        "  Try: sbatch --partition=long ...",
    ]


def test_a_job_without_gpus_may_not_start_in_any_partition_outside_its_bundles() -> None:
    prep = BundleModel("prep", 0, cpus=8, partitions=frozenset({"long"}), mode="enforce")
    rule = RuleModel("r", "job")
    assert refused(rule, "-p", "long,gpu", "-c10", bundles=(prep,))[1:4] == [
        "  partition of a job without GPUs: allowed long, requested long,gpu.",
        "  CPUs without GPUs: limit 8, requested 10.",
        "  Try: sbatch --partition=long --cpus-per-task=8 ...",
    ]
    other = BundleModel("other", 0, partitions=frozenset({"gpu"}), mode="enforce")
    script = PolicyScript(build_bundle(compiled([rule], "/nonexistent/decisions.log", [prep, other])))
    asked = parse_command(["sbatch", "-p", "long,gpu", "--wrap=true"], {}).description(1001, "alice")
    assert script.submit(asked, PARTITIONS).accepted


def test_every_limit_is_considered_once() -> None:
    rules = [
        RuleModel("size", "job", limits={"gpus": 4000, "cpus_per_gpu": 8}),
        RuleModel("share", "user", mode="advise", limits={"gpus_total": 1000}),
        RuleModel("nlp", "user", accounts=frozenset({"nlp"}), limits={"gpus_total": 0}),
    ]
    train = BundleModel("train", 1000, cpus=4)
    table = compiled(rules, "/nonexistent/decisions.log", [train])
    script = PolicyScript(build_bundle(table), now=lambda: 1_000_000, considers=True)
    desc = parse_command(["sbatch", "--gpus=2", "-c20", "--wrap=true"], {}).description(1001, "alice")
    verdict = script.submit(desc, PARTITIONS)
    assert [
        (one.rule, one.label, one.used, one.limit, one.requested, one.fits) for one in verdict.considered
    ] == [
        ("size", "GPUs in one job", None, "4", "2", True),
        ("size", "CPUs per GPU", None, "8", "10", False),
        ("share", "GPUs running + pending", "0", "1", "2", False),
        ("bundle.train", "CPUs with 2 GPUs", None, "8", "20", False),
    ]
