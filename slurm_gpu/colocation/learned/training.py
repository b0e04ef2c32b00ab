"""Train a net on an unlimited number of queues by imitation, then by REINFORCE with a baseline for each step.

In each epoch the current net plays every queue of a new set many times with randomly drawn choices. The
advantage of a choice is the mean cost at the same step over all plays of that queue, minus the cost after the
choice. All random numbers depend only on the seed and the epoch's number. Training that is killed and resumed
from its checkpoint therefore gives the same result.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.colocation.learned.co_runners import ApplicationPlaces
from slurm_gpu.colocation.learned.episodes import Episodes
from slurm_gpu.colocation.learned.gradients import Learner, Lesson, learner_on
from slurm_gpu.colocation.learned.model_file import net_arrays, net_of, read_arrays, write_arrays
from slurm_gpu.colocation.learned.net import Floats, Net
from slurm_gpu.colocation.learned.play import Choose, DecisionBatch, Inputs, Player, drawn, likeliest, play
from slurm_gpu.colocation.learned.queues import draw_queues
from slurm_gpu.errors import InputError

_CHECKPOINT = "slurm-gpu colocation checkpoint 1"
# Purposes of random numbers, which are combined with the seed.
_TEACH, _PLAY, _JUDGE, _BEGIN = range(4)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSettings:
    """The settings of a training run: its length, learning rate, evaluation and device."""

    seed: int = 0
    taught_epochs: int = 8
    """Number of imitation epochs; each takes twenty steps on all decisions of the teacher."""
    taught_queues: int = 48
    epochs: int = 40
    """Maximum number of reinforcement epochs."""
    queues: int = 12
    plays: int = 16
    """Number of plays of each queue in an epoch."""
    rate: float = 3e-3
    last_rate: float = 3e-4
    entropy: float = 0.0
    judged_queues: int = 96
    """Number of queues for evaluation; these queues are always the same."""
    judged_every: int = 4
    """Number of epochs from one evaluation to the next."""
    patience: int = 5
    """Number of evaluations without improvement after which training ends early."""
    device: str = "cpu"
    threads: int = 1
    """Number of torch threads. The arrays are so small that a second thread only costs time."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of training after an epoch."""

    epoch: int
    of: int
    stage: str
    """"imitation" or "reinforcement"."""
    score: float | None
    """Score in the last evaluation, by the method's objective; lower is better."""
    best: float


class Method(Protocol):
    """A learning method: its net, player, teacher and objective."""

    name: str

    def new_net(self, beliefs: ApplicationPlaces, rng: np.random.Generator) -> Net:
        """Return an initial net."""
        ...

    def player(self, episodes: Episodes) -> Player:
        """Return the player that computes the net's inputs."""
        ...

    def scores(self, net: Net, inputs: Inputs) -> Floats:
        """Return the scores of the player's options, (n, S)."""
        ...

    def teacher(self) -> Choose | None:
        """Return the teacher to imitate first; None to begin with reinforcement."""
        ...

    def to_go(self, episodes: Episodes, kept: DecisionBatch) -> NDArray[np.float64]:
        """Return the cost incurred after each decision, (n); all jobs must be done."""
        ...

    def judged(self, episodes: Episodes) -> float:
        """Return the mean score of completed episodes; lower is better."""
        ...


@dataclass(slots=True)
class _State:
    """The content of a checkpoint."""

    net: Net
    best_net: Net
    best: float
    epoch: int = 0
    worse: int = 0
    """Number of evaluations since the best net."""
    last: float | None = None
    history: list[tuple[int, float]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class TrainedNet:
    """The best net of a training run."""

    net: Net
    score: float
    """Score by the method's objective, on queues that are not used for learning."""
    taught_score: float | None
    """The score after imitation; None without imitation."""
    epochs: int
    history: tuple[tuple[int, float], ...]
    """The epochs with an evaluation, each with its score."""
    seconds: float
    """Duration of the training in this process."""


def train(
    method: Method,
    beliefs: ApplicationPlaces,
    settings: TrainingSettings,
    *,
    start: Net | None = None,
    checkpoint: Path | None = None,
    report_progress: Callable[[Progress], None] = lambda _: None,
) -> TrainedNet:
    """Train a net, and return the best of all evaluated nets, including the initial one.

    If `start` (a trained net) is given, training skips imitation. `checkpoint` is written after each epoch;
    if the file exists, training resumes from it. Raise InputError if the checkpoint belongs to another
    training run.
    """
    began_s = time.monotonic()
    run = _TrainingRun(method, beliefs, settings, start, checkpoint, report_progress)
    run.to_end()
    return run.trained(time.monotonic() - began_s)


class _TrainingRun:
    def __init__(
        self,
        method: Method,
        beliefs: ApplicationPlaces,
        settings: TrainingSettings,
        start: Net | None,
        checkpoint: Path | None,
        report_progress: Callable[[Progress], None],
    ) -> None:
        self._method, self._beliefs, self._report_progress = method, beliefs, report_progress
        self._checkpoint = checkpoint
        self._teacher = method.teacher() if start is None else None
        if self._teacher is None:
            settings = replace(settings, taught_epochs=0)
        self._settings = settings
        self._of = settings.taught_epochs + settings.epochs
        # These queues do not depend on the seed: nets of different seeds are compared on the same queues.
        self._judges = draw_queues(beliefs, np.random.default_rng([_JUDGE]), settings.judged_queues)
        net = method.new_net(beliefs, self._rng(_BEGIN)) if start is None else start
        self._identity = {
            "method": method.name,
            "applications": [beliefs.profiles[one].application for one in beliefs.applications],
            "most_together": beliefs.most,
            "cap": repr(beliefs.belief.cap),
            "settings": asdict(settings),
            "data": _digest(beliefs),
            "start": None if start is None else _digest_of_net(start),
        }
        self._learner = self._new_learner(net)
        self._taught: list[Lesson] | None = None
        if checkpoint is not None and checkpoint.exists():
            self._state = self._read(checkpoint)
        else:
            score = self._judge(net)
            self._state = _State(net, net, score, last=score, history=[(0, score)])

    def to_end(self) -> None:
        settings, state = self._settings, self._state
        while state.epoch < self._of and state.worse < settings.patience:
            if state.epoch < settings.taught_epochs:
                self._imitate()
            else:
                self._reinforce(state.epoch - settings.taught_epochs)
            state.epoch += 1
            state.net = self._learner.net
            at_end = state.epoch in (self._of, settings.taught_epochs)
            if at_end or state.epoch % settings.judged_every == 0:
                self._consider(state)
            if state.epoch == settings.taught_epochs:
                # Reinforcement begins with the best net so far and a new optimizer state.
                state.worse, state.net = 0, state.best_net
                self._learner = self._new_learner(state.net)
            if self._checkpoint is not None:
                self._write(self._checkpoint)
            stage = "imitation" if state.epoch <= settings.taught_epochs else "reinforcement"
            self._report_progress(Progress(state.epoch, self._of, stage, state.last, state.best))

    def trained(self, seconds: float) -> TrainedNet:
        state, n_taught = self._state, self._settings.taught_epochs
        taught = min((score for epoch, score in state.history if 0 < epoch <= n_taught), default=None)
        return TrainedNet(state.best_net, state.best, taught, state.epoch, tuple(state.history), seconds)

    def _rng(self, what_for: int, epoch: int = 0) -> np.random.Generator:
        return np.random.default_rng([self._settings.seed, what_for, epoch])

    def _new_learner(self, net: Net) -> Learner:
        settings = self._settings
        return learner_on(settings.device, net, settings.rate, threads=settings.threads)

    def _consider(self, state: _State) -> None:
        state.last = self._judge(state.net)
        state.history.append((state.epoch, state.last))
        if state.last < state.best:
            state.best, state.best_net, state.worse = state.last, state.net, 0
        else:
            state.worse += 1

    def _judge(self, net: Net) -> float:
        episodes = Episodes(self._beliefs, self._judges)
        choose = likeliest(lambda inputs: self._method.scores(net, inputs))
        play(episodes, self._method.player(episodes), choose)
        return self._method.judged(episodes)

    def _imitate(self) -> None:
        assert self._teacher is not None
        if self._taught is None:
            queues = draw_queues(self._beliefs, self._rng(_TEACH), self._settings.taught_queues)
            episodes = Episodes(self._beliefs, queues)
            kept = play(episodes, self._method.player(episodes), self._teacher, keep=True)
            self._taught = joined([_lesson(one, np.ones(len(one.choice))) for one in kept])
        for _ in range(20):
            self._learner.step(self._taught)

    def _reinforce(self, epoch: int) -> None:
        settings, rng = self._settings, self._rng(_PLAY, epoch)
        done = epoch / max(settings.epochs - 1, 1)
        self._learner.rate = settings.rate * (settings.last_rate / settings.rate) ** done
        net = self._learner.net
        queues = draw_queues(self._beliefs, rng, settings.queues).repeated(settings.plays)
        episodes = Episodes(self._beliefs, queues)
        choose = drawn(lambda inputs: self._method.scores(net, inputs), rng)
        kept = play(episodes, self._method.player(episodes), choose, keep=True)
        if not kept:
            return
        to_go = [self._method.to_go(episodes, one) for one in kept]
        wanted = advantages(kept, to_go, settings.plays)
        self._learner.step(
            joined([_lesson(one, weight) for one, weight in zip(kept, wanted, strict=True)]),
            settings.entropy,
        )

    def _write(self, path: Path) -> None:
        state = self._state
        saved = {
            "format": _CHECKPOINT,
            "of": self._identity,
            "epoch": state.epoch,
            "best": state.best,
            "worse": state.worse,
            "last": state.last,
            "history": state.history,
        }
        arrays = net_arrays(state.net) | net_arrays(state.best_net, "best.")
        arrays |= {f"adam.{key}": value for key, value in self._learner.state().items()}
        write_arrays(path, saved, arrays)

    def _read(self, path: Path) -> _State:
        saved, arrays = read_arrays(path)
        if saved.get("format") != _CHECKPOINT:
            raise InputError(str(path), 0, 0, "is not a checkpoint of a training")
        if saved.get("of") != json.loads(json.dumps(self._identity)):
            raise InputError(
                str(path),
                0,
                0,
                "belongs to a training with other applications, speeds or settings, or with another initial "
                "model; specify another file, or remove this one to start again",
            )
        try:
            state = _State(
                net=net_of(path, {key: one for key, one in arrays.items() if "." not in key}),
                best_net=net_of(path, arrays, "best."),
                best=float(saved["best"]),
                epoch=int(saved["epoch"]),
                worse=int(saved["worse"]),
                last=None if saved["last"] is None else float(saved["last"]),
                history=[(int(epoch), float(score)) for epoch, score in saved["history"]],
            )
            self._learner = self._new_learner(state.net)
            self._learner.restore(
                {key.removeprefix("adam."): one for key, one in arrays.items() if key.startswith("adam.")}
            )
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise InputError(str(path), 0, 0, f"is a damaged checkpoint: {error!r}") from None
        return state


def _digest(beliefs: ApplicationPlaces) -> str:
    """Return a digest of all training data."""
    profiles = [beliefs.profiles[one] for one in beliefs.applications]
    digest = hashlib.sha256(repr((profiles, beliefs.capacity_mib)).encode())
    for array in (beliefs.pair_speed, beliefs.pair_may):
        digest.update(array.tobytes())
    return digest.hexdigest()


def _digest_of_net(net: Net) -> str:
    digest = hashlib.sha256()
    for array in net_arrays(net).values():
        digest.update(array.tobytes())
    return digest.hexdigest()


def advantages(
    kept: Sequence[DecisionBatch], to_go: Sequence[NDArray[np.float64]], plays: int
) -> list[NDArray[np.float64]]:
    """Return how much better each decision was than the mean at the same step over all plays of its queue.

    The differences are divided by their overall standard deviation.
    """
    n_queues = max(int(one.episode.max()) for one in kept) // plays + 1
    n_steps = max(int(one.step.max()) for one in kept) + 1
    sums, counts = np.zeros((n_queues, n_steps)), np.zeros((n_queues, n_steps))
    for one, values in zip(kept, to_go, strict=True):
        np.add.at(sums, (one.episode // plays, one.step), values)
        np.add.at(counts, (one.episode // plays, one.step), 1)
    mean = sums / np.maximum(counts, 1)
    better = [mean[one.episode // plays, one.step] - values for one, values in zip(kept, to_go, strict=True)]
    deviation = float(np.concatenate(better).std())
    return [one / max(deviation, 1e-12) for one in better]


def joined(lessons: Sequence[Lesson]) -> list[Lesson]:
    """Join lessons that have the same number of options."""
    by_options: dict[int, list[Lesson]] = {}
    for lesson in lessons:
        by_options.setdefault(lesson.allowed.shape[1], []).append(lesson)
    return [
        Lesson(
            np.concatenate([one.inputs for one in some]),
            np.concatenate([one.allowed for one in some]),
            np.concatenate([one.choice for one in some]),
            np.concatenate([one.weight for one in some]),
        )
        for some in by_options.values()
    ]


def _lesson(kept: DecisionBatch, weight: NDArray[np.float64]) -> Lesson:
    return Lesson(kept.options.inputs, kept.options.allowed, kept.choice, weight.astype(np.float32))
