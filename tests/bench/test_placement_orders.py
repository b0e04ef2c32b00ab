"""The benchmark of orders is reproducible."""

from __future__ import annotations

import json
import sys

import pytest

from bench import placement_orders
from bench.placement_orders import SMALL_LOADS, OrderResult, orders, run

ASKED = SMALL_LOADS["CPUs in proportion"]


@pytest.mark.parametrize("name", orders(ASKED, 4, 2))
def test_with_enough_capacity_no_job_is_rejected(name: str) -> None:
    found = run(orders(ASKED, 4, 12)[name](), ASKED, 4, 12, 0.1, 3, 300)
    assert found.turned_away == 0
    assert 9 < found.whole < 12


def test_results_are_reproducible_and_overload_rejects_some_jobs() -> None:
    def once(seed: int, order: str = "applied") -> OrderResult:
        return run(orders(ASKED, 4, 3)[order](), ASKED, 4, 3, 1.5, seed, 400)

    assert once(1) == once(1) != once(2)
    assert 0.2 < once(1).turned_away < 0.8
    assert once(1, "stock").moves == 0 < once(1).moves


def test_places_that_follow_late_cost_something() -> None:
    """The rule keeps nodes whole only if their positions in the order are updated at once."""

    def whole(every: int) -> float:
        order = orders(ASKED, 4, 6)["latest_fullest"]
        return sum(run(order(), ASKED, 4, 6, 0.6, seed, 400, every).whole for seed in range(6))

    assert whole(1) > whole(8)


def test_results_of_all_orders_have_stable_keys(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["placement_orders", "--seeds", "2", "--events", "30", "--nodes", "2", "--gpus", "4", "--json"]
    monkeypatch.setattr(sys, "argv", argv)
    placement_orders.main()
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert list(answer["orders"]) == list(SMALL_LOADS)
    for figures in answer["orders"].values():
        assert list(figures) == list(orders(ASKED, 4, 2))
        assert set(figures["applied"]) >= {"turned_away", "whole", "whole_more", "whole_error", "moves"}
