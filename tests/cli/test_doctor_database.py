"""`slurm-gpu doctor` checks slurm-gpudbd and the nodes that send data to it."""

import dataclasses
from collections.abc import Mapping, Sequence

import pytest

from slurm_gpu import __version__
from slurm_gpu.cli.doctor.checks.daemons import database, forecasts, readers, web
from slurm_gpu.cli.doctor.checks.finding import Level
from slurm_gpu.client.database_client import NodeReport
from slurm_gpu.database.storage.engine import head_revision
from slurm_gpu.errors import SlurmError
from slurm_gpu.wire import DeviceFacts, Live
from tests.cli.conftest import make_health
from tests.cli.installation import Installation, levels, worst
from tests.cli.test_doctor_outages import PERSISTENT
from tests.slurm.recorded import NOW_S


def test_a_healthy_database_is_ok(installed: Installation):
    assert levels(database.answers(installed.at())) == ["ok"]
    assert levels(database.import_fresh(installed.at())) == ["ok"]


def test_an_unreachable_database_is_reported(installed: Installation):
    installed.database.state = None
    finding = worst(database.answers(installed.at()))
    assert finding.level is Level.FAIL
    assert "cannot be reached" in finding.message


def test_an_old_schema_is_reported(installed: Installation):
    assert database.schema_here() == head_revision()
    installed.database.state = make_health(schema="0001")
    finding = worst(database.answers(installed.at()))
    assert (finding.level, finding.message.startswith("the database has schema 0001")) == (
        Level.FAIL,
        True,
    )
    assert str(finding.remedy).startswith("run slurm-gpu db upgrade on slurm-gpudbd's host")


def test_wrong_clocks_of_nodes_are_reported(installed: Installation):
    assert levels(database.clocks(installed.at())) == ["skipped"]
    installed.database.reports = [_report("n1", 4), _report("n2", 4), _report("n3", 4)]
    installed.database.lives = {"n1": Live(at_s=NOW_S - 9.5), "n2": Live(at_s=NOW_S + 10.0)}
    assert levels(database.clocks(installed.at())) == ["ok"]
    installed.database.lives |= {"n2": Live(at_s=NOW_S + 95.0), "n3": Live(at_s=NOW_S - 40.0)}
    found = [finding.message for finding in database.clocks(installed.at())]
    assert [text.partition(" slurm-gpudbd")[0] for text in found] == [
        "the clock of n2 is about 1m35s ahead of",
        "the clock of n3 is about 40s behind",
    ]


def test_repeatedly_ending_nvml_readers_are_reported(installed: Installation):
    installed.database.lives = {"n1": Live(at_s=NOW_S), "n2": Live(at_s=NOW_S, host={"reader_exits": 2})}
    assert levels(readers.alive(installed.at())) == ["ok"]
    installed.database.lives["n3"] = Live(at_s=NOW_S, host={"reader_exits": 11})
    # n4 still runs the previous release.
    installed.database.lives["n4"] = Live(at_s=NOW_S, host={"reader_deaths": 3})
    finding = worst(readers.alive(installed.at()))
    assert finding.level is Level.FAIL
    assert "ended repeatedly on n[3-4] (at most 11 times within ten minutes)" in finding.message
    assert str(finding.remedy).startswith("on n3, ")


def test_another_version_or_clock_of_slurm_gpudbd_is_reported(installed: Installation):
    installed.database.state = make_health(version="9.9", now_s=NOW_S - 90)
    findings = list(database.answers(installed.at()))
    assert [finding.level.value for finding in findings] == ["ok", "warn", "warn"]
    assert "clock is 1m30s ahead of slurm-gpudbd's" in findings[2].message


@pytest.mark.parametrize(
    ("changes", "level"),
    [
        ({"import_error": "sacct: no"}, "fail"),
        ({"last_import_s": None}, "warn"),
        ({"last_import_s": NOW_S - 170.0}, "ok"),
        ({"last_import_s": NOW_S - 190.0}, "fail"),
    ],
)
def test_a_late_or_failed_import_is_reported(installed: Installation, changes: dict[str, object], level: str):
    installed.database.state = make_health(**changes)
    installed.outputs["sacctmgr"] = "gres|gpu\n"
    assert levels(database.import_fresh(installed.at())) == [level]


def test_if_slurmdbd_hangs_a_late_import_names_it(installed: Installation):
    """The import has no error until sacct times out after ten minutes."""
    installed.database.state = make_health(last_import_s=NOW_S - 190.0)
    at = installed.at()

    def run(argv: Sequence[str], environ: Mapping[str, str], timeout_s: float) -> str:
        raise SlurmError(f"`{' '.join(argv)}` gave no answer within 10 s")

    at.site.run = run
    finding = worst(database.import_fresh(at))
    assert finding.message == (
        "Slurm's accounting was read 3m10s ago (interval: 1m00s): slurmdbd does not answer within 10 s"
    )
    assert str(finding.remedy).startswith("run systemctl start slurmdbd")


def test_a_failed_import_names_the_daemon_that_is_down(installed: Installation):
    installed.database.state = make_health(import_error=PERSISTENT)
    finding = worst(database.import_fresh(installed.at()))
    assert finding.message == "the last import failed: slurmdbd does not answer"


def test_jobs_that_slurm_lost_are_reported(installed: Installation):
    installed.database.state = make_health(unmatched_jobs=(22, 7))
    finding = worst(database.jobs_accounted(installed.at()))
    assert (finding.level, finding.message) == (
        Level.WARN,
        "Slurm's accounting lacks jobs that nodes recorded: 22, 7",
    )
    installed.database.state = make_health(unmatched_jobs=())
    assert levels(database.jobs_accounted(installed.at())) == ["ok"]
    installed.database.state = make_health(unmatched_jobs=None)  # from an older slurm-gpudbd
    assert levels(database.jobs_accounted(installed.at())) == ["skipped"]


def test_nodes_that_send_no_records_are_reported_on_every_host(installed: Installation):
    installed.database.state = make_health(stale_nodes=("n1", "n3"))
    assert levels(database.nodes_ship(installed.at())) == ["fail"]
    finding = worst(database.nodes_ship(installed.at()))
    assert finding.message == "n[1,3] sent no records for 12 minutes, although GPUs are allocated there"
    installed.database.state = make_health()
    assert levels(database.nodes_ship(installed.at())) == ["ok"]


def test_data_that_slurm_gpudbd_refused_is_reported_for_a_day(installed: Installation):
    assert levels(database.nothing_refused(installed.at())) == ["ok"]
    installed.database.state = make_health(rejected={"records": 2, "events": 1}, last_rejected_s=NOW_S - 180)
    finding = worst(database.nothing_refused(installed.at()))
    assert (finding.level, finding.message) == (
        Level.WARN,
        "slurm-gpudbd has rejected shipments of nodes, the last 3m00s ago; rejected since its start: "
        "events 1, records 2",
    )
    installed.database.state = make_health(rejected={"records": 2}, last_rejected_s=NOW_S - 86401)
    assert levels(database.nothing_refused(installed.at())) == ["ok"]
    installed.database.state = make_health(rejected=None)  # from an older slurm-gpudbd
    assert levels(database.nothing_refused(installed.at())) == ["skipped"]


def _report(node: str, n_gpus: int, version: str | None = __version__, n_instances: int = 0) -> NodeReport:
    """Return the report of a node with GPUs, the first of which is divided into instances."""
    uuids = [(f"{node}-GPU-{n}", None) for n in range(n_gpus)]
    uuids += [(f"{node}-MIG-{n}", f"{node}-GPU-0") for n in range(n_instances)]
    devices = tuple(DeviceFacts(uuid=uuid, node=node, at_s=5, parent=parent) for uuid, parent in uuids)
    return NodeReport(node=node, last_seen_s=NOW_S, version=version, devices=devices)


def test_a_silent_node_is_named(installed: Installation):
    installed.database.reports = [_report("n1", 4), _report("n2", 4), _report("n3", 4)]
    finding = worst(database.nodes_report(installed.at()))
    assert finding.message == "slurm-gpud on n[1-3] reported within the last two minutes"
    late = dataclasses.replace(_report("n2", 4), last_seen_s=NOW_S - 190.0)
    installed.database.reports = [
        _report("n1", 4),
        late,
        dataclasses.replace(late, node="n3", last_seen_s=None),
    ]
    found = list(database.nodes_report(installed.at()))
    assert [(finding.level, finding.message) for finding in found] == [
        (Level.FAIL, "slurm-gpud on n2 has not reported for 3m10s"),
        (Level.FAIL, "slurm-gpud on n3 has not reported since slurm-gpudbd started"),
    ]
    assert found[0].remedy is not None
    assert found[0].remedy.startswith("run systemctl start slurm-gpud")


def test_the_same_problem_on_500_nodes_is_one_finding(installed: Installation):
    """A firewall may separate all nodes from slurm-gpudbd; one line per node would hide other findings."""
    at = installed.at()
    names = [f"n{n}" for n in range(1, 501)]
    at.nodes = [dataclasses.replace(at.nodes[0], name=name) for name in names]
    (never,) = database.nodes_report(at)
    assert never.message == "slurm-gpud on n[1-500] has not reported since slurm-gpudbd started"
    assert "reaches http://localhost:6829; do the same on the other nodes" in str(never.remedy)
    installed.database.reports = [
        dataclasses.replace(_report(name, 3), last_seen_s=NOW_S - 200.0 - n) for n, name in enumerate(names)
    ]
    (late,) = database.nodes_report(at)
    assert late.message == "slurm-gpud on n[1-500] has not reported for 3m20s to 11m39s"
    fewer, *_ = database.devices_agree(at)
    assert fewer.message == "Slurm has 4 GPUs on each of n[1-500], but slurm-gpud detects 3 there"
    installed.database.lives = {name: Live(at_s=NOW_S + 900.0 + n) for n, name in enumerate(names)}
    (ahead,) = database.clocks(at)
    assert ahead.message.startswith(
        "the clocks of n[1-500] are about 18m20s to 34m58s ahead of slurm-gpudbd's"
    )


def test_a_slurm_gpud_that_was_just_started_is_only_a_warning(installed: Installation):
    installed.database.reports = [_report("n1", 4), _report("n3", 4)]
    at = installed.at("n2")
    installed.process(7, "python3", "/usr/bin/slurm-gpud", "--node=n2", age_s=4.0)
    assert [(one.level, one.message) for one in database.nodes_report(at)] == [
        (Level.WARN, "slurm-gpud on n2 has not reported yet: it was started 4s ago")
    ]
    silent = next(iter(database.devices_agree(at)))
    assert (silent.level, silent.message) == (Level.SKIPPED, "n2: see the result of the nodes check")


@pytest.mark.parametrize(("age_s", "level"), [(3.0, Level.WARN), (90.0, Level.FAIL)])
def test_silent_nodes_are_only_a_warning_while_slurm_gpudbd_is_new(
    installed: Installation, age_s: float, level: Level
):
    installed.database.reports = [_report("n1", 4), _report("n3", 4)]
    installed.process(7, "slurm-gpudbd", age_s=age_s)
    assert [one.level for one in database.nodes_report(installed.at())] == [level]


def test_nodes_that_are_down_are_not_expected_to_report(installed: Installation):
    at = installed.at()
    at.nodes = [dataclasses.replace(one, state="down+not_responding") for one in at.nodes]
    assert levels(database.nodes_report(at)) == ["skipped"]


def test_equal_numbers_of_gpus_are_ok(installed: Installation):
    installed.database.reports = [_report(f"n{n}", 4) for n in (1, 2, 3)]
    (finding,) = database.devices_agree(installed.at())
    assert (finding.level, finding.message) == (Level.OK, "3 nodes have the GPUs that Slurm allocates")


def test_a_gpu_of_slurm_that_slurm_gpud_does_not_see_is_reported(installed: Installation):
    installed.database.reports = [_report("n1", 4), _report("n2", 3), _report("n3", 5)]
    assert levels(database.devices_agree(installed.at())) == ["fail", "warn"]
    assert worst(database.devices_agree(installed.at())).message == (
        "Slurm has 4 GPUs on n2, but slurm-gpud detects 3 there"
    )


def test_mig_instances_count_individually_or_as_their_gpu(installed: Installation):
    # n1 has two GPUs, one with three instances, so Slurm may allocate four devices.
    installed.database.reports = [_report("n1", 2, n_instances=3), _report("n2", 4, n_instances=3)]
    installed.database.reports.append(_report("n3", 4))
    assert levels(database.devices_agree(installed.at())) == ["ok"]


def test_if_the_database_lost_the_gpus_of_a_node_no_restart_is_advised(
    installed: Installation,
):
    reports = [_report(f"n{n}", 0) for n in (2, 3)]
    installed.database.reports = [_report("n1", 4), *reports]
    finding = worst(database.devices_agree(installed.at()))
    assert finding.level is Level.WARN
    assert finding.message.startswith("slurm-gpud runs on n[2-3], but the database has no GPUs of these")
    assert "start" not in str(finding.remedy)


def test_a_node_without_a_driver_is_not_taken_for_a_restored_backup(installed: Installation):
    installed.database.reports = [_report("n1", 0), _report("n2", 4), _report("n3", 4)]
    at = installed.at("n1")
    assert "after a backup is restored" in worst(database.devices_agree(at)).message
    (at.proc / "driver" / "nvidia" / "version").unlink()
    finding = worst(database.devices_agree(at))
    assert finding.level is Level.FAIL
    assert finding.message == "slurm-gpud detects no GPU on n1: the NVIDIA driver is not loaded"


def test_nodes_without_a_report_refer_to_the_finding_on_nodes(installed: Installation):
    installed.database.reports = [_report("n1", 4), _report("n2", 4)]
    messages = [finding.message for finding in database.devices_agree(installed.at())]
    assert "n3: see the result of the nodes check" in messages


def test_nodes_of_another_version_are_named(installed: Installation):
    installed.database.reports = [
        _report("n1", 4, "0.0.1"),
        _report("n2", 4, "0.0.1"),
        _report("n3", 4, None),
    ]
    finding = worst(database.devices_agree(installed.at()))
    assert (
        finding.message
        == f"slurm-gpud on n[1-2] has version 0.0.1, but this command has version {__version__}"
    )


@pytest.mark.parametrize(
    ("learned_s", "level"),
    [(None, "skipped"), (NOW_S - 3600, "ok"), (NOW_S + 5, "ok"), (NOW_S - 4 * 86400, "warn")],
)
def test_an_old_forecast_model_is_reported(installed: Installation, learned_s: float | None, level: str):
    installed.database.state = make_health(learned_s=learned_s)
    assert levels(forecasts.learned(installed.at())) == [level]


def test_a_refused_slurm_gpuweb_is_reported_with_the_setting_to_write(installed: Installation):
    assert levels(web.reads_everything(installed.at())) == ["ok"]
    refused = {
        "uid": 987,
        "user": None,
        "address": "10.0.0.7",
        "at_s": NOW_S - 3,
        "why": "web_hosts does not contain 10.0.0.7",
        "write": "web_hosts: [10.0.0.7]",
    }
    installed.database.state = make_health(web_refused=[refused])
    finding = worst(web.reads_everything(installed.at()))
    assert (finding.level, finding.message) == (
        Level.FAIL,
        "slurm-gpudbd refuses uid 987 from 10.0.0.7, which requests every run as slurm-gpuweb does: "
        "web_hosts does not contain 10.0.0.7; the last request was 3s ago",
    )
    # Any user can send the header, so the request may not be slurm-gpuweb's.
    assert str(finding.remedy).startswith(
        "if slurm-gpuweb runs there as that user, add web_hosts: [10.0.0.7]"
    )
    assert "add web_hosts: [10.0.0.7] to slurm-gpudbd.yaml" in str(finding.remedy)
