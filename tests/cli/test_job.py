"""`slurm-gpu job ID` prints every run with its times and GPUs, and a remark on unused GPUs."""

import json
from dataclasses import replace

import pytest

from slurm_gpu.wire import Event, Mean, Total
from tests.cli.conftest import NOW_S, START_S, CommandLine, make_record, make_run
from tests.cli.test_forecast import FORECAST
from tests.monitor.clusters import cluster, waiting

_A, _B = "GPU-aaaaaaaa-1111", "GPU-bbbbbbbb-2222"


def _idle(device: str, **changes):
    return make_record(device, util_hist_ms={0: 3_600_000}, no_process_s=3600.0, **changes)


def _use_rows(slurm_gpu: CommandLine) -> dict[str, list[str]]:
    """Return the rows of the first table by GPU."""
    rows: dict[str, list[str]] = {}
    for row in slurm_gpu.rows():
        if row[:1] == ["n1"]:
            rows.setdefault(row[1], row)
    return rows


def test_times_are_in_the_time_zone_of_the_site(slurm_gpu: CommandLine):
    slurm_gpu.database.runs = [make_run(devices=(make_record(_A),))]
    assert slurm_gpu("job", "17") == 0
    assert "Job 17 train  COMPLETED" in slurm_gpu.out
    assert "alice in vision, partition gpu, QOS normal" in slurm_gpu.out
    assert "1 node n1, 2 a100 GPUs" in slurm_gpu.out
    assert "started   2026-11-21 19:15:42  after waiting 30m00s" in slurm_gpu.out
    assert "ended     2026-11-21 20:15:42  having run 1h00m" in slurm_gpu.out


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("<script>alert(1)</script>", "<script>alert(1)</script>"),
        ("'; DROP TABLE run; --", "'; DROP TABLE run; --"),
        ("two\nlines", "two�lines"),
        ("\x1b]0;owned\x07[bold]", "�]0;owned�[bold]"),
        ("gnp.\u202egpj.exe", "gnp.�gpj.exe"),
    ],
)
def test_names_are_printed_as_plain_text(slurm_gpu: CommandLine, name: str, shown: str):
    slurm_gpu.database.runs = [make_run(name=name)]
    assert slurm_gpu("job", "17") == 0
    assert slurm_gpu.out.splitlines()[0] == f"Job 17 {shown}  COMPLETED"


def test_a_loan_is_shown_with_the_job_to_which_it_returned(slurm_gpu: CommandLine):
    slurm_gpu.database.runs = [make_run(lender="vision")]
    slurm_gpu("job", "17")
    assert "  on loan from vision\n" in slurm_gpu.out
    slurm_gpu.database.runs = [make_run(state="PREEMPTED", lender="vision")]
    slurm_gpu("job", "17")
    assert "  on loan from vision, and returned when the owner needed the GPUs\n" in slurm_gpu.out
    slurm_gpu.database.runs = [
        make_run(state="PREEMPTED", lender="vision", returned_to="18", returned_in_s=4)
    ]
    slurm_gpu("job", "17")
    assert "  on loan from vision, and returned to job 18, which had waited 4s\n" in slurm_gpu.out
    slurm_gpu.database.runs = [make_run()]
    slurm_gpu("job", "17")
    assert "on loan" not in slurm_gpu.out


def test_eligible_and_suspended_times_are_printed(slurm_gpu: CommandLine):
    submit_s = START_S - 1800
    slurm_gpu.database.runs = [
        make_run(eligible_s=submit_s + 60, suspended_s=600, devices=(make_record(_A),))
    ]
    slurm_gpu("job", "17")
    assert "eligible  2026-11-21 18:46:42" in slurm_gpu.out
    assert "having run 1h00m, suspended for 10m00s" in slurm_gpu.out
    slurm_gpu.database.runs = [make_run(end_s=None, state="SUSPENDED", suspended_s=600)]
    slurm_gpu("job", "17")
    assert "has run   1h00m so far, suspended for 10m00s" in slurm_gpu.out
    assert not any(word in slurm_gpu.out for word in ("eligible", "  ended"))


@pytest.mark.parametrize(
    ("counted_s", "after_s", "is_odd"),
    [(0, 600, True), (120, 600, True), (602, 600, False), (0, 2, False)],
)
def test_a_job_cancelled_while_suspended_shows_the_end_of_the_allocation(
    slurm_gpu: CommandLine, counted_s: int, after_s: int, is_odd: bool
):
    """Slurm records the start of the last suspension as the end of the job; an epilog may end later, too."""
    end_s = START_S + 3000
    record = _idle(_A, last_s=end_s + after_s, allocated_s=3000.0 + after_s, suspended_s=600.0)
    slurm_gpu.database.runs = [
        make_run(state="CANCELLED", end_s=end_s, elapsed_s=3000, suspended_s=counted_s, devices=(record,))
    ]
    slurm_gpu("job", "17")
    assert ("its GPUs were allocated until 2026-11-21 20:15:42" in slurm_gpu.out) == is_odd
    assert ("which records the start of a suspension as the end" in slurm_gpu.out) == is_odd


def test_suspended_time_does_not_reduce_the_coverage(slurm_gpu: CommandLine):
    record = _idle(_A, sampled_s=1800.0, suspended_s=1800.0)
    slurm_gpu.database.runs = [make_run(devices=(record,))]
    slurm_gpu("job", "17")
    (row,) = _use_rows(slurm_gpu).values()
    assert row[-1] == "1.00"
    assert "allocated but not used" in slurm_gpu.out
    slurm_gpu("job", "17", "--json")
    (gpu,) = json.loads(slurm_gpu.out)["runs"][0]["gpus"]
    assert (gpu["allocated_s"], gpu["sampled_s"], gpu["suspended_s"]) == (3600, 1800, 1800)


def test_each_gpu_has_a_row(slurm_gpu: CommandLine):
    slurm_gpu.database.runs = [make_run(devices=(make_record(_B), make_record(_A, energy_j=None)))]
    slurm_gpu("job", "17")
    rows = _use_rows(slurm_gpu)
    assert rows[_B] == ["n1", _B, *["20.0", "0", "0", "40", "4G", "8G", "100W", "100.0", "Wh", "1.00"]]
    assert rows[_A][9:] == ["–", "1.00"]


def test_power_and_energy_of_a_part_of_the_time_are_a_gap(slurm_gpu: CommandLine):
    shared = make_record(_A, power_w=Mean(1800, 100, 50, 300), energy_j=Total(1800, 360_000))
    slurm_gpu.database.runs = [make_run(devices=(shared,))]
    slurm_gpu("job", "17")
    (row,) = _use_rows(slurm_gpu).values()
    assert row[-3:] == ["–", "–", "1.00"]
    slurm_gpu("job", "17", "--json")
    (gpu,) = json.loads(slurm_gpu.out)["runs"][0]["gpus"]
    assert (gpu["power_mean_w"], gpu["power_s"], gpu["energy_j"], gpu["energy_s"]) == (
        100,
        1800,
        360_000,
        1800,
    )


def test_segments_of_one_gpu_are_one_row(slurm_gpu: CommandLine):
    half = {"allocated_s": 1800.0, "sampled_s": 1800.0}
    first = make_record(_A, **half, last_s=START_S + 1800, util_hist_ms={0: 1_800_000})
    second = make_record(_A, **half, first_s=START_S + 1800, segment="1" * 16, util_hist_ms={100: 1_800_000})
    slurm_gpu.database.runs = [make_run(devices=(first, second))]
    slurm_gpu("job", "17", "--json")
    (gpu,) = json.loads(slurm_gpu.out)["runs"][0]["gpus"]
    assert (gpu["allocated_s"], gpu["util_mean_pct"], gpu["util_p5_pct"], gpu["util_p95_pct"]) == (
        3600,
        50,
        0,
        100,
    )
    assert gpu["energy_j"] == 720_000


def test_unobserved_time_counts_as_allocated(slurm_gpu: CommandLine):
    part = {
        "allocated_s": 600.0,
        "sampled_s": 600.0,
        "util_hist_ms": {40: 600_000},
        "energy_j": Total(600, 60_000),
    }
    before = make_record(_A, **part, last_s=START_S + 600)
    after = make_record(_A, **part, first_s=START_S + 3000, segment="1" * 16)
    slurm_gpu.database.runs = [make_run(devices=(before, after), n_gpus=1.0, coverage=0.33)]
    slurm_gpu("job", "17", "--json")
    (gpu,) = json.loads(slurm_gpu.out)["runs"][0]["gpus"]
    assert (gpu["allocated_s"], gpu["sampled_s"]) == (3600, 1200)
    slurm_gpu("job", "17")
    (row,) = [line.split() for line in slurm_gpu.out.splitlines() if _A in line and "40.0" in line]
    assert row[-2:] == ["–", "0.33"]


def test_the_longer_of_two_concurrent_segments_counts(slurm_gpu: CommandLine):
    short = make_record(_A, segment="1" * 16, sampled_s=60.0, util_hist_ms={100: 60_000})
    slurm_gpu.database.runs = [make_run(devices=(make_record(_A), short))]
    slurm_gpu("job", "17", "--json")
    (gpu,) = json.loads(slurm_gpu.out)["runs"][0]["gpus"]
    assert (gpu["allocated_s"], gpu["util_mean_pct"]) == (3600, 20)


def test_zero_is_printed_as_0_and_none_as_a_dash(slurm_gpu: CommandLine):
    blind = make_record(
        _B,
        sampled_s=0.0,
        no_process_s=None,
        util_hist_ms=None,
        mem_used_mib=None,
        power_w=None,
        energy_j=None,
    )
    slurm_gpu.database.runs = [make_run(devices=(_idle(_A), blind))]
    slurm_gpu("job", "17")
    rows = _use_rows(slurm_gpu)
    assert rows[_A][2:6] == ["0", "0", "0", "0"]
    assert rows[_B][2:] == ["–"] * 8 + ["0"]


def test_an_unused_gpu_is_reported(slurm_gpu: CommandLine):
    slurm_gpu.database.runs = [make_run(devices=(_idle(_A),))]
    slurm_gpu("job", "17")
    assert "The GPU of this run was allocated but not used; submit such work without --gpus" in slurm_gpu.out
    slurm_gpu.database.runs = [make_run(devices=(_idle(_A), make_record(_B)))]
    slurm_gpu("job", "17")
    assert "1 of 2 GPUs was allocated but not used; the run needed only 1: --gpus=1." in slurm_gpu.out


def test_a_gpu_with_low_coverage_is_not_judged(slurm_gpu: CommandLine):
    thin = _idle(_A, sampled_s=2000.0)
    slurm_gpu.database.runs = [make_run(devices=(thin,))]
    slurm_gpu("job", "17", "--json")
    assert json.loads(slurm_gpu.out)["runs"][0]["advice"] is None
    slurm_gpu.database.runs = [make_run(devices=(_idle(_A),), end_s=None, state="RUNNING")]
    slurm_gpu("job", "17")
    assert "not used" not in slurm_gpu.out


def test_a_short_run_is_not_judged(slurm_gpu: CommandLine):
    brief = _idle(_A, allocated_s=59.0, sampled_s=59.0)
    slurm_gpu.database.runs = [make_run(devices=(brief,), elapsed_s=59, state="FAILED")]
    slurm_gpu("job", "17")
    assert "not used" not in slurm_gpu.out


@pytest.mark.parametrize("coverage", [None, 0.0, 0.79])
def test_a_run_with_low_coverage_is_not_judged(slurm_gpu: CommandLine, coverage: float | None):
    slurm_gpu.database.runs = [make_run(devices=(_idle(_A),), coverage=coverage)]
    slurm_gpu("job", "17")
    assert "not used" not in slurm_gpu.out


def test_a_requeued_job_shows_both_runs(slurm_gpu: CommandLine):
    slurm_gpu.database.runs = [make_run(restart=1), make_run(state="REQUEUED")]
    slurm_gpu("job", "17")
    assert slurm_gpu.out.count("Job 17 train") == 2


def test_a_job_of_another_user_is_shown_without_its_use(slurm_gpu: CommandLine):
    slurm_gpu.database.runs = [make_run(full=False, name=None, ugpucore=None, devices=None)]
    slurm_gpu("job", "17")
    assert "Only the job's owner and operators see its GPU use." in slurm_gpu.out
    assert "uGPUcore" not in slurm_gpu.out


def test_a_job_without_gpus_is_reported(slurm_gpu: CommandLine):
    slurm_gpu.database.runs = [make_run(n_gpus=0.0, gpu_type=None, ugpucore=None, devices=())]
    slurm_gpu("job", "17")
    assert "It had no GPU." in slurm_gpu.out


_NEVER = {
    "start_s": None,
    "elapsed_s": None,
    "wait_h": None,
    "run_h": None,
    "nodes": "",
    "gpu_type": None,
    "n_gpus": 0.0,
    "n_gpus_requested": 1.0,
    "ugpucore": None,
    "ugpumem": None,
    "coverage": None,
    "energy_j": None,
    "devices": (),
}


def test_a_job_cancelled_while_pending_shows_its_request(slurm_gpu: CommandLine):
    slurm_gpu.database.runs = [make_run(state="CANCELLED", **_NEVER)]
    slurm_gpu("job", "17")
    assert "never started; requested 1 GPU on 1 node" in slurm_gpu.out
    assert not any(word in slurm_gpu.out for word in ("had no GPU", "0 GPUs", "waiting", "having run"))
    slurm_gpu("jobs")
    assert slurm_gpu.rows()[1][4:6] == ["1", "1"]
    slurm_gpu.database.runs = [make_run(state="CANCELLED", **{**_NEVER, "n_nodes": 0})]
    slurm_gpu("job", "17")
    assert "  never started\n" in slurm_gpu.out


@pytest.mark.parametrize(
    ("asked", "tres", "gpus"),
    [
        (2.0, {}, "2 GPUs"),
        (0.0, {}, "0 GPUs"),
        (None, {"gres/shard": 2.0}, "a share of a GPU"),
        (None, {"cpu": 2.0}, "an unknown number of GPUs"),
        (None, None, "an unknown number of GPUs"),
    ],
)
def test_a_pending_job_shows_its_request(
    slurm_gpu: CommandLine, asked: float | None, tres: dict[str, float] | None, gpus: str
):
    waiting = {**_NEVER, "n_gpus_requested": asked, "tres_requested": tres, "end_s": None, "state": "PENDING"}
    slurm_gpu.database.runs = [make_run(**waiting)]
    slurm_gpu("job", "17")
    assert f"not started yet; requests {gpus} on 1 node" in slurm_gpu.out


def test_a_job_without_records_shows_when_they_arrive(slurm_gpu: CommandLine):
    gaps = {"ugpucore": None, "ugpumem": None, "devices": ()}
    slurm_gpu.database.runs = [make_run(coverage=0.0, end_s=NOW_S - 120, **gaps)]
    slurm_gpu("job", "17")
    assert "uGPUcore –  uGPUmem –  coverage 0 " in slurm_gpu.out
    assert "GPU use yet: the record of an ended job arrives within seconds.\n" in slurm_gpu.out
    slurm_gpu.database.runs = [make_run(coverage=0.0, end_s=NOW_S - 121, **gaps)]
    slurm_gpu("job", "17")
    assert (
        "The job ended 2m01s ago, but no node has reported its GPU use, which usually takes seconds. "
        "Run slurm-gpu doctor as root on n1 to find out what delays the record. If nothing does, the record "
        "was lost, or slurm-gpud was not running."
    ) in slurm_gpu.out
    missing = Event(
        node="n1", boot_id="b", n=1, at_s=1, kind="prolog_missing", device=None, job_id=17, data={}
    )
    slurm_gpu.database.runs = [make_run(coverage=0.0, events=(missing,), **gaps)]
    slurm_gpu("job", "17")
    assert "Its GPU use was not measured: Slurm ran no prolog for this run" in slurm_gpu.out
    assert "Slurm ran no prolog for this run on this node; its GPU use was not measured" in slurm_gpu.out
    assert "doctor" not in slurm_gpu.out
    slurm_gpu.database.runs = [make_run(coverage=None, state="RUNNING", end_s=None, elapsed_s=120, **gaps)]
    slurm_gpu("job", "17")
    assert "the first record of a running job arrives within a minute." in slurm_gpu.out
    slurm_gpu.database.runs = [make_run(coverage=None, state="RUNNING", end_s=None, **gaps)]
    slurm_gpu("job", "17")
    assert (
        "The job has run for 1h00m, but no node has reported its GPU use, which usually takes a minute. "
        "Run slurm-gpu doctor as root on n1 to find the cause."
    ) in slurm_gpu.out


def test_an_unknown_job_is_wrong_usage(slurm_gpu: CommandLine):
    slurm_gpu.database.cluster_state = cluster([])
    assert slurm_gpu("job", "99") == 2
    assert slurm_gpu.err == (
        "slurm-gpu: job 99 is neither pending nor in Slurm's accounting, which is read every 1m00s\n"
    )
    slurm_gpu.database.cluster_state = None  # the job may be pending
    assert slurm_gpu("job", "99") == 3
    assert slurm_gpu.err == "slurm-gpu: slurm-gpudbd at http://dbhost:6829 cannot be reached\n"


def test_a_pending_job_has_a_reason_a_place_and_an_expected_start(slurm_gpu: CommandLine):
    """Accounting contains job 17, but not yet job 18, which is held."""
    slurm_gpu.database.runs = [make_run(state="PENDING", start_s=None, end_s=None, n_gpus_requested=2.0)]
    jobs = [
        waiting(16, priority=900, n_tasks=3, n_gpus=2.0),
        waiting(17, priority=800, start_s=int(NOW_S) + 3600),
        waiting(18, "JobHeldUser", priority=0, dependency="afterok:12(unfulfilled)", name="next"),
    ]
    slurm_gpu.database.cluster_state = replace(cluster([], jobs), as_of_s=NOW_S)
    slurm_gpu.database.forecast = lambda job: FORECAST if job == "17" else "held"
    assert slurm_gpu("job", "17") == 0
    assert slurm_gpu.out.splitlines()[2:] == [
        "  not started yet; requests 2 GPUs on 1 node",
        "  submitted 2026-11-21 18:45:42",
        "  waits     Priority: other jobs have a higher priority",
        "  place     4 of 4 pending jobs in partition gpu, behind 3 jobs, which request 6 GPUs",
        "  starts    2026-11-21 22:15 (Slurm's estimate)",
        "  or        between 2026-11-21 21:36 and 2026-11-22 02:27, most likely 2026-11-21 22:39 (forecast)",
    ]
    assert slurm_gpu("job", "17", "--json") == 0
    wait = json.loads(slurm_gpu.out)["wait"]
    assert (wait["place"], wait["n_jobs"], wait["gpus_ahead"], wait["dependency"]) == (4, 4, 6.0, None)
    answered, slurm_gpu.database.cluster_state = slurm_gpu.database.cluster_state, None
    assert slurm_gpu("job", "17") == 0
    assert (
        "why the job waits is unknown: slurm-gpudbd at http://dbhost:6829 cannot be reached" in slurm_gpu.err
    )
    slurm_gpu.database.runs, slurm_gpu.database.cluster_state = [], answered
    assert slurm_gpu("job", "18") == 0
    assert slurm_gpu.out.splitlines()[0] == "Job 18 next  PENDING"
    assert slurm_gpu.out.splitlines()[-3:] == [
        "  waits     JobHeldUser: held by its user",
        "  depends   afterok:12(unfulfilled)",
        "  starts    unknown: Slurm has not estimated the start yet",
    ]


def test_a_job_that_slurm_lost_is_not_called_unknown(slurm_gpu: CommandLine):
    slurm_gpu.database.unmatched = 2
    assert slurm_gpu("job", "99") == 2
    assert slurm_gpu.err == (
        "slurm-gpu: Slurm's accounting has no job 99, but slurm-gpudbd has 2 records of it; "
        "if sacct -j 99 remains empty, slurmdbd has lost the job\n"
    )


def test_a_truncated_answer_prints_a_remark(slurm_gpu: CommandLine):
    slurm_gpu.database.runs = [make_run()]
    slurm_gpu("job", "17")
    assert "more" not in slurm_gpu.err
    slurm_gpu.database.left_out = 40
    slurm_gpu("job", "17")
    assert "older runs of 17 are not shown (40): specify a task" in slurm_gpu.err
    assert "not shown: 40 events between the first and the last events of each kind" in slurm_gpu.err
    slurm_gpu("job", "17", "--json")
    answer = json.loads(slurm_gpu.out)
    assert (answer["left_out"], answer["events_left_out"]) == (40, 40)


@pytest.mark.parametrize(
    ("state", "exit_code", "end"),
    [
        ("FAILED", "3:0", "  FAILED with exit code 3"),
        ("FAILED", "0:9", "  FAILED by signal 9"),
        ("COMPLETED", "0:0", "  COMPLETED"),
        ("FAILED", None, "  FAILED"),
    ],
)
def test_a_failed_job_shows_its_exit_code(
    slurm_gpu: CommandLine, state: str, exit_code: str | None, end: str
) -> None:
    slurm_gpu.database.runs = [make_run(state=state, exit_code=exit_code)]
    slurm_gpu("job", "17")
    assert slurm_gpu.out.split("\n")[0].endswith(end)
