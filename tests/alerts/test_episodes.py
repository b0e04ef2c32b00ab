"""An episode begins with a certain or repeated verdict, and ends once, when a verdict contradicts it."""

from __future__ import annotations

import pytest

from slurm_gpu.alerts.episodes import EpisodeFinding, RunEpisodes

SLOW, UNSURE = EpisodeFinding("slow", 0.9, "slow"), EpisodeFinding("slow", 0.7, "slow, perhaps")
STARVED, WELL = EpisodeFinding("starved", 0.9, "starved"), EpisodeFinding(None, 0.8, "")


@pytest.fixture
def course() -> RunEpisodes[str]:
    return RunEpisodes()


def test_a_sure_verdict_is_reported_at_once(course: RunEpisodes[str]):
    (reported,) = course.add(SLOW, 10.0)
    assert (reported.found, reported.reported_at_s, reported.ended_s) == (SLOW, 10.0, None)


def test_a_less_sure_verdict_is_reported_when_found_again(course: RunEpisodes[str]):
    assert course.add(UNSURE, 10.0) == []
    assert course.unsure
    (reported,) = course.add(UNSURE, 20.0)
    assert reported.reported_at_s == 20.0
    assert not course.unsure


def test_a_second_finding_counts_only_where_nothing_else_came_between(course: RunEpisodes[str]):
    course.add(UNSURE, 10.0)
    course.add(WELL, 20.0)
    assert course.add(UNSURE, 30.0) == []


def test_one_healthy_finding_ends_nothing(course: RunEpisodes[str]):
    course.add(SLOW, 10.0)
    assert course.add(WELL, 20.0) == []
    assert course.add(SLOW, 30.0)[0].reported_at_s == 10.0
    assert course.add(WELL, 40.0) == []
    (over,) = course.add(WELL, 50.0)
    assert (over.reported_at_s, over.last_s, over.ended_s) == (10.0, 30.0, 50.0)
    assert course.reported is None


def test_another_cause_replaces_the_first_when_found_twice(course: RunEpisodes[str]):
    course.add(SLOW, 10.0)
    assert course.add(STARVED, 20.0) == []
    over, reported = course.add(STARVED, 30.0)
    assert (over.found.cause, over.ended_s) == ("slow", 30.0)
    assert (reported.found.cause, reported.ended_s) == ("starved", None)


def test_the_end_of_a_job_ends_its_episode_once(course: RunEpisodes[str]):
    course.add(SLOW, 10.0)
    assert [one.ended_s for one in course.over(60.0)] == [60.0]
    assert course.over(61.0) == []
