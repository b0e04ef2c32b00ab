"""A verdict is told when it is sure or found twice, stays while nothing contradicts it, and ends once."""

from __future__ import annotations

import pytest

from slurm_gpu.alerts.episodes import EpisodeFinding, RunEpisodes

SLOW, UNSURE = EpisodeFinding("slow", 0.9, "slow"), EpisodeFinding("slow", 0.7, "slow, perhaps")
SUSPECTED, STARVED, WELL = (
    EpisodeFinding("slow", 0.5, "?"),
    EpisodeFinding("starved", 0.9, "starved"),
    EpisodeFinding(None, 0.8, ""),
)


@pytest.fixture
def course() -> RunEpisodes[str]:
    return RunEpisodes()


def test_what_is_sure_is_told_at_once(course: RunEpisodes[str]):
    (told,) = course.hear(SLOW, 10.0)
    assert (told.found, told.reported_at_s, told.ended_s) == (SLOW, 10.0, None)


def test_what_is_not_so_sure_is_told_when_it_is_found_again(course: RunEpisodes[str]):
    assert course.hear(UNSURE, 10.0) == []
    assert course.unsure
    (told,) = course.hear(UNSURE, 20.0)
    assert told.reported_at_s == 20.0
    assert not course.unsure


def test_a_second_finding_counts_only_where_nothing_else_came_between(course: RunEpisodes[str]):
    course.hear(UNSURE, 10.0)
    course.hear(WELL, 20.0)
    assert course.hear(UNSURE, 30.0) == []


def test_a_suspicion_accuses_nobody(course: RunEpisodes[str]):
    assert [course.hear(SUSPECTED, float(second)) for second in range(5)] == [[]] * 5


def test_one_look_that_finds_nothing_ends_nothing(course: RunEpisodes[str]):
    course.hear(SLOW, 10.0)
    assert course.hear(WELL, 20.0) == []
    assert course.hear(SLOW, 30.0)[0].reported_at_s == 10.0
    assert course.hear(WELL, 40.0) == []
    (over,) = course.hear(WELL, 50.0)
    assert (over.reported_at_s, over.last_s, over.ended_s) == (10.0, 30.0, 50.0)
    assert course.told is None


def test_another_cause_takes_the_place_of_the_first_when_it_is_found_twice(course: RunEpisodes[str]):
    course.hear(SLOW, 10.0)
    assert course.hear(STARVED, 20.0) == []
    over, told = course.hear(STARVED, 30.0)
    assert (over.found.cause, over.ended_s) == ("slow", 30.0)
    assert (told.found.cause, told.ended_s) == ("starved", None)


def test_a_job_that_ends_ends_what_is_told_of_it_once(course: RunEpisodes[str]):
    course.hear(SLOW, 10.0)
    assert [one.ended_s for one in course.over(60.0)] == [60.0]
    assert course.over(61.0) == []
