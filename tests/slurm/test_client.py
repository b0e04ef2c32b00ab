"""Test the command backend with recorded output of three versions of Slurm."""

from collections.abc import Mapping, Sequence

import pytest

from slurm_gpu.errors import SlurmError
from slurm_gpu.slurm.client import AccountingRun, QueuedJob
from slurm_gpu.slurm.commands import CommandClient
from slurm_gpu.slurm.runner import run_command, stream_command
from slurm_gpu.slurm.scontrol import JobTexts, parse_nodes, parse_single_job
from tests.slurm.recorded import DATA, NOW_S, VERSIONS, RecordedSlurm, recorded_client


@pytest.fixture(scope="module", params=list(VERSIONS))
def version(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def client(version: str) -> CommandClient:
    return recorded_client(version)


@pytest.fixture(scope="module")
def jobs(client: CommandClient) -> dict[int, QueuedJob]:
    return {job.job_id: job for job in client.jobs()}


@pytest.fixture(scope="module")
def runs(client: CommandClient) -> list[AccountingRun]:
    return list(client.accounting(0))


def _named(jobs: dict[int, QueuedJob], name: str) -> QueuedJob:
    (job,) = (job for job in jobs.values() if job.name == name)
    return job


def test_settings_are_those_of_slurmctld(client: CommandClient, version: str):
    settings = client.settings()
    assert (settings.cluster, settings.version) == ("neuron", VERSIONS[version])
    assert settings.slurm_user == "slurm"
    assert settings.slurm_user_uid > 0
    assert settings.raw["GresTypes"] == "gpu,shard"
    assert settings.raw["JobDefaults"] == "DefMemPerGPU=4096"


def test_nodes_show_what_is_used_of_what(client: CommandClient):
    nodes = {node.name: node for node in client.nodes()}
    assert list(nodes) == ["n1", "n2", "n3", "n4"]
    n1, n3, n4 = nodes["n1"], nodes["n3"], nodes["n4"]
    assert n1.gpus == {"a100": 4}
    assert n1.gpus_allocated == {"a100": 4}
    assert (n3.gpus, n3.shards, n3.shards_allocated, n3.shards_per_gpu) == ({"v100": 4}, 16, 4, 4)
    assert n3.features == ["zone2"]
    assert (n4.gpus, n4.gpus_allocated, n4.shards_per_gpu) == ({}, {}, None)
    assert (n4.state, n4.partitions, n4.cpus, n4.memory_mib) == ("mixed+drain", ["cpu"], 16, 50000)


@pytest.mark.parametrize(
    ("gres", "allocated", "expected"),
    [
        ("gpu:a100:8", "gres/gpu=3", {"a100": 3}),
        ("gpu:8", "gres/gpu=3", {"": 3}),
        ("gpu:a100:4,gpu:v100:4", "gres/gpu=3,gres/gpu:v100=3", {"a100": 0, "v100": 3}),
    ],
)
def test_gpus_of_a_node_that_powers_up_are_those_of_its_jobs(
    gres: str, allocated: str, expected: dict[str, int]
):
    text = (
        "NodeName=s1 CoresPerSocket=1\n   CPUAlloc=8 CPUTot=64 CPULoad=N/A\n"
        f"   Gres={gres}\n   GresUsed={gres.replace('8', '0').replace('4', '0')}\n   NodeAddr=s1\n"
        "   RealMemory=512000 AllocMem=1 FreeMem=N/A\n   State=MIXED+CLOUD+POWERED_DOWN Weight=1\n"
        f"   CfgTRES=cpu=64,gres/gpu=8\n   AllocTRES=cpu=8,{allocated}\n"
    )
    (node,) = parse_nodes(text)
    assert node.gpus_allocated == expected


def test_reasons_have_no_author(client: CommandClient):
    reasons = {node.name: node.reason for node in client.nodes()}
    assert reasons == {"n1": None, "n2": None, "n3": None, "n4": "disk is full"}


def test_a_multi_node_job_names_its_gpus_node_by_node(jobs: dict[int, QueuedJob]):
    job = _named(jobs, "pipe|and space")
    assert job.gpu_index == {"n1": {"gpu": [1, 2]}, "n2": {"gpu": [0, 1]}}
    assert (job.nodes, job.n_nodes, job.state) == (["n1", "n2"], 2, "RUNNING")
    assert job.tres_allocated["gres/gpu"] == 4
    assert job.tres_allocated["mem"] == 16384
    assert job.gres_per_node in ("gres:gpu:a100:2", "gres/gpu:a100:2")
    assert (job.user, job.account, job.qos, job.partition) == ("alice", "vision", "normal", "gpu")
    assert job.uid > 0
    assert job.end_s == job.start_s + job.time_limit_s


def test_a_shard_job_names_the_gpu_it_sits_on(jobs: dict[int, QueuedJob]):
    job = _named(jobs, "shards")
    assert job.gpu_index in ({"n3": {"shard": [2]}}, {"n3": {"shard": [3]}})
    assert job.tres_allocated["gres/shard"] == 4
    assert "gres/gpu" not in job.tres_allocated


def test_array_tasks_have_raw_ids_and_the_array_id(jobs: dict[int, QueuedJob]):
    tasks = {job.array_task: job for job in jobs.values() if job.name == "array"}
    assert sorted(tasks) == ["0", "1", "2", "3"]
    array_id = tasks["3"].job_id
    assert {job.array_job_id for job in tasks.values()} == {array_id}
    assert len({job.job_id for job in tasks.values()}) == 4
    assert all(job.n_tasks == 1 for job in tasks.values())


def test_an_array_not_yet_split_is_one_entry_that_counts_its_tasks(jobs: dict[int, QueuedJob]):
    job = _named(jobs, "unsplit")
    assert (job.array_task, job.n_tasks, job.array_job_id) == ("1-55:2%4", 28, job.job_id)
    assert (job.state, job.reason, job.nodes, job.tres_allocated) == ("PENDING", "BeginTime", [], {})
    assert job.tres_requested["gres/gpu"] == 1
    assert job.eligible_s == job.submit_s + 86400


def test_het_components_share_the_leader(jobs: dict[int, QueuedJob]):
    components = [job for job in jobs.values() if job.name == "het"]
    assert len(components) == 2
    assert {job.het_job_id for job in components} == {min(job.job_id for job in components)}
    assert [job.het_offset for job in sorted(components, key=lambda job: job.job_id)] == [0, 1]
    assert _named(jobs, "requeued").het_offset is None


@pytest.mark.parametrize(
    ("answer", "is_up"),
    [
        ("Slurmctld(primary) at head is UP", True),
        ("`scontrol ping` failed (1): Slurmctld(primary) at a is DOWN\nSlurmctld(backup) at b is UP", True),
        ("`scontrol ping` failed (1): Slurmctld(primary) at head is DOWN", False),
        ("`scontrol ping` gave no answer within 5 s", False),
    ],
)
def test_a_ping_fails_within_seconds(answer: str, is_up: bool):
    asked = []

    def run(argv: Sequence[str], environ: Mapping[str, str], timeout_s: float) -> str:
        asked.append((*argv, timeout_s))
        if answer.startswith("`"):
            raise SlurmError(answer)
        return answer

    client = CommandClient(run, {})
    if is_up:
        client.ping()
    else:
        with pytest.raises(SlurmError, match="scontrol ping"):
            client.ping()
    assert asked == [("scontrol", "ping", 5.0)]


def test_hosts_of_slurmctld_are_up_or_down():
    down = "`scontrol ping` failed (1): Slurmctld(primary) at a.lab is DOWN\nSlurmctld(backup) at b is UP"
    answers = iter(["Slurmctld(primary) at head is UP\n", down, "`scontrol ping` gave no answer within 5 s"])

    def run(argv: Sequence[str], environ: Mapping[str, str], timeout_s: float) -> str:
        answer = next(answers)
        if answer.startswith("`"):
            raise SlurmError(answer)
        return answer

    client = CommandClient(run, {})
    assert client.controllers() == [("head", True)]
    assert client.controllers() == [("a", False), ("b", True)]
    with pytest.raises(SlurmError, match="no answer"):
        client.controllers()


def test_a_weight_is_given_to_many_nodes_in_one_call(client: CommandClient):
    asked: list[Sequence[str]] = []

    def run(argv: Sequence[str], environ: Mapping[str, str], timeout_s: float) -> str:
        asked.append(argv)
        return ""

    CommandClient(run, {}).set_weight(["n3", "n1", "n2", "gpu-a"], 4)
    CommandClient(run, {}).set_weight([], 4)
    assert asked == [("scontrol", "update", "NodeName=gpu-a,n[1-3]", "Weight=4")]
    assert {node.weight for node in client.nodes()} == {1}


def test_a_requeued_job_counts_its_restarts(jobs: dict[int, QueuedJob]):
    job = _named(jobs, "requeued")
    assert (job.restarts, job.state, job.nodes, job.gpu_index) == (1, "PENDING", [], {})


def test_a_resized_job_has_the_time_of_the_change(jobs: dict[int, QueuedJob]):
    text = (DATA / "job-resized.txt").read_text()
    resized = parse_single_job(text, 6, JobTexts("wrap", ""))
    assert resized is not None
    assert (resized.nodes, resized.resized_s) == (["n1"], resized.start_s + 3)
    assert all(job.resized_s is None for job in jobs.values())


def test_a_suspended_job_keeps_its_nodes(jobs: dict[int, QueuedJob]):
    job = _named(jobs, "suspended")
    assert (job.state, job.nodes) == ("SUSPENDED", ["n4"])


def test_a_held_job_is_never_eligible(jobs: dict[int, QueuedJob]):
    job = _named(jobs, "held")
    assert (job.state, job.eligible_s, job.start_s) == ("PENDING", None, None)


def test_a_pending_job_has_nothing_allocated(jobs: dict[int, QueuedJob]):
    job = _named(jobs, "toobig")
    assert (job.tres_allocated, job.n_nodes, job.time_limit_s) == ({}, 3, 2 * 86400)
    assert job.tres_requested["gres/gpu"] == 12


# The limit of a job in a partition with MaxTime=INFINITE: one year in 26.05.
_UNLIMITED = {"22.05": None, "24.11": None, "26.05": 365 * 86400}


def test_a_job_without_limit_has_none(jobs: dict[int, QueuedJob], version: str):
    assert _named(jobs, "cpu").time_limit_s == _UNLIMITED[version]


def test_names_in_any_script_survive(jobs: dict[int, QueuedJob]):
    assert _named(jobs, "größe 한국 #1").gpu_index in ({}, {"n3": {"gpu": [0, 1]}})


def test_a_name_cannot_forge_another_job_or_its_own_fields(jobs: dict[int, QueuedJob]):
    victim = _named(jobs, "victim")
    (forger,) = (job for job in jobs.values() if job.name.startswith("two\nlines"))
    assert f"JobId={victim.job_id} JobName=victim" in forger.name
    assert (victim.user, victim.state, victim.gpu_index) == ("alice", "RUNNING", {"n1": {"gpu": [3]}})
    assert (forger.user, forger.state, forger.gpu_index) == ("bob", "RUNNING", {"n2": {"gpu": [2]}})
    assert forger.uid == _named(jobs, "held").uid
    assert len(jobs) == 20


def test_a_comment_cannot_forge_the_admin_comment(jobs: dict[int, QueuedJob]):
    assert _named(jobs, "pipe|and space").admin_comment == "slurm-gpu/1 t=abc r=grad-share"
    assert _named(jobs, "victim").admin_comment == ""


def test_only_named_jobs_are_queried_and_unknown_ones_are_not_returned():
    slurm = RecordedSlurm()
    client = CommandClient(slurm, {})
    assert [job.job_id for job in client.jobs([32, 99999])] == [32]
    assert slurm.commands[-1] == "scontrol --all --details show job 32"
    assert list(client.jobs([])) == []


def test_a_job_that_slurmctld_purges_between_two_calls_is_not_returned():
    def run(argv, environ, timeout_s):
        if argv[0] == "squeue":
            return RecordedSlurm()(argv, environ, timeout_s)
        raise SlurmError("`scontrol` failed (1): slurm_load_jobs error: Invalid job id specified")

    assert list(CommandClient(run, {}).jobs([32])) == []


def test_accounting_has_a_run_per_execution(runs: list[AccountingRun]):
    requeued = [run for run in runs if run.name == "requeued"]
    assert [run.state for run in requeued] == ["REQUEUED", "PENDING"]
    assert len({run.job_id for run in requeued}) == 1
    assert requeued[0].end_s == requeued[1].submit_s
    assert requeued[0].elapsed_s == requeued[0].end_s - requeued[0].start_s


def test_accounting_names_array_tasks_and_het_components(runs: list[AccountingRun]):
    het = [run for run in runs if run.name == "het"]
    assert [(run.het_offset, run.het_job_id == het[0].job_id) for run in het] == [(0, True), (1, True)]
    (unsplit,) = (run for run in runs if run.name == "unsplit")
    assert (unsplit.array_job_id, unsplit.array_task) == (unsplit.job_id, None)


def test_accounting_has_allocations_and_their_times(runs: list[AccountingRun]):
    (multi,) = (run for run in runs if run.name == "pipe|and space")
    assert multi.tres_allocated["gres/gpu:a100"] == 4
    assert multi.tres_allocated["mem"] == 16384
    assert (multi.nodes, multi.n_nodes, multi.end_s, multi.state) == ("n[1-2]", 2, None, "RUNNING")
    (pending,) = (run for run in runs if run.name == "toobig")
    assert (pending.nodes, pending.start_s, pending.elapsed_s, pending.tres_allocated) == ("", None, 0, {})
    (suspended,) = (run for run in runs if run.name == "suspended")
    assert suspended.elapsed_s == 15
    assert suspended.suspended_s > 20


def test_accounting_reads_limits(runs: list[AccountingRun], version: str):
    limits = {run.name: run.time_limit_s for run in runs}
    assert limits["cpu"] == _UNLIMITED[version]
    assert (limits["unsplit"], limits["suspended"]) == (None, 2 * 86400)


def test_states_have_no_suffixes(runs: list[AccountingRun]):
    assert all(run.state.replace("_", "").isupper() for run in runs)


def test_accounting_survives_newlines_in_names(runs: list[AccountingRun]):
    (forger,) = (run for run in runs if run.name.startswith("two\nlines"))
    assert (forger.user, forger.state) == ("bob", "RUNNING")


def test_newer_accounting_has_restarts_and_sluids(runs: list[AccountingRun], version: str):
    (pending,) = (run for run in runs if (run.name, run.state) == ("requeued", "PENDING"))
    assert pending.restart == (None if version == "22.05" else 1)
    assert all((run.sluid is not None) == (version != "22.05") for run in runs)


def test_accounting_queries_named_jobs_in_batches():
    slurm = RecordedSlurm()
    list(CommandClient(slurm, {}).accounting(0, NOW_S, range(1, 702)))
    asked = [command for command in slurm.commands if "--jobs=" in command]
    assert [command.partition("--jobs=")[2].count(",") + 1 for command in asked] == [500, 201]
    assert f"--endtime=uts{NOW_S}" in asked[0]
    assert list(CommandClient(slurm, {}).accounting(0, None, [])) == []


def test_a_cluster_without_accounting_has_no_runs():
    def run(argv, environ, timeout_s):
        if "--helpformat" in argv:
            return "JobID"
        raise SlurmError("`sacct` failed (1): Slurm accounting storage is disabled")

    assert list(CommandClient(run, {}).accounting(0)) == []


def test_the_callers_environment_cannot_change_what_is_printed():
    slurm = RecordedSlurm()
    environ = {"SQUEUE_FORMAT": "%i", "SACCT_FORMAT": "jobid", "SLURM_CLUSTERS": "other", "TZ": "Asia/Seoul"}
    CommandClient(slurm, {"SLURM_CONF": "/etc/lab/slurm.conf", **environ}).jobs()
    assert slurm.environ["SLURM_CONF"] == "/etc/lab/slurm.conf"
    assert slurm.environ["TZ"] == "UTC"
    assert not {"SQUEUE_FORMAT", "SACCT_FORMAT", "SLURM_CLUSTERS"} & set(slurm.environ)


def test_a_failed_command_is_quoted_with_its_stderr():
    with pytest.raises(SlurmError, match=r"`sh -c echo no >&2; exit 4` failed \(4\): no"):
        run_command(["sh", "-c", "echo no >&2; exit 4"], {"PATH": "/bin:/usr/bin"}, 5.0)
    with pytest.raises(SlurmError, match="scontrol-that-is-not-there is not on the PATH"):
        run_command(["scontrol-that-is-not-there"], {}, 5.0)
    with pytest.raises(SlurmError, match=r"gave no answer within 0\.05 s"):
        run_command(["sleep", "5"], {"PATH": "/bin:/usr/bin"}, 0.05)


def test_a_missing_slurm_conf_is_reported_instead_of_dns_errors():
    printed = (
        "scontrol: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host",
        "scontrol: error: fetch_config: DNS SRV lookup failed",
        "scontrol: fatal: Could not establish a configuration source",
    )
    script = "printf '%s\\n' '" + "' '".join(printed) + "' >&2; exit 1"
    with pytest.raises(
        SlurmError, match=r"^`sh -c .*` found no slurm\.conf on this host: set SLURM_CONF"
    ) as raised:
        run_command(["sh", "-c", script], {"PATH": "/bin:/usr/bin"}, 5.0)
    assert "\n" not in str(raised.value)


def test_a_missing_slurm_conf_is_an_error_at_once(tmp_path):
    # Slurm's own commands retry for a minute.
    missing = {"PATH": "/bin:/usr/bin", "SLURM_CONF": str(tmp_path / "slurm.conf")}
    with pytest.raises(SlurmError, match=r"`echo` .* SLURM_CONF=/.*/slurm\.conf does not exist"):
        run_command(["echo"], missing, 5.0)
    with pytest.raises(SlurmError, match="does not exist"):
        next(stream_command(["echo"], missing, 5.0))
    (tmp_path / "slurm.conf").touch()
    assert run_command(["echo"], missing, 5.0) == "\n"


def test_a_cluster_without_any_job_or_node():
    def idle(argv: Sequence[str], environ: Mapping[str, str], timeout_s: float) -> str:
        return "No jobs in the system\n" if argv[0] == "scontrol" else ""

    client = CommandClient(idle, {})
    assert list(client.jobs()) == []
    assert list(client.nodes()) == []
