"""Incomplete tables are completed without changing measured speeds."""

from __future__ import annotations

from slurm_gpu.colocation.speeds.gaps import completed
from slurm_gpu.colocation.tables.measured import Measured

PAIRS = {(0, (0,)): 0.9, (0, (1,)): 0.8, (1, (0,)): 0.7, (2, (2,)): 0.0}
TRIPLE = {(0, (0, 0)): 0.5}
TABLE = Measured("card", ("A", "B", "C"), (1.0, None, 2.0), PAIRS | TRIPLE)


def test_measured_speeds_remain_and_every_pair_has_a_speed() -> None:
    whole = completed(TABLE)
    assert (len(TABLE.lacking), whole.lacking) == (5, [])
    assert {group: whole.speeds[group] for group in TABLE.speeds} == TABLE.speeds
    assert all(0 < whole.speeds[one, (other,)] <= 1 for one, other in TABLE.lacking)
    assert completed(whole) is whole


def test_a_pair_of_which_one_speed_is_there_gets_the_other() -> None:
    half = Measured("card", ("A", "B"), (None, None), {(0, (1,)): 0.8})
    assert half.lacking == [(0, 0), (1, 0), (1, 1)]
    assert completed(half).speeds[0, (1,)] == 0.8


def test_an_empty_table_is_completed_with_guesses() -> None:
    assert set(completed(Measured("card", ("A",), (None,), {})).speeds) == {(0, (0,))}
