"""Group the workers that can be compared with each other: workers of the same pipeline stage or role."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.diagnose.metric import Metric
from slurm_gpu.diagnose.robust import Matrix, median, sigma
from slurm_gpu.diagnose.series import Series

# Source of groups that differ only in the amount of work.
BY_WORK = "inferred from work"
# Minimum size of a group: a single worker has no peers.
MIN_PEERS = 2
# Source of groups by GPU model: utilisation of different models is not comparable.
MODELS = "models of the GPUs"
# Maximum ratio of sizes: stages have equal numbers of workers, or nearly so if a fault moved some of them.
_FACTOR_OF_SIZES = 1.5
_GAP_IN_SIGMAS = 6.0
# Minimum distances between levels: for memory as a fraction of the GPU's memory, for work as a fraction of
# its level.
_LEAST_GAP = {Metric.MEM_USED: 0.02, Metric.TENSOR: 0.15, Metric.SM_ACTIVE: 0.15}
# Minimum difference in memory between two stages, as a fraction and in standard errors, and the share of
# pairs of stages that must differ.
_LEAST_STEP, _STEP_IN_ERRORS, _MOST_APART = 0.004, 3.0, 0.75
_CLEARLY = 20.0
# Minimum size of a stage; random variation cannot be estimated from two workers.
_LEAST_OF_STAGE = 4
_LEAST_VARIANCE = 1e-6
_MOST_STAGES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """Groups of workers.

    `of[i]` is the group of worker i, counted from 0. `names` contains the name of each group, and `source`
    states how the groups were determined.
    """

    of: NDArray[np.intp]
    names: tuple[str, ...]
    source: str

    def members(self) -> list[NDArray[np.intp]]:
        """Return the rows of each group."""
        return [np.flatnonzero(self.of == group) for group in range(len(self.names))]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingLayout:
    """The layout of a training run with `pipeline` stages and `tensor` tensor-parallel ranks.

    Consecutive ranks first fill the tensor dimension; the stage changes last.
    """

    pipeline: int = 1
    tensor: int = 1

    def groups(self, n_ranks: int, source: str) -> Groups:
        """Group the ranks 0 to n_ranks − 1 by stage, numbered as in Megatron and DeepSpeed."""
        if self.pipeline < 1 or n_ranks % self.pipeline:
            raise ValueError(f"{source}: {self.pipeline} pipeline stages do not divide {n_ranks} ranks")
        each = n_ranks // self.pipeline
        if self.tensor < 1 or each % self.tensor:
            raise ValueError(
                f"{source}: tensor parallel size {self.tensor} does not divide the {each} ranks of a stage"
            )
        names = tuple(f"stage {stage}" for stage in range(self.pipeline))
        return Groups(of=np.arange(n_ranks) // each, names=names, source=source)


def _size(name: str, value: str) -> int:
    if not re.fullmatch("[1-9][0-9]{0,5}", value):
        raise ValueError(f"{name}: {value!r} must be a whole number from 1 to 999999")
    return int(value)


def groups_given(text: str, n_workers: int) -> Groups:
    """Parse `--groups`: `pp=4` (optionally with `tp=2`), or explicit ranks such as `0-3,8/4-7`.

    All other workers form the group `others`. Raise ValueError for an invalid value.
    """
    source = f"--groups {text}"
    if "=" in text:
        sizes: dict[str, int] = {}
        for part in text.split(","):
            name, _, value = part.partition("=")
            if name not in ("pp", "tp"):
                raise ValueError(f"--groups: {part!r} must be pp=N or tp=N, such as pp=4")
            of_what = "pipeline" if name == "pp" else "tensor"
            if of_what in sizes:
                raise ValueError(f"--groups: {name} is given twice")
            sizes[of_what] = _size(f"--groups: {name}", value)
        if "pipeline" not in sizes:
            raise ValueError(
                f"--groups: {text} does not define groups; add the number of stages: pp=N,{text}"
            )
        return TrainingLayout(**sizes).groups(n_workers, source)
    of = np.full(n_workers, -1, dtype=np.intp)
    parts = text.split("/")
    for number, part in enumerate(parts):
        for span in part.split(","):
            if not re.fullmatch("[0-9]{1,6}(-[0-9]{1,6})?", span):
                raise ValueError(f"--groups: {span!r} must be a rank or first-last, such as 0-3,8/4-7")
            first, _, last = span.partition("-")
            low, high = int(first), int(last or first)
            if low > high:
                raise ValueError(f"--groups: {span} begins with its last rank; write {high}-{low}")
            if high >= n_workers:
                raise ValueError(f"--groups: {span} is not among the ranks 0 to {n_workers - 1}")
            if (of[low : high + 1] >= 0).any():
                raise ValueError(f"--groups: {span} repeats a rank")
            of[low : high + 1] = number
    names = [f"group {number}" for number in range(len(parts))]
    if (of < 0).any():
        of[of < 0] = len(names)
        names.append("others")
    return Groups(of=of, names=tuple(names), source=source)


def infer_groups(series: Series, active: NDArray[np.bool_]) -> Groups:
    """Infer groups from clearly separate levels of memory or, failing that, of work in the bins `active`.

    Only metrics that a fault does not change define roles: a slow GPU uses the same memory, and does the same
    work, as its peers. Levels count as roles if they have nearly equal numbers of workers, as pipeline
    stages do. Any other deviation is a fault; a worker with such a deviation is assigned to the nearest
    group.
    """
    n = len(series.workers)
    of = np.zeros(n, dtype=np.intp)
    by = []
    for metric, levels in _levels(series, active):
        cut = _cut(levels, of, _LEAST_GAP[metric], relative=metric is not Metric.MEM_USED)
        if cut is not None:
            of = cut
            by.append("memory" if metric is Metric.MEM_USED else "work")
            break
    else:
        memory = series.get(Metric.MEM_USED)
        in_order = None if memory is None else _stages(median(memory[:, active]))
        if in_order is not None:
            of = in_order
            by.append("memory, in the order of ranks")
    names = tuple(f"role {group}" for group in range(int(of.max()) + 1)) if n else ()
    if len(names) == 1:
        return Groups(of=of, names=("all",), source="no groups with different roles were found")
    return Groups(
        of=of, names=names, source=BY_WORK if by == ["work"] else f"inferred from {' and '.join(by)}"
    )


def _stages(memory: Matrix) -> NDArray[np.intp] | None:
    """Find equally long blocks of consecutive ranks that differ in memory; return None if there are none.

    Megatron and DeepSpeed give each stage consecutive ranks. With 1F1B scheduling, each stage stores the
    activations of one fewer microbatch than the previous stage, and the last stage also stores logits. Blocks
    therefore differ clearly even if the levels of single workers overlap. The Bayesian information criterion
    (BIC) determines the number of blocks. In a job without stages, consecutive ranks differ as much as any
    two ranks.
    """
    n, known_memory = len(memory), memory[np.isfinite(memory)]
    if known_memory.size < 2 * _LEAST_OF_STAGE:
        return None
    found, least = None, n * float(np.log(max(known_memory.var(), _LEAST_VARIANCE))) - _CLEARLY
    for number in range(2, min(_MOST_STAGES, n // _LEAST_OF_STAGE) + 1):
        if n % number:
            continue
        blocks = memory.reshape(number, n // number)
        known = np.isfinite(blocks).sum(axis=1)
        if known.min() < MIN_PEERS:
            continue
        within = float(np.nansum((blocks - np.nanmean(blocks, axis=1)[:, None]) ** 2))
        price = (number - 1) * float(np.log(n))
        cost = n * float(np.log(max(within / (known.sum() - number), _LEAST_VARIANCE))) + price
        one, other = np.triu_indices(number, 1)
        error = 1.25 * np.sqrt(within / (known.sum() - number) * (1.0 / known[one] + 1.0 / known[other]))
        centres = median(blocks)
        apart = np.abs(centres[one] - centres[other]) >= np.maximum(_LEAST_STEP, _STEP_IN_ERRORS * error)
        if cost < least and apart.mean() >= _MOST_APART:
            least, found = cost, np.repeat(np.arange(number, dtype=np.intp), n // number)
    return found


def _levels(series: Series, active: NDArray[np.bool_]) -> list[tuple[Metric, Matrix]]:
    found = []
    memory, tensor, clock = (series.get(m) for m in (Metric.MEM_USED, Metric.TENSOR, Metric.SM_CLOCK))
    if memory is not None:
        found.append((Metric.MEM_USED, median(memory[:, active])))
    if tensor is not None:
        work = tensor if clock is None else tensor * clock
        found.append((Metric.TENSOR, median(work[:, active])))
    return found


def _cut(levels: Matrix, of: NDArray[np.intp], least: float, *, relative: bool) -> NDArray[np.intp] | None:
    """Divide levels at wide gaps into groups of about equal size; return None if there are no such groups."""
    known = np.flatnonzero(np.isfinite(levels))
    if len(known) < 2 * MIN_PEERS:
        return None
    order = known[np.argsort(levels[known], kind="stable")]
    ordered = levels[order]
    gaps = np.diff(ordered)
    wide = gaps > np.maximum(least * (ordered[1:] if relative else 1.0), 0.0)
    parts = [part for part in np.split(order, np.flatnonzero(wide) + 1) if len(part)]
    largest = max(len(part) for part in parts)
    stages = [part for part in parts if len(part) >= max(MIN_PEERS, largest / 3)]
    if len(stages) < 2 or sum(map(len, stages)) < 0.75 * len(known):
        return None
    centres = np.array([np.median(levels[stage]) for stage in stages])
    largest_sigma = max(sigma(levels[stage]) for stage in stages)
    if np.diff(centres).min() < _GAP_IN_SIGMAS * largest_sigma:
        return None
    cut = of.copy()
    reach = np.abs(levels[:, None] - centres[None, :])
    cut[known] = np.argmin(reach[known], axis=1)
    unknown = np.flatnonzero(~np.isfinite(levels))
    cut[unknown] = 0
    sizes = np.bincount(cut[known], minlength=len(stages))
    return cut if sizes.max() <= _FACTOR_OF_SIZES * sizes.min() else None
