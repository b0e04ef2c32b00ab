"""What DeepRM and the DqnGPU thesis show their nets: flat binary images of resources over time.

One image for each resource of the GPU and of each job slot: steps of time from now on by tenths of the
resource, filled up to the use. The thesis names the images and the slots, but not steps or levels; they are
chosen here: twenty steps that hold twice the longest profile, and ten levels.
"""

from __future__ import annotations

from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.colocation.learned.co_runners import CoRunnerBeliefs, Places
from slurm_gpu.colocation.learned.groups import groups
from slurm_gpu.colocation.learned.net import Floats
from slurm_gpu.colocation.profiles.profile import ApplicationProfile, sampled

# In the thesis: gpu, gpumem, gpucore, pcie.
RESOURCES = ("util", "memory_mib", "sm", "pcie")
STEPS, LEVELS, SLOTS = 20, 10, 3
# Jobs after the slots that are distinguished at most.
BACKLOG = 30
N_INPUTS = (1 + SLOTS) * len(RESOURCES) * STEPS * LEVELS + BACKLOG


class ImageContent(StrEnum):
    """The shown content of a profile."""

    MAX = "max"
    """Its greatest use, throughout."""
    MEAN = "mean"
    """Its mean use, throughout."""
    COURSE = "course"
    """Its course, in steps."""


def options_of(name: str) -> NDArray[np.intp]:
    """Return (S, 3) the slots of each option of a planner, waiting first, filled up with `SLOTS`."""
    return groups(SLOTS, SLOTS if name == "dqngpu_thesis" else 1, SLOTS)


class Images:
    """Uses of the applications that `beliefs` has places for, as fractions of the GPU.

    A value that a profile lacks is the mean of the others; if all lack it, the image is empty and sets no
    limit.
    """

    def __init__(self, beliefs: CoRunnerBeliefs, capacity_mib: float, shown: ImageContent) -> None:
        profiles = [beliefs.profiles[one] for one in beliefs.applications]
        self.shown, self.empty = shown, beliefs.empty
        self.step_s = 2 * max(profile.seconds for profile in profiles) / STEPS
        self._use = np.zeros((beliefs.empty + 1, len(RESOURCES), STEPS), dtype=np.float32)
        """(places, resources, steps) from the start; after its end the last one is repeated."""
        self.bounded = np.zeros(len(RESOURCES), dtype=bool)
        for number, name in enumerate(RESOURCES):
            unit = capacity_mib if name == "memory_mib" else 1.0
            known = [value for profile in profiles if (value := profile.mean(name)) is not None]
            if not known or not np.isfinite(unit):
                continue
            self.bounded[number] = True
            middle = sum(known) / len(known)
            for place, profile in enumerate(profiles):
                self._use[place, number] = self._course(profile, name, middle) / unit

    def _course(self, profile: ApplicationProfile, name: str, middle: float) -> NDArray[np.float64]:
        one = profile.peak(name) if self.shown is ImageContent.MAX else profile.mean(name)
        if one is None:
            return np.full(STEPS, middle)
        if self.shown is not ImageContent.COURSE:
            return np.full(STEPS, one)
        n = min(int(-(-profile.seconds // self.step_s)), STEPS)
        course = sampled(profile, name, self.step_s, STEPS)
        course[n:] = course[n - 1]
        return np.where(np.isnan(course), one, course)

    def uses(self, place: Places, done_s: Floats, left_s: Floats) -> Floats:
        """Map (...) jobs to (..., resources, steps) from now on; 0 for an empty place."""
        step = np.arange(STEPS)
        begun = (done_s / self.step_s).astype(np.intp)[..., None]
        at = np.minimum(begun + step, STEPS - 1)
        use = self._use[place[..., None, None], np.arange(len(RESOURCES))[:, None], at[..., None, :]]
        lasts = step < np.ceil(left_s / self.step_s)[..., None]
        out: Floats = use * lasts[..., None, :]
        return out

    def inputs(self, running: Floats, slots: Floats, n_later: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Return (n, N_INPUTS) from uses (n, resources, steps), those of the slots (n, M, …), and later
        jobs.
        """
        n = len(running)
        images = np.concatenate([running[:, None], slots], axis=1)
        filled = images[..., None] * LEVELS > np.arange(LEVELS) + 0.5
        backlog = n_later[:, None] > np.arange(BACKLOG)
        return np.concatenate([filled.reshape(n, -1), backlog], axis=1)
