"""Build the inputs of the shared scorer: a row of numbers for each group of waiting and running jobs.

All functions handle n GPUs with the same number of running jobs. The planner passes one GPU; training passes
hundreds of simulated GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.colocation.learned.co_runners import ApplicationPlaces, Places
from slurm_gpu.colocation.learned.groups import groups
from slurm_gpu.colocation.learned.net import Floats

# Number of waiting jobs from which groups are formed: those with the best fit by price.
SLOTS = 8
# Names of the inputs in a row; all are ratios, from about -1 to 1.
NAMES = (
    "hold",
    "starts_1",
    "starts_2",
    "starts_3",
    "beside_1",
    "beside_2",
    "rate",
    "rate_gained",
    "priced",
    "priced_gained",
    "priced_below_best",
    "priced_below_own_best",
    "slowest",
    "ends_apart",
    "ends_last_of_rest",
    "ends_first_of_rest",
    "tail_of_rest",
    "longest_of_waiting",
    "shortest_of_waiting",
    "price",
    "rest",
    "jobs_waiting",
    "util",
    "memory",
)
# Scale of log1p of the number of waiting jobs; about fifty jobs give 1.
_MANY = np.float32(4.0)


@dataclass(frozen=True, slots=True)
class Moment:
    """The running jobs (r per GPU) and waiting jobs of n GPUs; places are those of ApplicationPlaces."""

    running: Places
    """(n, r) places of the running jobs."""
    running_left: Floats
    """(n, r) remaining work of the running jobs, in seconds of running alone."""
    waiting: Places
    """(n, w) places of the waiting jobs, padded with the empty place."""
    waiting_left: Floats
    """(n, w) work of the waiting jobs in seconds of running alone, padded with 0."""
    price: Floats
    """(n, places) price of each application; 0 for the empty place."""

    def __len__(self) -> int:
        return len(self.running)


@dataclass(frozen=True, slots=True)
class GroupRows:
    """The S groups that may start on each of n GPUs; the first group is empty."""

    inputs: Floats
    """(n, S, len(NAMES)) one row for each group."""
    allowed: NDArray[np.bool_]
    """(n, S) whether the jobs of the group are waiting and may share a GPU, and whether sharing pays.

    Starting no job is always allowed.
    """
    members: NDArray[np.intp]
    """(n, S, 3) the jobs of each group, as indices of waiting jobs, padded with w."""


def work_of(beliefs: ApplicationPlaces, moment: Moment) -> tuple[Floats, Floats]:
    """Return the work of each application in seconds of running alone, and its number of waiting jobs.

    Both have the shape (n, places).
    """
    n = len(moment)
    each = np.arange(n)[:, None]
    work = np.zeros((n, beliefs.empty + 1), dtype=np.float32)
    counts = np.zeros_like(work)
    np.add.at(work, (each, moment.waiting), moment.waiting_left)
    np.add.at(work, (each, moment.running), moment.running_left)
    np.add.at(counts, (each, moment.waiting), np.float32(1))
    work[:, beliefs.empty] = counts[:, beliefs.empty] = 0
    return work, counts


def square(table: Floats, some: Places) -> Floats:
    """Return the entries of a table for the A places in `some`, (A, A); np.ix_ is slower."""
    out: Floats = table[some[:, None], some]
    return out


def pairs_of(beliefs: ApplicationPlaces, counts: Floats, some: Places) -> Floats:
    """Return (n, A, A): 1 if two places of `some` have waiting jobs and may share; otherwise 0.

    `counts` (n, places) contains the numbers of waiting jobs.
    """
    here = counts[:, some]
    there = (here > 0).astype(np.float32)
    out: Floats = square(beliefs.pair_may, some) * there[:, :, None] * there[:, None, :]
    diagonal = np.arange(len(some))
    out[:, diagonal, diagonal] *= here > 1
    return out


def fitting(beliefs: ApplicationPlaces, moment: Moment, best: Floats) -> Floats:
    """Return the value of each waiting job, (n, w): a sum of speeds, weighted by price.

    If jobs are running, the value is that of the job together with the running jobs. Otherwise, it is the
    value of the job with its best waiting partner, from `best`, the result of best_pair. The value is -inf
    for the empty place, and for a job whose sharing with the running jobs does not pay. The two longest jobs
    of each application rank before all others.
    """
    n, w = moment.waiting.shape
    r = moment.running.shape[1]
    each = np.arange(n)[:, None]
    group = np.full((n, w, 3), beliefs.empty, dtype=np.intp)
    group[..., 0] = moment.waiting
    here = moment.waiting != beliefs.empty
    if r == 0:
        value = best[each, moment.waiting]
    else:
        group[..., 1 : 1 + r] = moment.running[:, None, :]
        here = here & beliefs.pays(group)
        group[~here] = beliefs.empty  # jobs that may not join need no speed
        value = (beliefs.speeds(group) * moment.price[each[..., None], group]).sum(axis=-1)
    longest = np.maximum(moment.waiting_left.max(axis=1, keepdims=True), np.float32(1e-9))
    value = value + np.float32(0.02) * moment.waiting_left / longest
    order = np.arange(w)
    ahead = (moment.waiting[:, :, None] == moment.waiting[:, None, :]) & (
        (moment.waiting_left[:, None, :] > moment.waiting_left[:, :, None])
        | (
            (moment.waiting_left[:, None, :] == moment.waiting_left[:, :, None])
            & (order[None, :] < order[:, None])
        )
    )
    value = value - (ahead.sum(axis=2) > 1)
    return np.where(here, value, -np.inf).astype(np.float32)


def best_pair(beliefs: ApplicationPlaces, moment: Moment, counts: Floats) -> Floats:
    """Return the value of each application with its best waiting partner, (n, places).

    A value is a sum of speeds, weighted by price. `counts` (n, places) contains the numbers of waiting jobs,
    as returned by work_of.
    """
    best = moment.price.copy()
    waits = np.flatnonzero(counts.any(axis=0))
    if len(waits):
        pair_speed = square(beliefs.pair_speed, waits)
        price = moment.price[:, waits]
        value = pair_speed * price[:, :, None] + pair_speed.T * price[:, None, :]
        value *= pairs_of(beliefs, counts, waits)
        best[:, waits] = np.maximum(price, value.max(axis=2))
    return best


def slots_of(fit: Floats) -> NDArray[np.intp]:
    """Return the indices of the best waiting jobs, (n, SLOTS), padded with w."""
    n, w = fit.shape
    best = np.argsort(-fit, axis=1, kind="stable")[:, :SLOTS]
    out = np.full((n, SLOTS), w, dtype=np.intp)
    out[:, : best.shape[1]] = np.where(fit[np.arange(n)[:, None], best] > -np.inf, best, w)
    return out


def rows(
    beliefs: ApplicationPlaces, moment: Moment, slots: NDArray[np.intp], best: Floats, *, as_if_new: bool
) -> GroupRows:
    """Return all groups that can be formed from `slots`, which are (n, M) as returned by `slots_of`.

    With `as_if_new`, a group is allowed if it could share with the running jobs, assuming that all jobs
    started now. Otherwise the caller must query the belief, which considers the progress of each job.
    """
    n, w = moment.waiting.shape
    r = moment.running.shape[1]
    each = np.arange(n)[:, None, None]
    table = groups(slots.shape[1], beliefs.most - r, 3 - r)
    filled = np.concatenate([slots, np.full((n, 1), w)], axis=1)
    new = filled[:, table]  # shape (n, S, 3 - r)
    waiting = np.concatenate([moment.waiting, np.full((n, 1), beliefs.empty)], axis=1)
    waiting_left = np.concatenate([moment.waiting_left, np.zeros((n, 1), np.float32)], axis=1)
    n_groups = len(table)
    group = np.empty((n, n_groups, 3), dtype=np.intp)
    left = np.empty((n, n_groups, 3), dtype=np.float32)
    group[:, :, :r], left[:, :, :r] = moment.running[:, None], moment.running_left[:, None]
    group[:, :, r:], left[:, :, r:] = waiting[each, new], waiting_left[each, new]
    here = group != beliefs.empty
    allowed = (here[:, :, r:] == (table < slots.shape[1])).all(axis=2)
    allowed &= beliefs.may_share(group) if r == 0 or as_if_new else beliefs.pays(group)
    members = np.full((n, n_groups, 3), w, dtype=np.intp)
    members[:, :, : 3 - r] = new
    return GroupRows(_numbers(beliefs, moment, best, group, left, here, allowed), allowed, members)


def _numbers(
    beliefs: ApplicationPlaces,
    moment: Moment,
    best: Floats,
    group: Places,
    left: Floats,
    here: NDArray[np.bool_],
    allowed: NDArray[np.bool_],
) -> Floats:
    # Each decision computes these small arrays, so this code uses operations that are fast in numpy.
    total, most, least = np.add.reduce, np.maximum.reduce, np.minimum.reduce
    tiny = np.float32(1e-6)
    n, n_groups, _ = group.shape
    r = moment.running.shape[1]
    places = group + moment.price.shape[1] * np.arange(n)[:, None, None]
    price_of = moment.price.take(places)
    speed = beliefs.speeds(group)
    is_new = here.astype(np.float32)
    is_new[:, :, :r] = 0
    n_new = total(is_new, axis=2)
    starts = n_new > 0
    rate, priced = total(speed, axis=2), total(speed * price_of, axis=2)
    best_priced = most(np.where(allowed & starts, priced, -np.inf), axis=1, keepdims=True)
    best_priced = np.where(best_priced > -np.inf, best_priced, priced)
    each_s = left / np.where(speed > 0, speed, 1)
    last_s = most(each_s, axis=2)
    first_s = least(np.where(here, each_s, np.inf), axis=2)
    first_s = np.where(first_s < np.inf, first_s, 0)
    apart_s = last_s - first_s
    waiting = moment.waiting + moment.price.shape[1] * np.arange(n)[:, None]
    bound_s = total(moment.price.take(waiting) * moment.waiting_left, axis=1)[:, None]
    new_price, new_left = is_new * price_of, is_new * left
    rest_s = np.maximum(bound_s - total(new_price * left, axis=2), 0)
    n_waiting = total(moment.waiting != beliefs.empty, axis=1, dtype=np.float32)[:, None]
    mean_s = bound_s / np.maximum(n_waiting, 1)
    longest_s = np.maximum(most(moment.waiting_left, axis=1), tiny)[:, None]
    n_or_1 = np.maximum(n_new, 1)
    out = np.empty((n, n_groups, len(NAMES)), dtype=np.float32)
    for number, column in enumerate(
        (
            ~starts,
            n_new == 1,
            n_new == 2,
            n_new == 3,
            r == 1,
            r == 2,
            rate - 1,
            rate - rate[:, :1],
            priced - 1,
            priced - priced[:, :1],
            best_priced - priced,
            total(is_new * best.take(places), axis=2) / n_or_1 - priced,
            least(np.where(here, speed, 1), axis=2),
            apart_s / np.maximum(last_s, tiny),
            last_s / (last_s + rest_s + tiny),
            first_s / (first_s + rest_s + tiny),
            apart_s / (apart_s + rest_s + tiny),
            most(new_left, axis=2) / longest_s,
            np.where(starts, least(np.where(is_new > 0, left, np.inf), axis=2), 0) / longest_s,
            total(new_price, axis=2) / n_or_1,
            rest_s / (rest_s + mean_s + tiny),
            np.log1p(n_waiting) / _MANY,
            total(here * beliefs.util.take(group), axis=2) - 1,
            total(here * beliefs.memory.take(group), axis=2) - 1,
        )
    ):
        out[:, :, number] = column
    return out
