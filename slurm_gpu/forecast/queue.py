"""Looks at a site's queue, now and as it was: made of runs, each with what it asked for and when it began.

At a past moment a run counts as far as it had come: what was submitted later is not there, what ended later
runs. What was ahead of a job is counted by who was eligible first, since priorities are not on record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.forecast.forecaster import KIND, KINDS
from slurm_gpu.forecast.samples import Codes, Floats, QueueSamples, codes_of

# So often the past is looked at.
EVERY_S = 3 * 3600
HISTORY_S = 60 * 86400
# So many jobs, spread over all that wait, are taken of one look; the features count all.
MOST_OF_A_LOOK = 400
TABLE_ORDER = ("all", KIND, "age", "partition", "size", "account and partition")
_UNLIMITED_S = 30 * 86400.0
_AMOUNTS = ("jobs", "cores", "mem", "core_hours", "gpus", "gpu_hours")
# Of the whole cluster, the job's partition, its account, and its account in its partition.
_SCOPES = ("", "p_", "a_", "p_a_")


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """n runs; times are epoch seconds, NaN where it has not happened."""

    eligible_s: Floats
    """When it was submitted, or free to start if that came later."""
    start_s: Floats
    end_s: Floats
    cores: Floats
    memory_mib: Floats
    gpus: Floats
    """Shards as fractions."""
    nodes: Floats
    limit_s: Floats
    """NaN for none."""
    account: NDArray[np.str_]
    partition: NDArray[np.str_]

    def __len__(self) -> int:
        return len(self.eligible_s)

    def __getitem__(self, rows: NDArray[np.bool_] | NDArray[np.intp] | slice) -> Runs:
        """Some of the rows."""
        return Runs(**{field.name: getattr(self, field.name)[rows] for field in fields(Runs)})

    @staticmethod
    def joined(parts: Sequence[Runs]) -> Runs:
        """All rows of `parts`."""
        return Runs(
            **{
                field.name: np.concatenate([getattr(part, field.name) for part in parts])
                for field in fields(Runs)
            }
        )


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The names behind the codes of groupings; a name that is not there has the code -1."""

    account: NDArray[np.str_]
    partition: NDArray[np.str_]

    @classmethod
    def of(cls, runs: Runs) -> Vocabulary:
        """All names of these runs."""
        return cls(np.unique(runs.account), np.unique(runs.partition))


def past_looks(runs: Runs, vocabulary: Vocabulary, now_s: float) -> QueueSamples:
    """Looks at the queue as it was each EVERY_S before `now_s`, the oldest first.

    Who came between two looks is looked at on arrival, beside what the queue was at the earlier one: most
    jobs wait so shortly that no look would find them.
    """
    scopes = _scopes(runs)
    n_looks = int(HISTORY_S // EVERY_S)
    moments = now_s - EVERY_S * np.arange(n_looks, 0, -1)
    first_s = np.nanmin(runs.eligible_s, initial=now_s)
    parts = [
        _look_at(runs, vocabulary, scopes, moment, moment + EVERY_S)
        for moment in moments[moments >= first_s - EVERY_S]
    ]
    if not parts:
        return _look_at(runs[:0], vocabulary, _scopes(runs[:0]), now_s, now_s)
    return QueueSamples.joined(parts)


def feature_names() -> Sequence[str]:
    """The columns of the features of any look."""
    nothing: dict[str, Any] = {name: np.zeros(0) for name in Runs.__slots__}
    names: dict[str, Any] = {name: np.zeros(0, dtype=np.str_) for name in ("account", "partition")}
    nobody = Runs(**nothing | names)
    return past_looks(nobody, Vocabulary.of(nobody), 0.0).names


def _look_at(
    runs: Runs, vocabulary: Vocabulary, scopes: Mapping[str, Codes], moment_s: float, until_s: float
) -> QueueSamples:
    """Who waited at a moment, and who came from then until before `until_s`.

    At most MOST_OF_A_LOOK of those who waited and of those who came.
    """
    here = runs.eligible_s <= moment_s
    begun = runs.start_s <= moment_s
    over = runs.end_s <= moment_s
    waits = np.flatnonzero(here & ~begun & ~over)
    runs_now = np.flatnonzero(begun & ~over)
    came = np.flatnonzero((runs.eligible_s > moment_s) & (runs.eligible_s < until_s))
    taken = np.concatenate([_spread(waits), _spread(came)])
    return _looks(runs, taken, waits, runs_now, vocabulary, scopes, moment_s)


def look_for(runs: Runs, wanted: Runs, vocabulary: Vocabulary, now_s: float) -> QueueSamples:
    """A look now at jobs `wanted`, of which none needs to be among `runs`; these alone are the queue."""
    both = Runs.joined([runs, wanted])
    is_run = np.arange(len(both)) < len(runs)
    here = is_run & (both.eligible_s <= now_s)
    begun, over = both.start_s <= now_s, both.end_s <= now_s
    waits, runs_now = np.flatnonzero(here & ~begun & ~over), np.flatnonzero(is_run & begun & ~over)
    return _looks(both, np.flatnonzero(~is_run), waits, runs_now, vocabulary, _scopes(both), now_s)


def _spread(rows: NDArray[np.intp]) -> NDArray[np.intp]:
    if len(rows) <= MOST_OF_A_LOOK:
        return rows
    return rows[np.linspace(0, len(rows) - 1, MOST_OF_A_LOOK).astype(np.intp)]


def _looks(
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
        held = _held(runs, taken, runs_now, scopes[scope])
        feature |= {f"q_{scope}{amount}": _log(ahead[:, i]) for i, amount in enumerate(_AMOUNTS)}
        if scope:  # of the whole cluster it is one value for all jobs of a look
            feature |= {f"r_{scope}{amount}": _log(held[:, i]) for i, amount in enumerate(_AMOUNTS)}
        for i, amount in ((1, "cores"), (4, "gpus")):
            feature[f"q_{scope}{amount}/r"] = _log(ahead[:, i]) - _log(held[:, i])
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
    # Waited for nothing, less than an hour, less than a day, longer.
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
    """(len(taken), amounts): what of the same scope was eligible before each."""
    order = waits[np.lexsort((waits, runs.eligible_s[waits], scope[waits]))]
    totals = np.concatenate([np.zeros((1, len(_AMOUNTS))), np.cumsum(_amounts(runs[order]), axis=0)])
    # Both sides as one number that grows by scope, then by time.
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


def _held(runs: Runs, taken: NDArray[np.intp], runs_now: NDArray[np.intp], scope: Codes) -> Floats:
    """(len(taken), amounts): what runs of the same scope."""
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
