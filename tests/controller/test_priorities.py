"""slurm-gpuctld sets the points that waiting jobs have earned."""

from pathlib import Path

import pytest

from slurm_gpu.config.site import load_config
from slurm_gpu.controller.duty import QueueView
from slurm_gpu.controller.placement.priorities import CYCLE_S, PriorityController, fewest_nodes
from slurm_gpu.controller.queue.nodes import NodeCache
from slurm_gpu.controller.reporting.audit_reporter import AuditReporter
from slurm_gpu.errors import SlurmError
from slurm_gpu.slurm.client import WaitingJob
from slurm_gpu.wire.answers.runs import AuditEvent
from tests.controller.fakes import NOON_S, Clock, Slurm, make_node

HOUR = 3600
SITE = """\
cluster: lab
zones: {{zone1: {{nodes: "n[1-4]"}}, zone2: {{nodes: "n[5-8]"}}}}
placement: {{mode: {mode}, priority: {{per_hour: {{medium: 20, large: {large}}}, max_points: 1000}}}}
"""


class Site:
    """A slurmctld with waiting jobs, and the priority controller."""

    def __init__(self, directory: Path) -> None:
        self.path, self.clock, self.reported = directory / "slurm-gpu.yaml", Clock(), list[AuditEvent]()
        self.slurm = Slurm(self.clock, str(directory / "slurm.conf"))
        self.slurm.answers_after_s = 0.0
        self.cpu_s = 0.0

    def write(self, mode: str = "enforce", large: int = 40) -> None:
        self.path.write_text(SITE.format(mode=mode, large=large))

    def start(self, mode: str = "enforce") -> None:
        self.write(mode)
        self.controller = PriorityController(
            load_config(self.path),
            self.path,
            self.slurm,
            self.clock,
            AuditReporter(self.clock, self.reported.extend),
            lambda: self.cpu_s,
            NodeCache(self.slurm, self.clock),
        )

    def job(self, job_id: int, n_nodes: int, waited_h: float, site_factor: int = 0) -> None:
        assert self.slurm.waiting_jobs is not None
        eligible_s = int(NOON_S - waited_h * HOUR)
        self.slurm.waiting_jobs[job_id] = WaitingJob(job_id, eligible_s, n_nodes, site_factor)

    def run_cycle(self, after_s: float = CYCLE_S, *, in_charge: bool = True) -> dict[int, int]:
        self.clock.advance(after_s)
        self.controller.run(QueueView(in_charge=in_charge))
        return {job.job_id: job.site_factor for job in (self.slurm.waiting_jobs or {}).values()}

    @property
    def calls(self) -> list[str]:
        return [asked for asked in self.slurm.asked if asked.startswith("SiteFactor")]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_points_by_scale_and_waiting_in_one_call_for_each_value(site: Site):
    site.start()
    site.job(1, n_nodes=1, waited_h=50)
    site.job(2, n_nodes=2, waited_h=4)
    site.job(3, n_nodes=4, waited_h=2)
    site.job(4, n_nodes=8, waited_h=100)
    assert site.run_cycle() == {1: 0, 2: 80, 3: 80, 4: 1000}
    assert site.calls == ["SiteFactor=80 of [2, 3]", "SiteFactor=1000 of [4]"]
    site.run_cycle()
    assert len(site.calls) == 2, "no job has earned another step"
    assert site.run_cycle(HOUR) == {1: 0, 2: 100, 3: 120, 4: 1000}


@pytest.mark.parametrize(
    ("reported", "tres", "needs"),
    [
        # Values that squeue of Slurm 22.05 reports for nodes with 32 CPUs, 100 GB and 4 GPUs.
        (4, {"cpu": 1, "mem": 1024, "node": 1, "gres/gpu": 1}, 1),  # --nodes=1-1000 --gpus-per-node=1
        (3, {"cpu": 1, "node": 2}, 2),  # --nodes=2-3
        (2, {"cpu": 2, "node": 2}, 2),  # --nodes=2
        (2, {"cpu": 1, "node": 1, "gres/gpu": 6}, 2),  # --gpus=6
        (3, {"cpu": 70, "mem": 71680, "node": 1}, 3),  # --ntasks=70
        (4, {"cpu": 4, "mem": 400_000, "node": 1}, 4),
        (2, {"cpu": 4, "mem": 400_000, "node": 1}, 2),  # the reported number is enough
        (4, {}, 4),
    ],
)
def test_a_job_counts_as_one_of_the_fewest_nodes_that_would_do(
    reported: int, tres: dict[str, float], needs: int
):
    job = WaitingJob(1, 0, reported, 0, tres)
    assert fewest_nodes(job, [make_node("n1"), make_node("n2", gpus={}, cpus=8)]) == needs
    assert fewest_nodes(job._replace(tres={**tres, "gres/gpu": 1}), []) == reported


def test_a_value_set_by_hand_stays(site: Site):
    site.start()
    for job_id, by_hand in enumerate((-50, 77, 5000)):
        site.job(job_id, n_nodes=4, waited_h=5, site_factor=by_hand)
    assert site.run_cycle() == {0: -50, 1: 77, 2: 5000}


@pytest.mark.parametrize("mode", ["observe", "advise"])
def test_nothing_is_changed_unless_the_mode_is_enforce(site: Site, mode: str):
    site.start(mode)
    site.job(1, n_nodes=4, waited_h=5, site_factor=40)
    assert site.run_cycle() == {1: 40}
    assert site.slurm.asked == []


def test_only_next_to_the_active_slurmctld(site: Site):
    site.start()
    site.job(1, n_nodes=4, waited_h=5)
    assert site.run_cycle(in_charge=False) == {1: 0}
    assert site.run_cycle(in_charge=True) == {1: 200}


def test_the_next_process_continues_where_the_last_was_killed(site: Site):
    site.start()
    site.job(1, n_nodes=4, waited_h=5)
    site.run_cycle()
    site.start()
    assert site.run_cycle(HOUR) == {1: 240}


def test_weights_are_reloaded_when_the_file_changes_and_the_change_is_audited(site: Site):
    site.start()
    site.job(1, n_nodes=4, waited_h=5)
    site.run_cycle()
    site.write(large=20)
    assert site.run_cycle(1.0) == {1: 100}
    site.controller._acts.close()
    assert [(act.action, act.old, act.new) for act in site.reported] == [
        (
            "priority weights changed",
            "large 40, medium 20 an hour, 1000 at most",
            "large 20, medium 20 an hour, 1000 at most",
        )
    ]


def test_without_weights_jobs_lose_what_they_were_given(site: Site):
    site.start()
    site.job(1, n_nodes=4, waited_h=5)
    site.run_cycle()
    site.path.write_text("cluster: lab\nplacement: {mode: enforce}\n")
    assert site.run_cycle(1.0) == {1: 0}


def test_a_file_with_mistakes_changes_nothing(site: Site, caplog: pytest.LogCaptureFixture):
    site.start()
    site.job(1, n_nodes=4, waited_h=5)
    site.run_cycle()
    site.write(large=-3)
    assert site.run_cycle(HOUR) == {1: 240}
    assert "large: -3 must be a number from 0" in caplog.text


def test_a_job_that_starts_meanwhile_is_no_error(site: Site, caplog: pytest.LogCaptureFixture):
    site.start()
    site.job(1, n_nodes=4, waited_h=5)
    site.job(2, n_nodes=4, waited_h=5)
    set_site_factor = site.slurm.set_site_factor

    def one_starts(job_ids: list[int], points: int) -> None:
        assert site.slurm.waiting_jobs is not None
        site.slurm.waiting_jobs.pop(1, None)
        set_site_factor(job_ids, points)

    site.slurm.set_site_factor = one_starts  # type: ignore[assignment,method-assign]
    assert site.run_cycle() == {2: 200}
    assert caplog.text == ""


def test_an_outage_is_logged_once_and_so_is_its_end(site: Site, caplog: pytest.LogCaptureFixture):
    site.start()
    site.job(1, n_nodes=4, waited_h=5)

    def refused(job_ids: list[int], points: int) -> None:
        raise SlurmError("Access/permission denied")

    allowed, site.slurm.set_site_factor = site.slurm.set_site_factor, refused  # type: ignore[assignment,method-assign]
    site.run_cycle()
    site.run_cycle()
    assert caplog.text.count("Access/permission denied") == 1
    site.slurm.set_site_factor = allowed  # type: ignore[method-assign]
    caplog.set_level("INFO")
    assert site.run_cycle() == {1: 200}
    assert "updated again" in caplog.text


@pytest.mark.parametrize("which", ["plugin", "type"])
def test_another_plugin_or_priority_type_is_left_alone(
    site: Site, which: str, caplog: pytest.LogCaptureFixture
):
    site.start()
    site.job(1, n_nodes=4, waited_h=5)
    if which == "plugin":
        site.slurm.more_settings = {"PrioritySiteFactorPlugin": "site_factor/example"}
    else:
        site.slurm.waiting_jobs = None
    site.run_cycle()
    assert site.calls == []
    assert ("PrioritySiteFactorPlugin" if which == "plugin" else "PriorityType") in caplog.text


def test_expensive_cycles_run_less_often(site: Site):
    site.start()
    site.job(1, n_nodes=4, waited_h=5)

    waiting = site.slurm.waiting

    def dear() -> object:
        site.cpu_s += 1.0
        return waiting()

    site.slurm.waiting = dear  # type: ignore[assignment,method-assign]
    site.run_cycle()
    assert site.run_cycle(HOUR / 40) == {1: 200}, "a second of processor time each 200 s"
    assert site.run_cycle(HOUR / 2) != {1: 200}
