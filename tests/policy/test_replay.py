"""Replay past jobs against a new policy: the real Lua judges each submission with the queue at that time."""

from __future__ import annotations

from typing import Any

import pytest

from slurm_gpu.config.yaml_source import parse_yaml
from slurm_gpu.policy.explain.replay import (
    PastJob,
    PolicyReplay,
    judge_past,
    merge_requeued,
    without_size,
    without_unknown,
)
from slurm_gpu.policy.language.check import check_policy
from slurm_gpu.policy.language.lua_literals import Plain
from slurm_gpu.policy.language.names import resolve_names
from slurm_gpu.policy.lua.bundle import SiteFacts, compile_policy
from slurm_gpu.slurm.tres import SharesPerGpu, count_mgpu

from .users import Directory

T0 = 1795262400
HOUR = 3600
POLICY = """\
version: 1
mode: enforce
groups: {vision: {accounts: [vision]}, everyone: {}}
rules:
  - {id: share, for: vision, per: user, why: "Four each.", limits: {gpus_total: 4, jobs_total: 3}}
  - {id: days, for: everyone, per: job, why: "Others.", limits: {walltime: 2d}, mode: advise}
"""


def compiled(text: str = POLICY) -> dict[str, Plain]:
    source = parse_yaml(text, "policy.yaml")
    policy = check_policy(source)
    facts = SiteFacts(shards_per_gpu=4, n_gpus=16, has_qos=True)
    return compile_policy(policy, resolve_names(policy, source, Directory()), facts)


def job(job_id: int, submit_s: int = 0, gpus: int = 2, **changes: Any) -> PastJob:
    """Return a job of alice that waited for a minute and ran for an hour; times are relative to T0."""
    values: dict[str, Any] = {
        "job_id": job_id,
        "label": str(job_id),
        "array_job_id": None,
        "user": "alice",
        "uid": 1001,
        "account": "vision",
        "qos": "normal",
        "partition": "gpu",
        "submit_s": T0 + submit_s,
        "start_s": T0 + submit_s + 60,
        "end_s": T0 + submit_s + HOUR + 60,
        "time_limit_s": 2 * HOUR,
        "n_nodes": 1,
        "tres": {"cpu": 4.0, "mem": 8192.0, "node": 1.0, "gres/gpu": float(gpus)},
    }
    values |= changes
    mgpu = count_mgpu(values["tres"], SharesPerGpu(shard=4))
    return PastJob(**({"n_gpus": None if mgpu is None else mgpu / 1000} | values))


def replay(*jobs: PastJob, since_s: int = 0, text: str = POLICY) -> PolicyReplay:
    policy, _ = without_unknown(compiled(text))
    return judge_past(policy, jobs, T0 + since_s)


def refused_ids(result: PolicyReplay) -> list[int]:
    return [judgement.first.job_id for judgement in result.refused]


def test_pending_and_running_jobs_count_and_ended_jobs_do_not() -> None:
    result = replay(
        job(1),
        job(2, 30),  # job 1 waits
        job(3, 90),  # jobs 1 and 2 have four GPUs
        job(4, HOUR + 61),  # job 1 has ended
        job(5, HOUR + 62),
        job(6, 100, account="nlp"),
    )
    assert refused_ids(result) == [3, 5]
    (third, _) = result.refused
    assert third.rules == ("share",)
    assert "  GPUs running + pending: used 4, limit 4, requested 2." in third.messages
    assert result.errors == []


def test_refused_jobs_do_not_count_against_later_jobs() -> None:
    assert refused_ids(replay(job(1, gpus=3), job(2, 1, gpus=2), job(3, 2, gpus=1))) == [2]


def test_jobs_of_the_same_second_count_against_each_other() -> None:
    assert refused_ids(replay(*(job(n) for n in range(1, 5)))) == [3, 4]


def test_earlier_jobs_count_but_are_not_judged() -> None:
    result = replay(job(1, gpus=8), job(2, 60, gpus=1), since_s=30)
    assert [judgement.first.job_id for judgement in result.judgements] == [2]
    assert refused_ids(result) == [2]


def test_an_array_is_one_submission_with_all_its_tasks() -> None:
    tasks = [job(10 + n, gpus=1, array_job_id=10, label=f"10_{n}") for n in range(3)]
    result = replay(*tasks, job(20, 10, gpus=1))
    assert [len(judgement.jobs) for judgement in result.judgements] == [3, 1]
    assert refused_ids(result) == [20]  # the three tasks count as three jobs
    five = [job(10 + n, gpus=1, array_job_id=10) for n in range(5)]
    assert refused_ids(replay(*five)) == [10]


def test_rules_in_mode_advise_are_reported_and_refuse_nothing() -> None:
    (judgement,) = replay(job(1, time_limit_s=None)).judgements
    assert (judgement.accepted, judgement.rules) == (True, ("days",))


def test_a_requeued_job_is_submitted_once_and_counts_until_its_last_end() -> None:
    first = job(1, end_s=T0 + 600)
    second = job(1, 600, start_s=T0 + 700, end_s=T0 + 9000)
    again = job(1, 90_000)  # the job ID was reused
    merged = merge_requeued([(again, "COMPLETED"), (second, "COMPLETED"), (first, "PREEMPTED")])
    assert [(one.submit_s - T0, one.start_s, one.end_s) for one in merged] == [
        (0, T0 + 60, T0 + 9000),
        (90_000, again.start_s, again.end_s),
    ]


def test_shards_count_as_fractions_of_a_gpu() -> None:
    def shards(job_id: int, n: int) -> PastJob:
        return job(job_id, job_id, tres={"cpu": 1.0, "node": 1.0, "gres/shard": float(n)})

    assert refused_ids(replay(shards(1, 2), job(2, 10, gpus=3), job(3, 20, gpus=1))) == [3]


@pytest.mark.parametrize("tres", [{}, {"cpu": 1.0}, {"gres/gpu": 1.0, "gres/gpu:a100": 1.0}])
def test_jobs_with_incomplete_records_are_judged(tres: dict[str, float]) -> None:
    assert replay(job(1, tres=tres, n_nodes=0, start_s=None, end_s=None)).errors == []


def test_jobs_without_a_known_request_are_left_out_and_counted() -> None:
    waits = job(1, start_s=None, end_s=None, tres={})
    known, remarks = without_size([waits, job(2), job(3, start_s=None, end_s=None)])
    assert [one.job_id for one in known] == [2, 3]
    assert remarks == ["1 job left out: Slurm's accounting does not contain their requests yet"]
    assert without_size([job(2)]) == ([job(2)], [])


def test_gpus_missing_in_accounting_are_taken_from_the_records_of_nodes() -> None:
    tres = {"cpu": 4.0, "node": 1.0}
    unknown, recorded = job(1, tres=tres, n_gpus=None), job(2, 10, tres=tres, n_gpus=5.0)
    known, remarks = without_size([unknown, recorded])
    assert known == [recorded]
    assert remarks == ["1 job left out: Slurm does not account for their GPUs"]
    assert refused_ids(replay(*known)) == [2]


def test_rules_that_records_cannot_answer_are_left_out_and_reported() -> None:
    policy = compiled()
    rules = policy["rules"]
    assert isinstance(rules, list)
    policy["rules"] = [
        {**rules[0], "id": "inter", "kind": "interactive"},
        {**rules[0], "id": "hours", "limits": {"gpu_hours:week": 1, "gpus_total": 4000}},
        {**rules[0], "id": "night", "limits": {"gpus": 1}, "when": {"run": True}},
        {**rules[0], "id": "billed", "limits": {"gpus": 2, "billing_hours": 5}},
    ]
    kept, remarks = without_unknown(policy)
    assert isinstance(kept["rules"], list)
    limits = [rule["limits"] for rule in kept["rules"]]  # type: ignore[index,call-overload]
    assert limits == [{"gpus_total": 4000}, {"gpus": 1}, {"gpus": 2}]
    assert [text.partition(":")[0] for text in remarks] == [
        "rule inter is left out",
        "GPU-hours of rule hours are left out",
        "rule night",
        "billing_hours of rule billed is left out",
    ]


CONDITIONS = """\
version: 1
mode: enforce
groups: {all: {}}
rules: [{id: r, for: all, per: user, why: W., jobs: %s, limits: {jobs_total: 2}}]
"""


def test_sums_over_some_jobs_are_replayed() -> None:
    jobs = [job(n, n, time_limit_s=3600 * (1 + n % 2)) for n in range(1, 7)]
    assert refused_ids(replay(*jobs, text=CONDITIONS % "{at_least: {walltime: 2h}}")) == [5]
    tasks = [job(n, n // 10, array_job_id=n // 10) for n in (20, 21, 30, 31, 40)]
    assert refused_ids(replay(*tasks, text=CONDITIONS % "{array: true}")) == [30, 40]
    _, remarks = without_unknown(compiled(CONDITIONS % "{names: [jup*]}"))
    assert remarks == ["rule r is left out: records do not contain job names"]


LENDING = """\
version: 1
mode: enforce
manages: {qos: [sg-*, normal], accounts: [vision, nlp]}
groups: {vision: {accounts: [vision]}, borrowers: {qos: [sg-loans]}, owning: {qos: [sg-vision]}}
owners: {vision: {gpus: 12, lend_in: sg-loans, return_within: 10m}}
rules:
  - {id: loans, for: borrowers, per: user, why: "Eight each.", limits: {gpus_total: 8}}
  - {id: own, for: owning, per: user, why: "Six each.", limits: {gpus_total: 6}}
"""


def test_jobs_count_in_the_qos_that_the_policy_assigns() -> None:
    result = replay(
        job(1, gpus=6),  # on GPUs of vision
        job(2, 1, gpus=1),  # on GPUs of vision, too
        job(3, 2, gpus=4, account="nlp"),  # on GPUs without an owner
        job(4, 3, gpus=6, account="nlp"),
        job(5, 4, gpus=3, account="nlp", qos="sg-loans"),
        job(6, 5, gpus=1, account="nlp", qos="sg-vision"),  # assigned by another policy
        text=LENDING,
    )
    assert [(one.first.job_id, one.rules) for one in result.refused] == [(2, ("own",)), (5, ("loans",))]
    assert [one.first.job_id for one in result.on_loan] == [4]
    assert [one.qos for one in result.judgements if one.accepted] == [
        "sg-vision",
        "normal",
        "sg-loans",
        "normal",
    ]
    assert result.errors == []


def test_the_remark_names_the_parts_of_lending_that_are_not_judged() -> None:
    (remark,) = without_unknown(compiled(LENDING))[1]
    assert remark.startswith("owners: the replay lists jobs that would have borrowed GPUs. All jobs start")
    assert without_unknown(compiled())[1] == []
    assert replay(job(1)).on_loan == []


def test_recorded_urgent_jobs_are_accepted_without_a_reason() -> None:
    text = """\
version: 1
manages: {qos: [urgent]}
groups: {leads: {users: [alice]}}
urgent: {for: [leads], jobs_running: 1, why: "Deadlines."}
"""
    result = replay(job(1, qos="urgent"), job(2, qos="urgent", user="bob", uid=1002), text=text)
    assert refused_ids(result) == [2]
    assert any("records do not contain reasons" in remark for remark in without_unknown(compiled(text))[1])


ROUTING = """\
version: 1
mode: enforce
groups: {everyone: {}, debug: {partitions: [debug]}}
rules:
  - {id: short, for: everyone, per: job, why: "Soon.", mode: fit,
     jobs: {at_most: {walltime: 1h}}, set: {partition: debug}}
  - {id: time, for: everyone, per: job, why: "Turns.", mode: fit,
     limits: {walltime: 1d}, defaults: {walltime: 4h}}
  - {id: two, for: debug, per: user, why: "Two each.", limits: {jobs_total: 2}}
"""


def test_jobs_count_in_the_partition_that_a_rule_sets() -> None:
    result = replay(
        *(job(number, number, time_limit_s=HOUR) for number in (1, 2, 3)),
        job(4, 4, time_limit_s=48 * HOUR),
        job(5, 5),
        text=ROUTING,
    )
    assert [(one.first.job_id, one.rules) for one in result.refused] == [(3, ("two",))]
    changed = [(one.first.job_id, one.partition, *map(str, one.changes)) for one in result.changed]
    assert changed == [
        (1, "debug", "rule short set --partition=debug (was gpu)"),
        (2, "debug", "rule short set --partition=debug (was gpu)"),
        (4, "gpu", "rule time set --time=1-00:00:00 (was 2-00:00:00)"),
    ]
    assert result.errors == []


def test_defaults_are_left_out_since_records_do_not_show_what_a_job_named() -> None:
    _, remarks = without_unknown(compiled(ROUTING))
    assert remarks == ["defaults of rule time are left out: records do not contain options"]
