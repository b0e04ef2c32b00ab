"""Define the project's own learned planner, which starts the permitted group that a small net scores highest.

Each application has a price (`prices`). Up to eight of the first 32 waiting jobs become slots: those that fit
best at these prices. The net scores each group of slots together with the running jobs (`rows`). A group is
excluded if sharing cannot pay at the assumed speeds, or if the belief does not permit its members to share in
their current phases. If the assumed speeds are true, one GPU therefore never takes longer than if it ran the
jobs one after the other. With predicted speeds, this guarantee requires that no job is slower than its lowest
likely speed (`planners.account`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.colocation.learned.co_runners import ROOM, ApplicationPlaces
from slurm_gpu.colocation.learned.episodes import NO_JOB, Episodes
from slurm_gpu.colocation.learned.net import Floats, Net, new_net
from slurm_gpu.colocation.learned.play import (
    Choose,
    DecisionBatch,
    EpisodeOptions,
    Indices,
    Inputs,
    likeliest,
)
from slurm_gpu.colocation.learned.prices import FIRST_PRICE, FIRST_STEPS, NEXT_STEPS, refine
from slurm_gpu.colocation.learned.rows import (
    NAMES,
    SLOTS,
    Moment,
    best_pair,
    fitting,
    pairs_of,
    rows,
    slots_of,
    square,
    work_of,
)
from slurm_gpu.colocation.planner import Belief, Member, PlannerView, Start
from slurm_gpu.colocation.planners.account import Account
from slurm_gpu.colocation.planners.sparing import SlowedJobs
from slurm_gpu.colocation.profiles.profile import ApplicationProfile

# Number of waiting jobs that are considered, in the order of submission.
WINDOW = 32
HIDDEN = (32, 16)
# Maximum number of waiting jobs per decision for which the belief is queried; the best by price come first.
_ASKED = 24

_BY_PRICE = np.zeros(len(NAMES), dtype=np.float32)
_BY_PRICE[[NAMES.index("priced"), NAMES.index("longest_of_waiting")]] = 1.0, 0.02


def scores(net: Net, inputs: Floats) -> Floats:
    """Return the scores (n, S) of the rows (n, S, F)."""
    return net(inputs)[..., 0]


class GroupPlayer:
    """Encodes options for the scorer in training; see play.Player."""

    def __init__(self, n_episodes: int, beliefs: ApplicationPlaces) -> None:
        self._price = np.tile(usual_prices(beliefs), (n_episodes, 1))

    def options(self, episodes: Episodes, at: Indices, r: int) -> EpisodeOptions:
        """See play.Player."""
        beliefs, queues = episodes.beliefs, episodes.queues
        jobs = episodes.running[at, :r]
        waits = episodes.waiting[at]
        moment = Moment(
            running=queues.place[at[:, None], jobs],
            running_left=episodes.left_s[at[:, None], jobs],
            waiting=np.where(waits, queues.place[at], beliefs.empty),
            waiting_left=np.where(waits, episodes.left_s[at], np.float32(0)),
            price=self._price[at],
        )
        work, counts = work_of(beliefs, moment)
        moment.price[:] = self._price[at] = _repriced(beliefs, moment, work, counts)
        best = best_pair(beliefs, moment, counts)
        seen = rows(beliefs, moment, slots_of(fitting(beliefs, moment, best)), best, as_if_new=True)
        n_jobs = waits.shape[1]
        jobs_of = np.where(seen.members == n_jobs, NO_JOB, seen.members)[:, :, : 3 - r]
        allowed = seen.allowed
        if r == 0:
            allowed[:, 0] = False  # an idle GPU must start a job if any is waiting
        return EpisodeOptions(seen.inputs, allowed, jobs_of, (work * moment.price).sum(axis=1))


def usual_prices(beliefs: ApplicationPlaces) -> Floats:
    """Return the initial prices (places), which assume the same amount of work for every application."""
    price = np.full((1, beliefs.empty + 1), FIRST_PRICE, dtype=np.float32)
    price[0, beliefs.empty] = 0
    some = np.arange(len(beliefs.applications))
    if len(some):
        pairs = pairs_of(beliefs, np.full_like(price, 2), some)
        speed, work = square(beliefs.pair_speed, some), np.ones((1, len(some)), dtype=np.float32)
        price[:, some] = refine(speed, pairs, work, price[:, some], FIRST_STEPS)
    out: Floats = price[0]
    return out


def _repriced(beliefs: ApplicationPlaces, moment: Moment, work: Floats, waiting: Floats) -> Floats:
    """Return prices (n, places) for the current waiting and running jobs, given the results of `work_of`."""
    counts = waiting.copy()
    np.add.at(counts, (np.arange(len(moment))[:, None], moment.running), np.float32(1))
    counts[:, beliefs.empty] = 0
    price = moment.price.copy()
    some = np.flatnonzero(work.any(axis=0))
    if len(some):
        speed, pairs = square(beliefs.pair_speed, some), pairs_of(beliefs, counts, some)
        price[:, some] = refine(speed, pairs, work[:, some], price[:, some], NEXT_STEPS)
    return price


class GroupMethod:
    """Minimise the makespan; a state's value is the bound computed from prices. See training.Method."""

    name = "dqngpu"

    def new_net(self, beliefs: ApplicationPlaces, rng: np.random.Generator) -> Net:
        """See training.Method."""
        return new_net((len(NAMES), *HIDDEN, 1), rng)

    def player(self, episodes: Episodes) -> GroupPlayer:
        """See training.Method."""
        return GroupPlayer(len(episodes), episodes.beliefs)

    def scores(self, net: Net, inputs: Inputs) -> Floats:
        """See training.Method."""
        return scores(net, inputs.astype(np.float32, copy=False))

    def teacher(self) -> Choose:
        """Choose the best group by price, and the longest job if prices are equal; see training.Method."""
        return likeliest(lambda inputs: inputs @ _BY_PRICE)

    def to_go(self, episodes: Episodes, kept: DecisionBatch) -> NDArray[np.float64]:
        """Return (remaining time - its lower bound) ÷ all work for each decision; see training.Method."""
        total_s = _work_s(episodes)[kept.episode]
        return (episodes.now_s[kept.episode] - kept.now_s - kept.options.bound_s) / total_s

    def judged(self, episodes: Episodes) -> float:
        """Return the mean makespan, relative to running all jobs one after the other; see training.Method."""
        return float((episodes.now_s / _work_s(episodes)).mean())


def _work_s(episodes: Episodes) -> NDArray[np.float64]:
    there = episodes.queues.place != episodes.beliefs.empty
    work_s: NDArray[np.float64] = (there * episodes.queues.work_s).sum(axis=1, dtype=np.float64)
    return work_s


class DqnGpu:
    """See planner.Planner.

    The speeds of applications are queried only once, so a changed belief requires a new planner.
    """

    name = "dqngpu"

    def __init__(
        self,
        net: Net,
        belief: Belief,
        profiles: Sequence[ApplicationProfile],
        capacity_mib: float,
        *,
        slowed: float = 1 / 6,
    ) -> None:
        """Create a planner; under a cap, the fraction `slowed` of the jobs may be slowed noticeably."""
        self._net, self._belief = net, belief
        room = min(len(profiles), ROOM)
        self._beliefs = ApplicationPlaces(belief, profiles, capacity_mib, room=room)
        if len(profiles) <= self._beliefs.empty:
            self._beliefs.place(range(len(profiles)))  # query the belief now, not in the first decisions
            self._beliefs.ask_threes()
        usual = usual_prices(self._beliefs)
        self._price: dict[int, float] = dict(zip(self._beliefs.applications, usual.tolist(), strict=False))
        """The price of each application."""
        self._account, self._slowed = Account(belief), SlowedJobs(belief, slowed)

    def choose(self, view: PlannerView) -> list[Start]:
        """Start the group with the highest score on an idle GPU or with running jobs, or start nothing."""
        self._account.update(view)
        self._slowed.update(view)
        if not view.waiting:
            return []
        window = view.waiting[:WINDOW]
        idle = [index for index, gpu in enumerate(view.gpus) if not gpu.running]
        if idle:
            # The maximum number of jobs for this GPU that leaves one job for each other idle GPU.
            most = max(1, len(view.waiting) - len(idle) + 1)
            _, members = self._best((), window, min(most, self._beliefs.most))
            return [Start(idle[0], tuple(one.job for one in members))]
        best: tuple[float, int, tuple[Member, ...]] = (0.0, -1, ())
        for index, gpu in enumerate(view.gpus):
            if len(gpu.running) < self._beliefs.most and not any(one.killed for one in gpu.running):
                surer, members = self._best(gpu.running, window, self._beliefs.most - len(gpu.running))
                if members and (best[1] < 0 or surer > best[0]):
                    best = (surer, index, members)
        _, index, members = best
        return [Start(index, tuple(one.job for one in members))] if members else []

    def _best(
        self, running: tuple[Member, ...], window: Sequence[Member], most: int
    ) -> tuple[float, tuple[Member, ...]]:
        """Return the jobs of the best group for one GPU, and its score relative to waiting.

        If waiting is best, there are no jobs.
        """
        moment, counts = self._moment(running, window)
        best = best_pair(self._beliefs, moment, counts)
        fit = fitting(self._beliefs, moment, best)
        slots = slots_of(fit) if not running else self._joining(running, window, fit)
        seen = rows(self._beliefs, moment, slots, best, as_if_new=False)
        score = scores(self._net, seen.inputs)[0]
        n_new = (seen.members[0] < len(window)).sum(axis=1)
        allowed = seen.allowed[0] & (n_new <= most)
        if not running:
            allowed[0] = False
        score = np.where(allowed, score, -np.inf)
        for option in np.argsort(-score, kind="stable"):
            if option == 0 or not allowed[option]:
                break
            members = tuple(window[i] for i in seen.members[0, option] if i < len(window))
            together = (*running, *members)
            if len(together) == 1 or (
                not any(one.killed for one in members)
                and self._belief.may_share(together)
                and self._slowed.may(together)
                and self._account.may(together)
            ):
                return float(score[option] - score[0]), members
        return 0.0, ()

    def _joining(self, running: tuple[Member, ...], window: Sequence[Member], fit: Floats) -> Indices:
        """Return the waiting jobs that may join the running ones and fit best by price, (1, SLOTS)."""
        found: list[int] = []
        for i in np.argsort(-fit[0], kind="stable")[:_ASKED]:
            if len(found) == SLOTS or not fit[0, i] > -np.inf:
                break
            together = (*running, window[i])
            if not window[i].killed and self._belief.may_share(together) and self._slowed.may(together):
                found.append(int(i))
        return np.array([[*found, *[len(window)] * (SLOTS - len(found))]])

    def _moment(self, running: tuple[Member, ...], window: Sequence[Member]) -> tuple[Moment, Floats]:
        """Return the moment with current prices, and counts of waiting jobs by application, (1, places)."""
        members = (*running, *window)
        applications = [one.application for one in members]
        place = self._beliefs.place(applications)
        left = np.array([one.left_s for one in members], dtype=np.float32)
        price = np.full((1, self._beliefs.empty + 1), FIRST_PRICE, dtype=np.float32)
        price[0, self._beliefs.empty] = 0
        price[0, place] = [self._price.get(one, FIRST_PRICE) for one in applications]
        r = len(running)
        moment = Moment(place[None, :r], left[None, :r], place[None, r:], left[None, r:], price)
        work, counts = work_of(self._beliefs, moment)
        price[:] = _repriced(self._beliefs, moment, work, counts)
        self._price.update(zip(applications, price[0, place].tolist(), strict=True))
        return moment, counts
