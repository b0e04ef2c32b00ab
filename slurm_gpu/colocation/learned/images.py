"""Build the inputs of the nets of DeepRM and the DqnGPU thesis: flat binary images of resource use over time.

The GPU and each job slot have one image per resource. The columns of an image are time steps from now on; the
rows are tenths of the resource. In each column, the rows up to the use are filled. The thesis specifies the
images and the slots, but not the steps or levels. This module uses ten levels, and twenty steps that cover
twice the longest profile.
"""

from __future__ import annotations

from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.colocation.learned.co_runners import ApplicationPlaces, Places
from slurm_gpu.colocation.learned.groups import groups
from slurm_gpu.colocation.learned.net import Floats
from slurm_gpu.colocation.profiles.profile import ApplicationProfile, sampled

# The thesis names these resources gpu, gpumem, gpucore and pcie.
RESOURCES = ("util", "memory_mib", "sm", "pcie")
STEPS, LEVELS, SLOTS = 20, 10, 3
# Maximum number of waiting jobs after the slots that the net's input can represent.
BACKLOG = 30
N_INPUTS = (1 + SLOTS) * len(RESOURCES) * STEPS * LEVELS + BACKLOG


class ImageContent(StrEnum):
    """The statistic of a profile that the images show."""

    MAX = "max"
    """The peak use, shown in all steps."""
    MEAN = "mean"
    """The mean use, shown in all steps."""
    COURSE = "course"
    """The use in each step."""


def options_of(name: str) -> NDArray[np.intp]:
    """Return the slots of each option of a planner, (S, 3), padded with `SLOTS`.

    The first option is to wait.
    """
    return groups(SLOTS, SLOTS if name == "dqngpu_thesis" else 1, SLOTS)


class Images:
    """The resource use of the applications that have places in `beliefs`, as fractions of the GPU.

    If a use is unknown in a profile, the mean over the other profiles is assumed. If a use is unknown in all
    profiles, its image is empty and sets no limit.
    """

    def __init__(self, beliefs: ApplicationPlaces, capacity_mib: float, shown: ImageContent) -> None:
        profiles = [beliefs.profiles[one] for one in beliefs.applications]
        self.shown, self.empty = shown, beliefs.empty
        self.step_s = 2 * max(profile.seconds for profile in profiles) / STEPS
        self._use = np.zeros((beliefs.empty + 1, len(RESOURCES), STEPS), dtype=np.float32)
        """(places, resources, steps) use from the start of the job; the last value repeats after its end."""
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
        """Return the use of jobs (...) from now on, (..., resources, steps); 0 for an empty place."""
        step = np.arange(STEPS)
        begun = (done_s / self.step_s).astype(np.intp)[..., None]
        at = np.minimum(begun + step, STEPS - 1)
        use = self._use[place[..., None, None], np.arange(len(RESOURCES))[:, None], at[..., None, :]]
        lasts = step < np.ceil(left_s / self.step_s)[..., None]
        out: Floats = use * lasts[..., None, :]
        return out

    def inputs(self, running: Floats, slots: Floats, n_later: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Return the inputs of a net (n, N_INPUTS).

        `running` (n, resources, steps) is the combined use of the running jobs, and `slots` (n, M, …) the use
        of the job in each slot. `n_later` is the number of waiting jobs after the slots.
        """
        n = len(running)
        images = np.concatenate([running[:, None], slots], axis=1)
        filled = images[..., None] * LEVELS > np.arange(LEVELS) + 0.5
        backlog = n_later[:, None] > np.arange(BACKLOG)
        return np.concatenate([filled.reshape(n, -1), backlog], axis=1)
