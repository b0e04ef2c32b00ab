"""The five findings at the top of a report: used, wasted, waited, who, and what changed.

Changes are per day, because the last period may be incomplete. A change is left out, with the reason, if the
data of either period are incomplete.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from slurm_gpu.reports.totals import PeriodTotals
from slurm_gpu.reports.wording import duration, gpu_hours, listed, money, percent, sentence, several, trimmed

# Waste is compared if at least this share of the GPU-hours of both periods was measured.
_MEASURED_SHARE = 0.8
# The use of an account changed if the difference is at least this share of all GPU-hours.
_LEAST_CHANGE = 0.01
# Larger percentages say little, because the period before was almost empty.
_MOST_PERCENT = 999.0
_NO_VALUE = "–"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A number and its unit, what it means, its change per day, and the figure with the details."""

    name: str
    value: str
    unit: str
    text: str
    change: str
    figure_id: str


def findings(now: PeriodTotals, before: PeriodTotals | None, currency: str) -> list[Finding]:
    """Return the findings; `before` contains the totals of the days before, if they are known."""
    compared = _Comparison(now, before)
    return [
        _used(now, compared),
        _wasted(now, compared, currency),
        _waited(now, compared),
        _who(now, compared),
        _changed(now, before, compared),
    ]


@dataclass(frozen=True, slots=True)
class _Comparison:
    now: PeriodTotals
    before: PeriodTotals | None

    @property
    def days(self) -> str:
        n = self.now.period.days
        return "the day before" if n == 1 else f"the {n} days before"

    def per_day(
        self,
        amount: Callable[[PeriodTotals], float],
        text: Callable[[float], str],
        difference: Callable[[float], str],
        less: str = "fewer",
    ) -> str:
        """Return a text such as "3,600 GPU-hours per day, 145 (4.2 %) more than in the 28 days before"."""
        if not self.now.days:
            return ""
        rate = amount(self.now) / self.now.days
        shown = f"{text(rate)} per day"
        if self.before is None:
            return f"{shown}; there are no complete data of {self.days}"
        earlier = amount(self.before) / self.before.days
        if text(rate) == text(earlier):
            return f"{shown}, as in {self.days}"
        share = 100 * abs(rate - earlier) / earlier if earlier else _MOST_PERCENT + 1
        relative = f" ({percent(share)})" if share <= _MOST_PERCENT else ""
        direction = "more" if rate > earlier else less
        return f"{shown}, {difference(abs(rate - earlier))}{relative} {direction} than in {self.days}"


def _plain(hours: float) -> str:
    """Return a number of GPU-hours without the unit."""
    return gpu_hours(hours).rpartition(" ")[0]


def _used(now: PeriodTotals, compared: _Comparison) -> Finding:
    share = percent(now.allocated_h, now.capacity_h)
    assumed = (
        " Part of the capacity is assumed, because nodes were recorded later."
        if now.capacity_is_assumed
        else ""
    )
    return Finding(
        name="Used",
        value=share,
        unit="of the capacity",
        text=f"{_plain(now.allocated_h)} of {gpu_hours(now.capacity_h)} were allocated.{assumed}",
        change=compared.per_day(lambda totals: totals.allocated_h, gpu_hours, _plain),
        figure_id="usage-by-server-type",
    )


def _wasted(now: PeriodTotals, compared: _Comparison, currency: str) -> Finding:
    cost = f" They cost {money(now.wasted_cost, currency)}." if now.wasted_cost else ""
    text = (
        f"{_plain(now.wasted_h)} of {_plain(now.measured_h)} measured GPU-hours were wasted, "
        f"{_plain(now.no_process_h)} of them without a process.{cost}"
        if now.measured_h
        else "No allocated GPU was measured."
    )
    change = compared.per_day(lambda totals: totals.wasted_h, gpu_hours, _plain)
    for totals, when in ((now, "this period"), (compared.before, compared.days)):
        if totals is not None and totals.measured_h < _MEASURED_SHARE * totals.allocated_h:
            measured = percent(totals.measured_h, totals.allocated_h)
            change = f"Not compared, because only {measured} of the GPU-hours of {when} were measured"
            break
    return Finding(
        name="Wasted",
        value=percent(now.wasted_h, now.measured_h),
        unit="of measured time",
        text=text,
        change=change,
        figure_id="allocated-but-idle",
    )


def _waited(now: PeriodTotals, compared: _Comparison) -> Finding:
    waited = now.median_wait_h == now.median_wait_h
    return Finding(
        name="Waited",
        value=duration(now.median_wait_h),
        unit="median wait",
        text=(
            f"10 % of the jobs with GPUs waited at least {duration(now.p90_wait_h)}, and the longest wait "
            f"was {duration(now.max_wait_h)}."
            if waited
            else "No job with GPUs ended in this period."
        ),
        change=compared.per_day(
            lambda totals: totals.wait_h, lambda hours: f"{duration(hours)} of waiting", duration, "less"
        ),
        figure_id="waiting-by-resource-type",
    )


def _who(now: PeriodTotals, compared: _Comparison) -> Finding:
    largest = [
        f"the largest {kind} was {_largest(by, now)}"
        for kind, by in (("user", now.by_user), ("account", now.by_account))
        if by
    ]
    most = f" {sentence(listed(largest))}." if largest else ""
    return Finding(
        name="Who",
        value=f"{now.users:,}",
        unit="user" if now.users == 1 else "users",
        text=f"{several(now.jobs, 'job', ' with GPUs')} ended.{most}",
        change=compared.per_day(
            lambda totals: float(totals.jobs),
            lambda jobs: _jobs(trimmed(jobs, 1)),
            lambda jobs: trimmed(jobs, 1),
        ),
        figure_id="gpu-hours-by-user",
    )


def _jobs(number: str) -> str:
    return f"{number} job" if number == "1" else f"{number} jobs"


def _largest(by: Mapping[str, float], now: PeriodTotals) -> str:
    name = max(by, key=lambda name: (by[name], name))
    return f"{name} ({percent(by[name], now.allocated_h)})"


def _changed(now: PeriodTotals, before: PeriodTotals | None, compared: _Comparison) -> Finding:
    def finding(value: str, unit: str, text: str, change: str) -> Finding:
        return Finding(
            name="What changed",
            value=value,
            unit=unit,
            text=text,
            change=change,
            figure_id="gpu-hours-by-account",
        )

    if before is None or not now.days:
        return finding(_NO_VALUE, "", f"There are no complete data of {compared.days}.", "")
    changes = {
        name: now.by_account.get(name, 0.0) / now.days - before.by_account.get(name, 0.0) / before.days
        for name in now.by_account.keys() | before.by_account.keys()
    }
    least = _LEAST_CHANGE * max(now.allocated_h / now.days, before.allocated_h / before.days)
    kept = sorted(
        (name for name in changes if abs(changes[name]) >= max(least, 0.01)),
        key=lambda name: (-abs(changes[name]), name),
    )
    nodes = _capacity_change(now, before)
    if not kept:
        text = f"No account's use changed by {percent(_LEAST_CHANGE, 1)} of all GPU-hours or more.{nodes}"
        return finding("0", "accounts", text, "")
    first = kept[0]
    shown = [first, *[name for name in kept if changes[name] * changes[first] < 0][:1]]
    text = listed([f"account {name} {_more(changes[name])}" for name in shown])
    sign = "+" if changes[first] > 0 else "−"
    return finding(
        f"{sign}{_plain(abs(changes[first]))}",
        "GPU-hours per day",
        f"{sentence(text)} GPU-hours per day.{nodes}",
        f"{first}: {compared.per_day(lambda totals: totals.by_account.get(first, 0.0), gpu_hours, _plain)}",
    )


def _more(change: float) -> str:
    return f"used {_plain(abs(change))} {'more' if change > 0 else 'fewer'}"


def _capacity_change(now: PeriodTotals, before: PeriodTotals) -> str:
    """Return a sentence if the mean number of GPUs of the cluster changed."""
    if now.capacity_is_assumed or before.capacity_is_assumed:
        return ""
    gpus, earlier = (trimmed(totals.capacity_h / totals.days / 24, 1) for totals in (now, before))
    return "" if gpus == earlier else f" The cluster had {gpus} GPUs on average, {earlier} before."
