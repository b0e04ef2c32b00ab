"""Cluster names ignore case; a name that Slurm does not have is logged once, with the right name."""

from __future__ import annotations

import logging
from collections.abc import Collection

import pytest

from slurm_gpu.config.site import check_config
from slurm_gpu.config.yaml_source import parse_yaml
from slurm_gpu.database.accounting.cluster_check import ASK_EVERY_S, ClusterCheck
from slurm_gpu.database.accounting.slurm_view import SlurmView
from slurm_gpu.errors import SlurmError
from tests.database.samples import CLUSTER, FakeClock, MemorySlurm


class Site:
    def __init__(self, cluster: str) -> None:
        self.clock, self.slurm = FakeClock(), MemorySlurm()
        self.n_asked, self.clusters = 0, {CLUSTER}
        self.is_away = False
        self.check = ClusterCheck(cluster, SlurmView(self.slurm, self.clock), self.clock, self.known)

    def known(self) -> Collection[str]:
        self.n_asked += 1
        if self.is_away:
            raise SlurmError("slurmdbd does not answer")
        return self.clusters

    def passes(self, n: int, *, has_runs: bool) -> None:
        for _ in range(n):
            self.check.check(has_runs=has_runs)
            self.clock.now += 60


@pytest.fixture(autouse=True)
def every_level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


@pytest.mark.parametrize("written", ["lab", "Lab", "LAB"])
def test_a_cluster_in_capitals_is_the_one_of_slurm(written: str) -> None:
    assert check_config(parse_yaml(f"cluster: {written}", "f.yaml")).cluster == "lab"


def test_a_name_that_is_not_slurmctlds_is_logged_once_with_the_right_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    site = Site("other")
    site.passes(100, has_runs=True)
    assert caplog.messages == [
        f"import: slurm-gpu.yaml has cluster: other, but slurmctld's ClusterName is {CLUSTER}, so no run "
        f"has records: write cluster: {CLUSTER} into slurm-gpu.yaml here and on the nodes"
    ]


def test_a_cluster_that_slurmdbd_lacks_is_logged_until_it_is_there(caplog: pytest.LogCaptureFixture) -> None:
    site = Site(CLUSTER)
    site.clusters = {"b", "a"}
    site.passes(60, has_runs=False)
    assert site.n_asked == 1
    site.clusters.add(CLUSTER)
    site.clock.now += ASK_EVERY_S
    site.passes(2, has_runs=False)
    assert caplog.messages == [
        f"import: slurmdbd has no cluster {CLUSTER} (sacctmgr show cluster: a, b), so there are no runs: "
        "check AccountingStorageHost and ClusterName in slurm.conf",
        f"import: slurmctld and slurmdbd now have the cluster {CLUSTER}",
    ]


def test_with_runs_or_without_an_answer_nothing_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    site = Site(CLUSTER)
    site.clusters = set()
    site.passes(3, has_runs=True)
    site.is_away = True
    site.passes(3, has_runs=False)
    assert caplog.messages == []
