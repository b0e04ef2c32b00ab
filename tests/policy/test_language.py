"""Every setting of policy.yaml is read; a wrong unit or bound is reported with its position."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.config.yaml_source import parse_yaml
from slurm_gpu.errors import InputError
from slurm_gpu.policy.language.amounts import GpuLimit, LimitStep, RuleLimits
from slurm_gpu.policy.language.limits import LIMITS, flat_limits
from slurm_gpu.policy.language.local_time import end_of_day, start_of_day, utc_offsets
from slurm_gpu.policy.language.model import BundleMode, Hours, JobKind, JobTime, Mode, OnError
from slurm_gpu.policy.language.names import resolve_names
from slurm_gpu.policy.lua.bundle import SiteFacts, compile_policy

from .checking import check, mistakes
from .users import Directory

WHOLE = """\
version: 1
mode: enforce
chain: {before: /etc/slurm/site.lua}
bundles:
  train: {gpus: 1, cpus: 8, memory: 64G, gpu_types: [A100], mode: fit}
  prep: {gpus: 0, cpus: 16, partitions: [cpu], why: GPU nodes are for GPU jobs.}
groups: {all: {}}
rules:
  - id: job
    for: all
    per: job
    why: w
    kind: interactive
    when: {days: [sat, mon-tue], hours: "22:30-06", at: run}
    limits:
      gpus: {A100: 4, v100: 0.5}
      gpus_per_node: 4
      nodes: 4
      cpus: {0: 4, 2: 64}
      memory: 1.5T
      cpus_per_gpu: 8
      memory_per_gpu: 64G
      array_tasks: 100
      tasks: 256
      walltime: {8: 2d, 1: 7d, 32: 12h}
      partitions: [gpu, Long]
      gpu_types: [A100]
      qos: [SG-long, normal]
      gpu_hours: 96
      cpu_hours: 800
      billing_hours: 900
  - id: sum
    for: all
    per: user
    why: w
    limits:
      gpus_total: 16
      gpus_running: {a100: 8}
      gpus_pending: 6
      jobs_pending: 5
      jobs_total: 20
      jobs_running: 10
      cpus_total: 640
      cpus_running: 320
      memory_total: 4T
      memory_running: 2T
      nodes_running: 8
      gpu_hours: {day: 12.5, week: 500}
      cpu_hours: {30d: 4000}
      billing_hours: {year: 70000}
exceptions:
  - {rule: job, user: alice, limits: {gpus: {a100: 8}, walltime: 9d}, why: w,
     from: 2026-12-01, until: "2026-12-05"}
"""


def every(limit: int) -> tuple[LimitStep, ...]:
    """Return the steps of a limit that does not depend on GPUs."""
    return (LimitStep(0, limit),)


def test_every_limit_is_read_in_its_unit() -> None:
    policy = check(WHOLE)
    job, total = policy.rules
    assert job.limits == RuleLimits(
        gpus=GpuLimit(by_type_mgpu={"a100": 4000, "v100": 500}),
        gpus_per_node=every(4),
        nodes=every(4),
        cpus=(LimitStep(0, 4), LimitStep(2000, 64)),
        memory_mib=every(1536 * 1024),
        cpus_per_gpu=every(8),
        memory_per_gpu_mib=every(65536),
        array_tasks=every(100),
        tasks=every(256),
        walltime=(LimitStep(1000, 7 * 86400), LimitStep(8000, 2 * 86400), LimitStep(32000, 43200)),
        partitions=("gpu", "Long"),
        gpu_types=("a100",),
        qos=("sg-long", "normal"),
        gpu_hours={None: 96},
        cpu_hours={None: 800},
        billing_hours={None: 900},
    )
    assert total.limits == RuleLimits(
        gpus_total=GpuLimit(16000),
        gpus_running=GpuLimit(by_type_mgpu={"a100": 8000}),
        gpus_pending=GpuLimit(6000),
        jobs_pending=5,
        jobs_total=20,
        jobs_running=10,
        cpus_total=640,
        cpus_running=320,
        memory_total_mib=4 * 2**20,
        memory_running_mib=2 * 2**20,
        nodes_running=8,
        gpu_hours={"day": 12.5, "week": 500},
        cpu_hours={"30d": 4000},
        billing_hours={"year": 70000},
    )
    set_here = {
        kind.key for rule in policy.rules for kind in LIMITS.values() if kind.of(rule.limits) is not None
    }
    assert set_here == set(LIMITS)  # all limits are tested above


def test_the_rest_of_a_policy_is_read() -> None:
    policy = check(WHOLE)
    job, _ = policy.rules
    assert job.kind is JobKind.INTERACTIVE
    assert job.when == Hours(frozenset({0, 1, 5}), (22 * 60 + 30, 30 * 60), JobTime.RUN)
    train, prep = policy.bundles.values()
    assert (train.mgpu, train.cpus, train.memory_mib, train.gpu_types) == (1000, 8, 65536, ("a100",))
    assert (train.mode, prep.mode) == (BundleMode.FIT, BundleMode.OBSERVE)
    assert (prep.mgpu, prep.partitions, prep.memory_mib) == (0, ("cpu",), None)
    assert policy.chain.before == Path("/etc/slurm/site.lua")
    assert policy.exceptions[0].until == dt.date(2026, 12, 5)  # a quoted day is accepted too


def test_the_compiled_policy_has_one_number_per_limit() -> None:
    source = parse_yaml(WHOLE, "p.yaml")
    policy = check(WHOLE)
    table: Any = compile_policy(policy, resolve_names(policy, source, Directory()), SiteFacts())
    job, total = table["rules"]
    assert job["limits"] == {
        "gpus:a100": 4000,
        "gpus:v100": 500,
        "gpus_per_node": 4,
        "nodes": 4,
        "cpus": [{"mgpu": 0, "limit": 4}, {"mgpu": 2000, "limit": 64}],
        "memory": 1536 * 1024,
        "cpus_per_gpu": 8,
        "memory_per_gpu": 65536,
        "array_tasks": 100,
        "tasks": 256,
        "walltime": [
            {"mgpu": 1000, "limit": 604800},
            {"mgpu": 8000, "limit": 172800},
            {"mgpu": 32000, "limit": 43200},
        ],
        "partitions": {"Long": True, "gpu": True},
        "gpu_types": {"a100": True},
        "qos": {"normal": True, "sg-long": True},
        "gpu_hours": 96,
        "cpu_hours": 800,
        "billing_hours": 900,
    }
    assert total["limits"]["gpus_running:a100"] == 8000
    assert (total["limits"]["gpu_hours:day"], total["limits"]["gpu_hours:week"]) == (12.5, 500)
    assert total["limits"]["cpu_hours:30d"] == 4000
    assert job["kind"] == "interactive"
    days = [True, True, False, False, False, True, False]
    text = "that may run on Monday, Tuesday and Saturday from 22:30 to 06:00 the next day"
    assert job["when"] == {"days": days, "from_min": 1350, "to_min": 1800, "run": True, "text": text}
    assert job["exceptions"][1001]["limits"] == {"gpus:a100": 8000, "walltime": 9 * 86400}
    train, prep = table["bundles"]
    assert train["why"] == "Share of 1 GPU: 8 CPUs and 64G of memory."
    assert (prep["mgpu"], prep["why"]) == (0, "GPU nodes are for GPU jobs.")
    assert table["chain_before"] == "/etc/slurm/site.lua"
    assert table["chain_after"] is None
    assert table["snapshot"] == "/run/slurm-gpu/snapshot.txt"
    assert table["utc_offsets"] == [{"from_s": 0, "offset_s": 0}]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        # Units.
        (
            "memory_per_gpu: 64G",
            "memory_per_gpu: 64",
            "p.yaml:22:23: memory_per_gpu: 64 has no unit; write 64G (or 64M, 64T)",
        ),
        ("memory_per_gpu: 64G", "memory_per_gpu: 64M", "'64M' is less than any program needs; did you mean"),
        (
            "memory_per_gpu: 64G",
            "memory_per_gpu: 64000G",
            "'64000G' is 62.5T, more than any node has; did you mean 64000M?",
        ),
        (
            "memory_per_gpu: 64G",
            "memory_per_gpu: 64 gigs",
            "'64 gigs' must be an amount of memory, such as 64G",
        ),
        (
            "memory_per_gpu: 64G",
            "memory_per_gpu: 0.3G",
            "'0.3G' must be in whole MiB, as in Slurm, such as 307M",
        ),
        ("memory: 64G", "memory: 64", "p.yaml:5:37: memory: 64 has no unit; write 64G"),
        ("gpus: 1, cpus: 8, memory: 64G", "gpus: 0.25, memory: 2T", "memory: 2T is 8T for each GPU, more"),
        (
            "1: 7d",
            "1: 70000h",
            "p.yaml:25:28: walltime: '70000h' is 2917 days; the maximum is 366d. Did you mean 70000m?",
        ),
        ("1: 7d", "1: 7", "walltime: 7 has no unit; write 7m, 7h, 7d or a Slurm time such as 7-00:00:00"),
        ("1: 7d", "1: 500", "walltime: 500 has no unit; write 500m, 500h or a Slurm time"),
        ("1: 7d", "1: 0.5", "walltime: 0.5 has no unit; write 0.5h, 0.5d or a Slurm time"),
        ("1: 7d", "1: 7200", "walltime: 7200 has no unit; write 7200m, 7200s or a Slurm time"),
        ("1: 7d", "1: 1000", "walltime: 1000 has no unit; write 1000m or a Slurm time"),
        ("1: 7d", "1: .inf", "walltime: inf has no unit; write 4h or a Slurm time"),
        ("week: 500", "week: 500h", "week: '500h' must be a number of GPU-hours ≥ 0, such as 500"),
        # Bounds, hours, types.
        ("days: [sat, mon-tue]", "days: weekend", "'weekend', which is not a day; "),
        ('"22:30-06"', "9", 'hours: 9 must be hours, such as "09-18" or "22:30-06"'),
        ('"22:30-06"', '"09-25"', "hours: '09-25' is not a range of times"),
        ('"22:30-06"', '"22-22"', "hours: '22-22' is empty; leave hours out for the whole day"),
        ("at: run", "at: start", "at: 'start' is not valid; allowed: submission, run"),
        (
            'days: [sat, mon-tue], hours: "22:30-06", at: run',
            "at: run",
            "at: without days or hours, the rule would apply at any time; add days or hours",
        ),
        ("kind: interactive", "kind: interaktive", "did you mean interactive?"),
        ("A100: 4,", "A100: 4, a100: 2,", "'a100' is set twice"),
        (
            "gpus_running: {a100: 8}",
            "gpus_running: {}",
            "limits.gpus_running of rule sum is empty; write a number of GPUs ≥ 0, such as 8 or 0.5, or a",
        ),
        ("8: 2d", "eight: 2d", "'eight' must be the number of GPUs from which"),
        ("partitions: [gpu, Long]", "partitions: gpu", "partitions: 'gpu' must be a list of names, such as"),
        (
            "{day: 12.5, week: 500}",
            "500",
            "gpu_hours: in a rule with per: user, write a table, such as {week: 500}",
        ),
        (
            "gpu_hours: 96",
            "gpu_hours: {day: 96}",
            "gpu_hours: in a rule with per: job, write one number, such as",
        ),
        ("{day: 12.5, week: 500}", "{day: {a100: many}}", "a100: 'many' must be a number of GPU-hours"),
        (
            "{day: 12.5, week: 500}",
            "{day: {}}",
            "limits.gpu_hours.day of rule sum is empty; write a number of",
        ),
        ("{day: 12.5, week: 500}", "{day: {max: 9}}", "day: 'max' is not a GPU type; day is a maximum"),
        ("{day: 12.5, week: 500}", "{a100: 9}", "'a100' must be day, week, month, quarter, year or"),
        ("{30d: 4000}", "{30d: {a100: 9}}", "30d: {'a100': 9} must be a number of CPU-hours"),
        ("{30d: 4000}", "4000", "cpu_hours: in a rule with per: user, write a table, such as {week: 500}"),
        (
            "{day: 12.5, week: 500}",
            "{years: 500}",
            "'years' must be day, week, month, quarter, year or 2d to 366d",
        ),
        (
            "{day: 12.5, week: 500}",
            "{1d: 500}",
            "'1d' must be day, week, month, quarter, year or 2d to 366d, such as 30d",
        ),
        ("8: 2d", "h100: 2d", "write jobs: {gpu_types: [a100]} in a rule with per: job"),
        # A separator of decimals or thousands.
        ("week: 500", "week: 50.000", "week: 50.0 is ambiguous; write 50 or 50000 (written as 50.000)"),
        ("week: 500", "week: 1.500", "week: 1.5 is ambiguous; write 1.5 or 1500 (written as 1.500)"),
        ("week: 500", "week: '1,500'", "week: '1,500' is ambiguous; write 1.5 or 1500"),
        ("gpus_total: 16", "gpus_total: 50.000", "gpus_total: 50.0 is ambiguous; write 50 or"),
        ("gpus_total: 16", "gpus_total: 50,000", "gpus_total: '50,000' is ambiguous; write 50 or"),
        ("jobs_total: 20", "jobs_total: 20.000", "jobs_total: 20.0 is ambiguous; write 20 or 20000"),
        ("8: 2d", "8.000: 2d", "8.0 is ambiguous; write 8 or 8000 (written as 8.000)"),
        ("memory: 1.5T", "memory: 512.000M", "memory: '512.000M' is ambiguous; write 512M or 512000M"),
        ("memory_per_gpu: 64G", "memory_per_gpu: 64.000", "memory_per_gpu: 64.0 has no unit"),
        # Settings in the wrong place.
        (
            "{day: 12.5, week: 500}",
            "{week: 5, hard: true}",
            "'hard' is not valid here; it is a setting of rule sum",
        ),
        ("    kind: interactive", "    kind: interactive\n    partition: debug", "of set, defaults"),
        (
            "jobs_total: 20",
            "jobs_total: 20\n      hard: true",
            "limits of rule sum; it is a setting of rule sum",
        ),
        ("      nodes: 4\n", "      nodes_running: 4\n", "'nodes_running' is not allowed in a rule with per"),
        (
            "jobs_total: 20",
            "tasks: 20",
            "'tasks' is not allowed in a rule with per: user; write it in a rule with per: job",
        ),
        (
            "limits: {gpus: {a100: 8}",
            "limits: {gpus: {h100: 8}",
            "'gpus:h100': rule job does not set this limit",
        ),
        ("limits: {gpus: {a100: 8}", "limits: {gpus: 8", "'gpus': rule job does not set this limit, so"),
        # Bundles, the chain.
        ("gpus: 1, cpus: 8, memory: 64G, gpu_types: [A100]", "gpus: 1", "bundle train sets nothing; add"),
        ("gpus: 0, cpus: 16", "cpus: 16", "prep lacks gpus"),
        ("cpus: 16, partitions: [cpu]", "cpus: 0", "cpus: 0 must be a whole number from 1 to"),
        ("gpus: 0, cpus: 16", "gpus: 0, gpu_types: [a100]", "a bundle with gpus: 0 cannot have gpu_types"),
        ("mode: fit", "mode: force", "mode: 'force' is not valid; did you mean enforce?"),
        ("/etc/slurm/site.lua", "site.lua", "before: 'site.lua' must be an absolute path"),
    ],
)
def test_each_mistake_is_reported(old: str, new: str, message: str) -> None:
    assert old in WHOLE
    found = mistakes(WHOLE.replace(old, new, 1))
    assert any(message in line for line in found), found
    assert len(found) == 1, found


@pytest.mark.parametrize(
    ("new", "message"),
    [
        ("{week: 50,000}", "p.yaml:48:25: 50,000 is ambiguous; write 50 or 50000"),
        ("{week: 50,000, day: 1,000}", "p.yaml:48:25: 50,000 is ambiguous; write 50 or 50000"),
        ("{week: 2,050}", "p.yaml:48:25: 2,050 is ambiguous; write 2.05 or 2050"),
    ],
)
def test_a_comma_in_a_number_is_an_error_although_yaml_reads_two_keys(new: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        check(WHOLE.replace("{day: 12.5, week: 500}", new, 1))
    assert str(caught.value) == message


@pytest.mark.parametrize("gpus", ["0.5", "2.5", "0.500", "0.125", "1.125", "2.50", "50.0"])
def test_decimals_that_cannot_be_thousands_are_read(gpus: str) -> None:
    policy = check(WHOLE.replace("gpus_total: 16", f"gpus_total: {gpus}", 1))
    assert policy.rules[1].limits.gpus_total == GpuLimit(round(float(gpus) * 1000))


def test_a_rule_has_the_policys_mode_by_default() -> None:
    text = (
        "version: 1\nmode: observe\non_error: deny\ngroups: {all: {}}\nrules:\n"
        "  - {id: a, for: all, per: job, why: w, limits: {gpus: 1}}\n"
        "  - {id: b, for: all, per: job, why: w, limits: {gpus: 1}, mode: enforce, on_error: allow}\n"
    )
    first, second = check(text).rules
    assert (first.mode, first.on_error) == (Mode.OBSERVE, OnError.DENY)
    assert (second.mode, second.on_error) == (Mode.ENFORCE, OnError.ALLOW)
    assert mistakes(text.replace("mode: observe", "mode: fit")) == [
        "p.yaml:2:7: mode: 'fit' is not valid; allowed: observe, advise, enforce"
    ]


def test_yaml_anchors_are_resolved() -> None:
    policy = check(
        "version: 1\nmode: enforce\ngroups: {all: {}}\nrules:\n"
        "  - {id: a, for: all, per: job, why: w, limits: &small {gpus: 2, walltime: 4h}}\n"
        "  - {id: b, for: all, per: job, why: w, limits: {<<: *small, gpus: 4}}\n"
    )
    assert policy.rules[1].limits == RuleLimits(gpus=GpuLimit(4000), walltime=(LimitStep(0, 4 * 3600),))


def test_a_plain_walltime_is_compiled_to_one_number() -> None:
    assert flat_limits(RuleLimits(walltime=(LimitStep(0, 60),))) == {"walltime": 60}


SEOUL, BERLIN = ZoneInfo("Asia/Seoul"), ZoneInfo("Europe/Berlin")


def test_a_zone_without_summer_time_is_one_offset() -> None:
    assert utc_offsets(SEOUL, 2026) == ((0, 9 * 3600),)


@given(st.integers(1767225600, 1893455999), st.sampled_from(["Europe/Berlin", "Australia/Lord_Howe", "UTC"]))
def test_offsets_are_those_of_the_zone(second: int, name: str) -> None:
    zone = ZoneInfo(name)
    found = [east for begin, east in utc_offsets(zone, 2026) if begin <= second][-1]
    offset = dt.datetime.fromtimestamp(second, zone).utcoffset()
    assert offset is not None
    assert found == offset.total_seconds()


def test_a_day_ends_at_the_sites_midnight() -> None:
    assert end_of_day(dt.date(2026, 12, 5), SEOUL) == 1796515200 - 9 * 3600
    assert end_of_day(dt.date(2026, 12, 5), BERLIN) == start_of_day(dt.date(2026, 12, 6), BERLIN)
    assert start_of_day(dt.date(2026, 12, 6), BERLIN) == 1796515200 - 3600
