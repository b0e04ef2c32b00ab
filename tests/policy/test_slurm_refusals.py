"""explain reports refusals by Slurm itself, with valid alternatives."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

from slurm_gpu.policy.explain.named_reservation import KnownReservations
from slurm_gpu.policy.explain.sbatch import parse_command
from slurm_gpu.policy.explain.slurm_refusals import RunningSlurm, refusals_of_slurm, waits_of_slurm
from slurm_gpu.policy.explain.submitter import Submitter
from slurm_gpu.slurm.client import SlurmNode, SlurmSettings
from slurm_gpu.slurm.reservations import SlurmReservation
from slurm_gpu.slurm.submission import Partition, UserAssociations


def node(name: str, kind: str, *partitions: str) -> SlurmNode:
    return SlurmNode(
        name=name,
        address=name,
        state="idle",
        reason=None,
        cpus=32,
        cpus_allocated=0,
        memory_mib=102_400,
        memory_allocated_mib=0,
        gpus={kind: 4} if kind else {},
        gpus_allocated={},
        shards=0,
        shards_allocated=0,
        features=(),
        partitions=partitions,
    )


SETTINGS = SlurmSettings(
    cluster="c",
    version="22.05.8",
    slurm_user="slurm",
    slurm_user_uid=64030,
    conf_path="/etc/slurm/slurm.conf",
    raw={
        "AccountingStorageEnforce": "associations,limits,qos",
        "GresTypes": "gpu,shard",
        "SelectTypeParameters": "CR_CORE_MEMORY",
    },
)
CLUSTER = RunningSlurm(
    SETTINGS,
    [node("n1", "a100", "gpu"), node("n2", "a100", "gpu"), node("n3", "v100", "old"), node("c1", "", "cpu")],
    [
        Partition(name=name, is_default=name == "gpu", default_time_s=None, max_time_s=None)
        for name in ("gpu", "old", "cpu")
    ],
    "alice",
    UserAssociations(accounts=frozenset({"vision"}), qos=frozenset({"normal", "high"})),
)


def refusals(words: str, cluster: RunningSlurm = CLUSTER) -> list[str]:
    request = parse_command(["sbatch", *shlex.split(words), "--wrap=true"], {})
    return refusals_of_slurm(request, request.description(1001, "alice"), cluster)


@pytest.mark.parametrize(
    "words",
    [
        "",
        "-p gpu -A Vision -q HIGH --gpus=A100:8 --mem=100G -c 32",
        "--gpus=A100",
        "-p old,gpu --gpus=v100:1",
        "-N2 --gres=gpu:4,shard:2 --mem=0",
        "-w n[1-2]",
    ],
)
def test_requests_that_slurm_accepts_have_no_refusals(words: str) -> None:
    assert refusals(words) == []


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (
            "-p gpuu",
            "--partition: 'gpuu' is not a partition of this cluster; did you mean gpu? "
            "available: gpu, old, cpu",
        ),
        ("-p gpu,x", "--partition: 'x' is not a partition of this cluster; available: gpu, old, cpu"),
        ("-A nlp", "--account: alice may not use 'nlp'; available: vision"),
        ("-q hihg", "--qos: alice may not use 'hihg'; did you mean high? available: high, normal"),
        ("--gpus=h100:1", "--gpus: no eligible node has GPUs of type 'h100'; available: a100"),
        ("--gpus=h100", "--gpus: no eligible node has GPUs of type 'h100'; available: a100"),
        ("--gres=gpu:v100:1", "--gres: no eligible node has GPUs of type 'v100'; available: a100"),
        ("--gres=foo:1", "--gres: 'foo' is not in GresTypes; available: gpu, shard"),
        ("--gpus=9", "--gpus: 9 requested, but gpu has 8"),
        ("-N9", "--nodes=9: gpu has 2 nodes"),
        ("-w n9", "--nodelist: 'n9' is not a node of this cluster; available: n1, n2, n3, c1"),
        ("--gpus=9 --gpus-per-node=4", "--gpus=9 is not a multiple of --gpus-per-node=4; use --gpus=8"),
    ],
)
def test_requests_that_slurm_refuses_are_reported_with_alternatives(words: str, refusal: str) -> None:
    assert refusals(words) == [refusal]


@pytest.mark.parametrize(
    ("words", "needed", "there"),
    [
        ("--gpus-per-node=8", "8 GPUs", "4 GPUs"),
        ("--gres=gpu:8", "8 GPUs", "4 GPUs"),
        ("--gpus=5 --nodes=1", "5 GPUs", "4 GPUs"),
        ("--gpus-per-task=3 --ntasks=4", "6 GPUs", "4 GPUs"),
        ("--gpus-per-socket=3 --sockets-per-node=2", "6 GPUs", "4 GPUs"),
        ("--cpus-per-task=64", "64 CPUs", "32 CPUs"),
        ("--cpus-per-task=5 --ntasks-per-node=8", "40 CPUs", "32 CPUs"),
        ("--ntasks=80", "40 CPUs", "32 CPUs"),
        ("--ntasks=40 --nodes=1", "40 CPUs", "32 CPUs"),
        ("--mincpus=33", "33 CPUs", "32 CPUs"),
        ("--mem=999T", "999T", "100G"),
        ("--mem-per-cpu=60G --cpus-per-task=2", "120G", "100G"),
    ],
)
def test_a_job_that_needs_more_on_one_node_than_any_node_has_is_reported(
    words: str, needed: str, there: str
) -> None:
    expected = f"{words}: {needed} needed on one node, but no node of gpu has more than {there}"
    assert refusals(words) == [expected]


def test_a_gpu_that_needs_more_cpus_or_memory_than_a_node_with_gpus_has_is_reported() -> None:
    large = replace(CLUSTER.nodes[-1], name="c2", cpus=256, memory_mib=1024**2, partitions=("gpu",))
    cluster = replace(CLUSTER, nodes=[*CLUSTER.nodes, large])
    for words, message in (
        (
            "--cpus-per-gpu=40 --gpus=1",
            "40 CPUs needed on one node, but no node of gpu with 1 GPU has more than 32 CPUs",
        ),
        (
            "--mem-per-gpu=60G --gpus-per-node=2",
            "120G needed on one node, but no node of gpu with 2 GPUs has more than 100G",
        ),
    ):
        assert refusals(words, cluster) == [f"{words}: {message}"]


@pytest.mark.parametrize(
    "words",
    [
        "--gpus=5",
        "--gpus=5 --nodes=1-2",
        "--gpus=8 --gpus-per-task=4",
        "--cpus-per-gpu=16 --gpus=4",
        "--ntasks=64",
        "--ntasks=2 --ntasks-per-node=40",
        "--ntasks-per-node=40 --overcommit",
        "--mem-per-gpu=60G --gpus=2",
        "--mem-per-cpu=90G --ntasks=2",
    ],
)
def test_a_job_that_may_fit_on_some_nodes_is_accepted(words: str) -> None:
    assert refusals(words) == []


def test_without_allocated_memory_only_the_memory_of_one_cpu_or_gpu_must_fit() -> None:
    cluster = replace(
        CLUSTER, settings=replace(SETTINGS, raw=SETTINGS.raw | {"SelectTypeParameters": "CR_CORE"})
    )
    assert refusals("--mem-per-cpu=60G --cpus-per-task=2", cluster) == []
    assert refusals("--mem-per-gpu=60G --gpus-per-node=2", cluster) == []


def test_a_gpu_type_is_refused_if_no_node_reports_types() -> None:
    untyped = replace(CLUSTER, nodes=[replace(one, gpus={"": one.n_gpus}) for one in CLUSTER.nodes[:2]])
    message = "no eligible node has GPUs of type 'a100'; available: GPUs without a type"
    assert refusals("--gpus=a100", untyped) == [f"--gpus: {message}"]
    assert refusals("--gres=gpu:a100:1", untyped) == [f"--gres: {message}"]
    assert refusals("--gpus=2", untyped) == []


def test_types_of_gpus_in_several_options_are_reported_in_the_options_of_the_user() -> None:
    assert refusals("--gpus=1 --gres=gpu:h100:1") == [
        "--gpus and --gres: either all options or none must name a GPU type, such as h100:1",
        "--gres: no eligible node has GPUs of type 'h100'; available: a100",
    ]


@pytest.mark.parametrize(
    ("version", "words", "refused"),
    [
        ("24.11.5", "-q HIGH,normal", []),
        ("26.05.5", "-q high,hihg", ["alice may not use 'hihg'; did you mean high?"]),
        ("22.05.8", "-q high,normal", ["alice may not use 'high,normal'; did you mean normal?"]),
    ],
)
def test_several_qos_are_accepted_from_24_11_on(version: str, words: str, refused: list[str]) -> None:
    there = replace(CLUSTER, settings=replace(SETTINGS, version=version))
    assert refusals(words, there) == [f"--qos: {text} available: high, normal" for text in refused]


FEATURES = replace(
    CLUSTER,
    nodes=[
        replace(one, features=features)
        for one, features in zip(CLUSTER.nodes, [("z1", "a100"), ("z2", "a100"), ("z2",), ()], strict=True)
    ],
)


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        ("-C z3", "--constraint: 'z3' is not a feature of any node; available: a100, z1, z2"),
        ("-C z1&z2", "--constraint=z1&z2: no node of gpu satisfies it"),
        ("-p old --constraint=z1", "--constraint=z1: no node of old satisfies it"),
        ("-N2 -C z1", "--constraint=z1: only 1 node of gpu satisfies it"),
    ],
)
def test_features_that_no_node_has_are_reported(words: str, refusal: str) -> None:
    assert refusals(words, FEATURES) == [refusal]


@pytest.mark.parametrize("words", ["-C z1", "-N2 -C 'z1|z2'", "-p old,gpu -N2 -C z2", "-N2 -C '[z1*1&z2*1]'"])
def test_features_of_enough_nodes_are_accepted(words: str) -> None:
    assert refusals(words, FEATURES) == []


def test_the_time_limit_of_a_partition_is_reported_as_slurm_enforces_it() -> None:
    timed = replace(CLUSTER, partitions=[replace(CLUSTER.partitions[0], max_time_s=1800)])
    enforcing = replace(SETTINGS, raw={**SETTINGS.raw, "EnforcePartLimits": "ALL"})
    request = parse_command(["sbatch", "--time=60", "--wrap=true"], {})
    description = request.description(1001, "alice")
    message = "partition gpu allows at most 30m (--time)"
    assert (refusals("--time=60", timed), waits_of_slurm(request, description, timed)) == ([], (message,))
    timed = replace(timed, settings=enforcing)
    assert (refusals("--time=60", timed), waits_of_slurm(request, description, timed)) == ([message], ())
    assert refusals("--time=30", timed) == refusals("", timed) == []


def test_amounts_of_nodes_are_reported_exactly() -> None:
    odd = [replace(node, memory_mib=100_000) for node in CLUSTER.nodes]
    assert refusals("--mem=98G", replace(CLUSTER, nodes=odd)) == [
        "--mem=98G: 98G needed on one node, but no node of gpu has more than 100000M"
    ]


def test_a_job_needs_a_partition() -> None:
    bare = replace(CLUSTER, partitions=[replace(part, is_default=False) for part in CLUSTER.partitions])
    (refusal,) = refusals("", bare)
    assert refusal == "--partition is missing, and there is no default partition; available: gpu, old, cpu"


NOW_S = 1000
RESERVED = replace(
    CLUSTER,
    submitter=Submitter(account="vision"),
    reservations=KnownReservations(
        [
            SlurmReservation("sg_1", 0, 9000, "n1", frozenset({"alice"}), frozenset({"vision"})),
            SlurmReservation("sg_2", 0, 9000, "n2", frozenset({"bob"})),
            SlurmReservation("sg_3", 5000, 9000, "n2", frozenset(), frozenset({"nlp"})),
            SlurmReservation("old", 0, NOW_S, "n[1-2]", frozenset({"alice"})),
            SlurmReservation("but_alice", 0, 9000, "n[1-2]", frozenset({"-alice"})),
            SlurmReservation("but_bob", 0, 9000, "n[1-2]", frozenset({"-bob"})),
            SlurmReservation("flex", 0, 9000, "n1", frozenset({"alice"}), flags=frozenset({"FLEX"})),
            SlurmReservation("matlab", 0, 9000, "", frozenset({"alice"})),
        ],
        NOW_S,
    ),
)


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        ("--reservation=sg_1 --gpus=5", "--gpus: 5 requested, but reservation sg_1 has 4"),
        ("--reservation=sg_1 -N2", "--nodes=2: reservation sg_1 has 1 node"),
        (
            "--reservation=sg_1 --gpus-per-node=8",
            "--gpus-per-node=8: 8 GPUs needed on one node, but no node of reservation sg_1 has more than "
            "4 GPUs",
        ),
        ("--reservation=sg_1 -w n2", "--nodelist: 'n2' is not in reservation sg_1; available: n1"),
        ("--reservation=sg_2", "--reservation: sg_2 is not for alice; it is for users bob"),
        ("--reservation=sg_3", "--reservation: sg_3 is not for vision; it is for accounts nlp"),
        ("--reservation=old", "--reservation: old has ended"),
        ("--reservation=but_alice", "--reservation: but_alice is not for alice; it is for users -alice"),
        (
            "--reservation=sg1",
            "--reservation: 'sg1' does not exist (reservations: but_alice, but_bob, flex, matlab, old, sg_1, "
            "sg_2, sg_3); did you mean sg_1?",
        ),
    ],
)
def test_a_reservation_that_is_too_small_or_of_another_user_is_reported(words: str, refusal: str) -> None:
    assert refusals(words, RESERVED) == [refusal]


@pytest.mark.parametrize(
    "words",
    [
        "--reservation=sg_1 --gpus=4",
        "--reservation=sg_2,sg_1 -N2 --gpus-per-node=4",  # one of several reservations must permit the job
        "--reservation=but_bob --gpus=8",
        "--reservation=flex --gpus=8",
        "--reservation=matlab --gpus=8",
    ],
)
def test_a_reservation_on_which_the_job_fits_is_accepted(words: str) -> None:
    assert refusals(words, RESERVED) == []


def test_root_can_use_any_reservation_and_unknown_ones_are_not_judged() -> None:
    root = replace(RESERVED, submitter=Submitter(is_root=True))
    assert refusals("--reservation=sg_2", root) == []
    assert refusals("--reservation=sg_2 --gpus=8", replace(RESERVED, reservations=None)) == []


def test_without_enforced_associations_slurm_accepts_any_account() -> None:
    settings = replace(SETTINGS, raw={"AccountingStorageEnforce": "none"})
    assert refusals("-A nlp -q nosuch", replace(CLUSTER, settings=settings)) == []


def test_unknown_clusters_are_not_judged() -> None:
    unknown = RunningSlurm(SETTINGS, [], [], "alice", UserAssociations())
    assert refusals("-p x -A y -q z --gpus=h100:99 --mem=999T -w n9", unknown) == []


LICENSED = replace(CLUSTER, licenses={"matlab": 10, "ansys@flex": 4})


@pytest.mark.parametrize("words", ["-L matlab", "-L matlab:6,matlab*4", "-L ansys@flex:4;matlab", "-L ansys"])
def test_configured_licences_are_accepted(words: str) -> None:
    assert refusals(words, LICENSED) == []


@pytest.mark.parametrize(
    ("value", "refusal"),
    [
        (
            "matlb:2",
            "'matlb' is not a licence of this cluster; did you mean matlab? available: ansys@flex, matlab",
        ),
        ("matlab:6,matlab:5", "11 of matlab requested, but the cluster has 10"),
    ],
)
def test_licences_that_the_cluster_lacks_are_reported(value: str, refusal: str) -> None:
    assert refusals(f"--licenses={value}", LICENSED) == [f"--licenses: {refusal}"]
    assert refusals(f"--licenses={value}|ansys", LICENSED) == []
    assert refusals(f"--licenses={value}") == []  # the licences could not be read


def test_more_licences_than_configured_are_accepted_if_slurm_allows_it() -> None:
    settings = replace(SETTINGS, raw={**SETTINGS.raw, "SchedulerParameters": "bf_continue,allow_zero_lic"})
    assert refusals("-L matlab:11", replace(LICENSED, settings=settings)) == []
