"""Sample a site's queue, now and in the past, from runs with their requests and times.

A sample of a past moment does not contain any later submission, start or end. The jobs ahead of a job are
those that were eligible before it, because priorities are not recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.forecast.samples import KIND, KINDS, Codes, Floats, QueueSamples, codes_of

# Time between two past moments that are sampled.
EVERY_S = 3 * 3600
HISTORY_S = 60 * 86400
# Number of jobs that are sampled at one moment, evenly chosen; the features count all jobs.
MAX_PER_MOMENT = 400
TABLE_ORDER = ("all", KIND, "age", "partition", "size", "account and partition")
_UNLIMITED_S = 30 * 86400.0
_AMOUNTS = ("jobs", "cores", "mem", "core_hours", "gpus", "gpu_hours")
# Scopes of features: the whole cluster, the job's partition, its account, and its account in its partition.
_SCOPES = ("", "p_", "a_", "p_a_")


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """Columns of n runs. Times are epoch seconds; NaN means that the event has not happened."""

    eligible_s: Floats
    """The earliest possible start: the submit time, or later if the job has a dependency or begin time."""
    start_s: Floats
    end_s: Floats
    cores: Floats
    memory_mib: Floats
    gpus: Floats
    """GPUs of each run; shards count as fractions of a GPU."""
    nodes: Floats
    limit_s: Floats
    """NaN if there is no limit."""
    account: NDArray[np.str_]
    partition: NDArray[np.str_]

    def __len__(self) -> int:
        return len(self.eligible_s)

    def __getitem__(self, rows: NDArray[np.bool_] | NDArray[np.intp] | slice) -> Runs:
        """Return the given rows."""
        return Runs(**{field.name: getattr(self, field.name)[rows] for field in fields(Runs)})

    @staticmethod
    def joined(parts: Sequence[Runs]) -> Runs:
        """Return the rows of all `parts`."""
        return Runs(
            **{
                field.name: np.concatenate([getattr(part, field.name) for part in parts])
                for field in fields(Runs)
            }
        )


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The names of accounts and partitions, by their codes in groupings.

    Any other name has the code -1.
    """

    account: NDArray[np.str_]
    partition: NDArray[np.str_]

    @classmethod
    def of(cls, runs: Runs) -> Vocabulary:
        """Return the names of all accounts and partitions of these runs."""
        return cls(np.unique(runs.account), np.unique(runs.partition))


def past_samples(runs: Runs, vocabulary: Vocabulary, now_s: float) -> QueueSamples:
    """Return samples of the queue every EVERY_S before `now_s`, oldest first.

    Jobs that arrive between two moments are sampled on arrival, with the queue of the earlier moment, since
    most waits are shorter than EVERY_S.
    """
    scopes = _scopes(runs)
    n_samples = int(HISTORY_S // EVERY_S)
    moments = now_s - EVERY_S * np.arange(n_samples, 0, -1)
    first_s = np.nanmin(runs.eligible_s, initial=now_s)
    parts = [
        _samples_at(runs, vocabulary, scopes, moment, moment + EVERY_S)
        for moment in moments[moments >= first_s - EVERY_S]
    ]
    if not parts:
        return _samples_at(runs[:0], vocabulary, _scopes(runs[:0]), now_s, now_s)
    return QueueSamples.joined(parts)


def feature_names() -> Sequence[str]:
    """Return the names of the feature columns."""
    nothing: dict[str, Any] = {name: np.zeros(0) for name in Runs.__slots__}
    names: dict[str, Any] = {name: np.zeros(0, dtype=np.str_) for name in ("account", "partition")}
    empty = Runs(**nothing | names)
    return past_samples(empty, Vocabulary.of(empty), 0.0).names


def _samples_at(
    runs: Runs, vocabulary: Vocabulary, scopes: Mapping[str, Codes], moment_s: float, until_s: float
) -> QueueSamples:
    """Return samples of the jobs that wait at `moment_s`, and of those that arrive later, before `until_s`.

    At most MAX_PER_MOMENT jobs of each of the two groups are sampled.
    """
    here = runs.eligible_s <= moment_s
    begun = runs.start_s <= moment_s
    over = runs.end_s <= moment_s
    waits = np.flatnonzero(here & ~begun & ~over)
    runs_now = np.flatnonzero(begun & ~over)
    came = np.flatnonzero((runs.eligible_s > moment_s) & (runs.eligible_s < until_s))
    taken = np.concatenate([_evenly_chosen(waits), _evenly_chosen(came)])
    return _queue_samples(runs, taken, waits, runs_now, vocabulary, scopes, moment_s)


def samples_for(runs: Runs, wanted: Runs, vocabulary: Vocabulary, now_s: float) -> QueueSamples:
    """Return samples of the `wanted` jobs at `now_s`; they need not be in the queue, `runs`."""
    both = Runs.joined([runs, wanted])
    is_run = np.arange(len(both)) < len(runs)
    here = is_run & (both.eligible_s <= now_s)
    begun, over = both.start_s <= now_s, both.end_s <= now_s
    waits, runs_now = np.flatnonzero(here & ~begun & ~over), np.flatnonzero(is_run & begun & ~over)
    return _queue_samples(both, np.flatnonzero(~is_run), waits, runs_now, vocabulary, _scopes(both), now_s)


def _evenly_chosen(rows: NDArray[np.intp]) -> NDArray[np.intp]:
    if len(rows) <= MAX_PER_MOMENT:
        return rows
    return rows[np.linspace(0, len(rows) - 1, MAX_PER_MOMENT).astype(np.intp)]


def _queue_samples(
    runs: Runs,
    taken: NDArray[np.intp],
    waits: NDArray[np.intp],
    runs_now: NDArray[np.intp],
    vocabulary: Vocabulary,
    scopes: Mapping[str, Codes],
    moment_s: float,
) -> QueueSamples:
    jobs = runs[taken]
    at_s = np.maximum(jobs.eligible_s, moment_s)
    hours = _limit_s(jobs) / 3600
    feature = {
        "gpus": _log(jobs.gpus),
        "nodes": _log(jobs.nodes),
        "cores": _log(jobs.cores),
        "mem": _log(jobs.memory_mib),
        "limit": _log(_limit_s(jobs)),
        "core_hours": _log(jobs.cores * hours),
        "gpu_hours": _log(jobs.gpus * hours),
        "waited": _log(at_s - jobs.eligible_s),
        "hour": at_s % 86400.0 / 3600,
    }
    for scope in _SCOPES:
        ahead = _ahead(runs, taken, waits, scopes[scope])
        running = _running(runs, taken, runs_now, scopes[scope])
        feature |= {f"q_{scope}{amount}": _log(ahead[:, i]) for i, amount in enumerate(_AMOUNTS)}
        if scope:  # for the whole cluster, all jobs of a moment have the same value
            feature |= {f"r_{scope}{amount}": _log(running[:, i]) for i, amount in enumerate(_AMOUNTS)}
        for i, amount in ((1, "cores"), (4, "gpus")):
            feature[f"q_{scope}{amount}/r"] = _log(ahead[:, i]) - _log(running[:, i])
    names = list(feature)
    return QueueSamples(
        at_s=at_s,
        start_s=jobs.start_s,
        gone_s=np.where(np.isnan(jobs.start_s), jobs.end_s, np.nan),
        features=np.stack([feature[name] for name in names], axis=1).astype(np.float32),
        names=names,
        groups=_groups(jobs, vocabulary, feature["waited"]),
        alike=codes_of(
            jobs.account,
            jobs.partition,
            jobs.cores,
            jobs.memory_mib,
            jobs.gpus,
            _limit_s(jobs),
            at_s > moment_s,
        ),
    )


def _groups(jobs: Runs, vocabulary: Vocabulary, waited: Floats) -> dict[str, Codes]:
    partition = _code(jobs.partition, vocabulary.partition)
    account = _code(jobs.account, vocabulary.account)
    gpu = np.where(jobs.gpus > 0, KINDS["gpu"], KINDS["cpu"]).astype(np.int64)
    # The groups are waits of less than a minute, an hour or a day, and longer waits.
    age = gpu * 4 + np.searchsorted([5.9, 11.8, 16.4], waited)
    gpus = np.searchsorted([0, 1, 2, 4, 8], jobs.gpus)
    hours = np.searchsorted([1, 6, 24, 72], _limit_s(jobs) / 3600)
    n_accounts = len(vocabulary.account)
    of_both = np.where((partition >= 0) & (account >= 0), partition * n_accounts + account, -1)
    return {
        "all": np.zeros(len(jobs), dtype=np.int64),
        KIND: gpu,
        "age": age.astype(np.int64),
        "partition": np.where(partition >= 0, partition * 8 + age, -1),
        "size": np.where(partition >= 0, (partition * 6 + gpus) * 5 + hours, -1),
        "account and partition": of_both,
    }


def _scopes(runs: Runs) -> dict[str, Codes]:
    nothing = np.zeros(len(runs), dtype=np.int64)
    return {
        "": nothing,
        "p_": codes_of(runs.partition),
        "a_": codes_of(runs.account),
        "p_a_": codes_of(runs.partition, runs.account),
    }


def _ahead(runs: Runs, taken: NDArray[np.intp], waits: NDArray[np.intp], scope: Codes) -> Floats:
    """Return, for each job in `taken`, the amounts of the jobs in its scope that were eligible before it.

    The result has one row per job in `taken` and one column per amount.
    """
    order = waits[np.lexsort((waits, runs.eligible_s[waits], scope[waits]))]
    totals = np.concatenate([np.zeros((1, len(_AMOUNTS))), np.cumsum(_amounts(runs[order]), axis=0)])
    # One number combines scope and time, so that a single sort orders by scope, then by time.
    first_s = min(
        np.min(runs.eligible_s[order], initial=np.inf), np.min(runs.eligible_s[taken], initial=np.inf)
    )
    width = 1e10

    def place(rows: NDArray[np.intp]) -> Floats:
        return scope[rows] * width + (runs.eligible_s[rows] - first_s)

    keys = place(order)
    before = np.searchsorted(keys, place(taken), side="left")
    begin = np.searchsorted(keys, scope[taken] * width, side="left")
    return np.asarray(totals[before] - totals[begin])


def _running(runs: Runs, taken: NDArray[np.intp], runs_now: NDArray[np.intp], scope: Codes) -> Floats:
    """Return, for each job in `taken`, the amounts of the running jobs in its scope.

    The result has one row per job in `taken` and one column per amount.
    """
    amounts, n_scopes = _amounts(runs[runs_now]), int(scope.max(initial=-1)) + 1
    totals = np.stack(
        [np.bincount(scope[runs_now], amounts[:, i], n_scopes) for i in range(len(_AMOUNTS))], axis=1
    )
    return np.asarray(totals[scope[taken]])


def _amounts(runs: Runs) -> Floats:
    hours = _limit_s(runs) / 3600
    columns = (
        np.ones(len(runs)),
        runs.cores,
        runs.memory_mib,
        runs.cores * hours,
        runs.gpus,
        runs.gpus * hours,
    )
    return np.stack(columns, axis=1)


def _limit_s(runs: Runs) -> Floats:
    return np.where(np.isnan(runs.limit_s), _UNLIMITED_S, runs.limit_s)


def _code(names: NDArray[np.str_], known: NDArray[np.str_]) -> Codes:
    if not len(known):
        return np.full(len(names), -1, dtype=np.int64)
    place = np.minimum(np.searchsorted(known, names), len(known) - 1)
    return np.where(known[place] == names, place, -1).astype(np.int64)


def _log(amount: Floats) -> Floats:
    return np.log2(np.maximum(amount, 0.0) + 1.0)
