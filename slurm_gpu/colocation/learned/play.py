"""Play episodes to their end, and keep the decisions for training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.colocation.learned.episodes import Episodes, Mask
from slurm_gpu.colocation.learned.net import Floats

Indices = NDArray[np.intp]
# Images are stored as booleans, because training keeps all inputs of many plays.
Inputs = Floats | NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class EpisodeOptions:
    """The options in n episodes, encoded as inputs of the net."""

    inputs: Inputs
    """(n, S, F) one row for each of S options, or (n, F) one row for all of them."""
    allowed: Mask
    """(n, S) whether each option is allowed."""
    jobs: Indices
    """(n, S, k) jobs that each option starts; NO_JOB for none."""
    bound_s: Floats
    """(n) lower bound of the remaining time as estimated by the player; 0 if unknown."""


@dataclass(frozen=True, slots=True)
class DecisionBatch:
    """Decisions with the same number of options, kept for training."""

    options: EpisodeOptions
    episode: Indices
    """(n) index of the episode of each decision."""
    step: Indices
    """(n) number of the decision in its episode, counted from 0."""
    now_s: NDArray[np.float64]
    delay: NDArray[np.float64]
    """(n) DeepRM's cost before the decision."""
    choice: Indices
    """(n) index of the chosen option."""


class Player(Protocol):
    """An object that computes the options in episodes in which at least one job is waiting."""

    def options(self, episodes: Episodes, at: Indices, r: int) -> EpisodeOptions:
        """Return the options of the episodes `at`, which have `r` running jobs each; option 0 is to wait."""
        ...


# Maps the options of the given episodes to (n) choices.
Choose = Callable[[EpisodeOptions, Indices], Indices]


def play(episodes: Episodes, player: Player, choose: Choose, *, keep: bool = False) -> list[DecisionBatch]:
    """Play all episodes to their end; with `keep`, return the decisions that had several allowed options."""
    kept: list[DecisionBatch] = []
    pauses = np.zeros(len(episodes), dtype=bool)
    steps = np.zeros(len(episodes), dtype=np.intp)
    while not (over := episodes.over).all():
        n_running, waits = episodes.n_running, episodes.waiting.any(axis=1)
        decides = waits & ~pauses & ~over
        for r in range(episodes.beliefs.most):
            at = np.flatnonzero(decides & (n_running == r))
            if not len(at):
                continue
            options = player.options(episodes, at, r)
            choice = choose(options, at)
            real = options.allowed.sum(axis=1) > 1
            if keep and real.any():
                kept.append(_kept(options, at, steps, episodes, choice, real))
            steps[at[real]] += 1
            pauses[at[choice == 0]] = True
            starts = np.flatnonzero(choice != 0)
            episodes.start(at[starts], options.jobs[starts, choice[starts]])
        full = episodes.n_running == episodes.beliefs.most
        moves = np.flatnonzero(~over & (pauses | full | ~episodes.waiting.any(axis=1)))
        episodes.advance(moves)
        pauses[moves] = False
    return kept


def _kept(
    options: EpisodeOptions, at: Indices, steps: Indices, episodes: Episodes, choice: Indices, real: Mask
) -> DecisionBatch:
    some = EpisodeOptions(
        options.inputs[real], options.allowed[real], options.jobs[real], options.bound_s[real]
    )
    at = at[real]
    return DecisionBatch(some, at, steps[at], episodes.now_s[at], episodes.delay[at], choice[real])


def likeliest(scores: Callable[[Inputs], Floats]) -> Choose:
    """Return a function that chooses the allowed option with the highest score."""

    def choose(options: EpisodeOptions, at: Indices) -> Indices:
        return np.asarray(np.where(options.allowed, scores(options.inputs), -np.inf).argmax(axis=1))

    return choose


def drawn(scores: Callable[[Inputs], Floats], rng: np.random.Generator) -> Choose:
    """Return a function that draws an allowed option from the softmax of the scores (Gumbel trick)."""

    def choose(options: EpisodeOptions, at: Indices) -> Indices:
        noisy = scores(options.inputs) + rng.gumbel(size=options.allowed.shape).astype(np.float32)
        return np.asarray(np.where(options.allowed, noisy, -np.inf).argmax(axis=1))

    return choose
