"""Define DeepRM Max, DeepRM Mean and the planner of the DqnGPU thesis.

Each planner has one net, whose inputs are images of resource use. The thesis leaves most details open. This
module chooses the size of the hidden layer (20, as in DeepRM), the steps and levels of the images (`images`),
and DeepRM's reward. It trains by REINFORCE with the advantage `return - baseline`; the thesis gives the
opposite difference, with which a net would learn the worst decisions. As in the thesis, there are three
slots, filled in the order of submission, and a backlog. DeepRM starts one job at a time; the thesis treats
each group of slots as a virtual slot. Both planners may also choose to wait.

An option is allowed only if its assumed use fits on the GPU. DeepRM assumes constant use; the thesis compares
the time integral of the use. Since means and areas hide peaks, jobs can run out of memory in the
simulator. A killed job then runs alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.colocation.learned.co_runners import ApplicationPlaces, Places
from slurm_gpu.colocation.learned.episodes import NO_JOB, Episodes, Mask
from slurm_gpu.colocation.learned.images import N_INPUTS, SLOTS, ImageContent, Images, options_of
from slurm_gpu.colocation.learned.net import Floats, Net, new_net
from slurm_gpu.colocation.learned.play import Choose, DecisionBatch, EpisodeOptions, Indices, Inputs
from slurm_gpu.colocation.planner import Belief, Member, PlannerView, Start
from slurm_gpu.colocation.profiles.profile import ApplicationProfile

HIDDEN = 20
_TINY = np.float32(1e-4)
SHOWN = {
    "deeprm_max": ImageContent.MAX,
    "deeprm_mean": ImageContent.MEAN,
    "dqngpu_thesis": ImageContent.COURSE,
}
"""The content of each planner's images."""


class DeepRmEncoder:
    """Encodes the state of n GPUs for one of the three planners, and determines the allowed options."""

    def __init__(self, name: str, beliefs: ApplicationPlaces, capacity_mib: float) -> None:
        self.images, self.beliefs = Images(beliefs, capacity_mib, SHOWN[name]), beliefs
        self.options = options_of(name)
        self._is_area = SHOWN[name] is ImageContent.COURSE

    def encode(
        self,
        running: tuple[Places, Floats, Floats],
        slots: tuple[Places, Floats, Floats],
        alone: tuple[Mask, Mask],
        n_later: Indices,
    ) -> tuple[NDArray[np.bool_], Mask]:
        """Return the inputs, (n, N_INPUTS), and whether each option is allowed, (n, S).

        `running` (n, r) and `slots` (n, SLOTS) each contain places, seconds done and seconds left. `alone`
        marks those running jobs and slots that may not share a GPU.
        """
        r = running[0].shape[1]
        of_running, of_slots = self.images.uses(*running), self.images.uses(*slots)
        n = len(of_slots)
        filled: Mask = np.ones((n, SLOTS + 1), dtype=bool)
        filled[:, :SLOTS] = slots[0] != self.beliefs.empty
        is_job = self.options < SLOTS
        n_new = is_job.sum(axis=1)
        allowed: Mask = np.asarray(filled[:, self.options].all(axis=2) & (r + n_new <= self.beliefs.most))
        allowed[:, 0] = r > 0
        shares = r + n_new > 1
        alone_slots = np.concatenate([alone[1], np.zeros((n, 1), dtype=bool)], axis=1)
        has_alone = alone_slots[:, self.options].any(axis=2) | alone[0].any(axis=1, keepdims=True)
        fits = self._fits(running, of_running, slots, of_slots)
        starts = n_new > 0
        allowed &= ~starts | ~shares | (fits & ~has_alone)
        return self.images.inputs(of_running.sum(axis=1), of_slots, n_later), allowed

    def _fits(
        self,
        running: tuple[Places, Floats, Floats],
        of_running: Floats,
        slots: tuple[Places, Floats, Floats],
        of_slots: Floats,
    ) -> Mask:
        """Return whether the assumed use of each option fits on the GPU, (n, S).

        Since the assumed use can be too low, jobs of an allowed option may run out of memory.
        """
        n = len(of_slots)
        padded = np.concatenate([of_slots, np.zeros((n, 1, *of_slots.shape[2:]), np.float32)], axis=1)
        use = of_running.sum(axis=1)[:, None] + padded[:, self.options].sum(
            axis=2
        )  # shape (n, S, resources, steps)
        bounded = use[:, :, self.images.bounded]
        if not self._is_area:
            return np.asarray((bounded[..., 0] <= 1 + _TINY).all(axis=2))
        left_s = np.concatenate([slots[2], np.zeros((n, 1), np.float32)], axis=1)[:, self.options].max(axis=2)
        left_s = np.maximum(left_s, running[2].max(axis=1, initial=0)[:, None])
        n_steps = np.clip(np.ceil(left_s / self.images.step_s), 1, bounded.shape[3])
        return np.asarray((bounded.sum(axis=3) <= n_steps[:, :, None] * (1 + _TINY)).all(axis=2))


class ImagePlayer:
    """See play.Player."""

    def __init__(self, encoder: DeepRmEncoder) -> None:
        self._encoder = encoder

    def options(self, episodes: Episodes, at: Indices, r: int) -> EpisodeOptions:
        """See play.Player."""
        queues, empty_place = episodes.queues, episodes.beliefs.empty
        each = at[:, None]
        jobs = episodes.running[at, :r]
        waits = episodes.waiting[at]
        first = np.argsort(~waits, axis=1, kind="stable")[:, :SLOTS]
        is_slot = np.take_along_axis(waits, first, axis=1)
        inputs, allowed = self._encoder.encode(
            (queues.place[each, jobs], episodes.done_s[each, jobs], episodes.left_s[each, jobs]),
            (
                np.where(is_slot, queues.place[each, first], empty_place),
                np.zeros(first.shape, dtype=np.float32),
                np.where(is_slot, episodes.left_s[each, first], np.float32(0)),
            ),
            (episodes.alone[each, jobs], episodes.alone[each, first] & is_slot),
            np.maximum(waits.sum(axis=1) - SLOTS, 0),
        )
        padded = np.concatenate([first, np.full((len(at), 1), NO_JOB)], axis=1)
        chosen = padded[:, self._encoder.options]
        zeros = np.zeros(len(at), dtype=np.float32)
        return EpisodeOptions(inputs, allowed, chosen, zeros)


class ImageMethod:
    """Learn with DeepRM's reward; see training.Method."""

    def __init__(self, name: str, capacity_mib: float) -> None:
        self.name, self._capacity_mib = name, capacity_mib

    def new_net(self, beliefs: ApplicationPlaces, rng: np.random.Generator) -> Net:
        """See training.Method."""
        return new_net((N_INPUTS, HIDDEN, len(options_of(self.name))), rng)

    def player(self, episodes: Episodes) -> ImagePlayer:
        """See training.Method."""
        return ImagePlayer(DeepRmEncoder(self.name, episodes.beliefs, self._capacity_mib))

    def scores(self, net: Net, inputs: Inputs) -> Floats:
        """See training.Method."""
        return net(inputs.astype(np.float32))

    def teacher(self) -> Choose | None:
        """Return None, since these planners imitate no teacher; see training.Method."""
        return None

    def to_go(self, episodes: Episodes, kept: DecisionBatch) -> NDArray[np.float64]:
        """Return DeepRM's cost from each decision to the end of its episode; see training.Method."""
        return episodes.delay[kept.episode] - kept.delay

    def judged(self, episodes: Episodes) -> float:
        """Return the mean of time in the system ÷ duration alone over all jobs; see training.Method."""
        there = episodes.queues.place != episodes.beliefs.empty
        return float((episodes.delay / there.sum(axis=1)).mean())


class ImagePlanner:
    """See planner.Planner."""

    def __init__(
        self, name: str, net: Net, belief: Belief, profiles: Sequence[ApplicationProfile], capacity_mib: float
    ) -> None:
        self.name, self._net = name, net
        self._beliefs = ApplicationPlaces(belief, profiles, capacity_mib, room=len(profiles))
        self._place = self._beliefs.place(range(len(profiles)))
        self._encoder = DeepRmEncoder(name, self._beliefs, capacity_mib)

    def choose(self, view: PlannerView) -> list[Start]:
        """Start jobs on the first GPU for which the net does not choose to wait; try idle GPUs first."""
        if not view.waiting:
            return []
        order = sorted(range(len(view.gpus)), key=lambda index: bool(view.gpus[index].running))
        for index in order:
            running = view.gpus[index].running
            if len(running) < self._beliefs.most and (jobs := self._jobs(running, view.waiting)):
                return [Start(index, jobs)]
        return []

    def _jobs(self, running: tuple[Member, ...], waiting: Sequence[Member]) -> tuple[int, ...]:
        slots = waiting[:SLOTS]
        killed = np.zeros((1, SLOTS), dtype=bool)
        killed[0, : len(slots)] = [one.killed > 0 for one in slots]
        inputs, allowed = self._encoder.encode(
            self._columns(running, len(running)),
            self._columns(slots, SLOTS),
            (np.array([[one.killed > 0 for one in running]], dtype=bool), killed),
            np.array([max(len(waiting) - SLOTS, 0)]),
        )
        score = np.where(allowed, self._net(inputs.astype(np.float32)), -np.inf)[0]
        return tuple(slots[i].job for i in self._encoder.options[int(score.argmax())] if i < SLOTS)

    def _columns(self, members: Sequence[Member], n: int) -> tuple[Places, Floats, Floats]:
        place = np.full((1, n), self._beliefs.empty, dtype=np.intp)
        done_s, left_s = np.zeros((1, n), dtype=np.float32), np.zeros((1, n), dtype=np.float32)
        for column, one in enumerate(members):
            place[0, column] = self._place[one.application]
            done_s[0, column], left_s[0, column] = one.done_s, one.left_s
        return place, done_s, left_s
