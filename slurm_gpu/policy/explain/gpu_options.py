"""Combine GPU options per job, node, task and socket as sbatch, srun and salloc do before they submit a job.

Slurm's commands derive missing values from given ones: `--gpus=8 --gpus-per-node=4` means two nodes. The
commands refuse numbers that do not divide evenly. This module follows the rules of Slurm 22.05.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from slurm_gpu.slurm.job_desc import NO_VAL, NO_VAL16

_GPU = re.compile(r"gres[/:]gpu(?::(?P<kind>[A-Za-z_][\w.-]*))?(?:[:=](?P<count>\d{1,9}))?")
# Option → the field of job_desc that it sets.
_OPTIONS = {
    "gpus": "tres_per_job",
    "gpus-per-node": "tres_per_node",
    "gres": "tres_per_node",
    "gpus-per-task": "tres_per_task",
    "tres-per-task": "tres_per_task",
    "gpus-per-socket": "tres_per_socket",
}


@dataclass(frozen=True, slots=True)
class _Form:
    """The GPUs that one option requests, such as 4 for --gpus-per-node=4."""

    option: str
    count: int
    kind: str | None

    def __str__(self) -> str:
        return self.of(self.count)

    def of(self, count: int) -> str:
        """Return the option with another number of GPUs."""
        prefix = (
            ""
            if self.option.startswith("--gpus")
            else "gres/gpu:"
            if self.option == "--tres-per-task"
            else "gpu:"
        )
        return f"{self.option}={prefix}{count}"


def settled(gres: Mapping[str, str], numbers: Mapping[str, int | None]) -> dict[str, int]:
    """Return the fields of job_desc that can be derived from the others: nodes, tasks, tasks per node.

    `gres` contains the GRES by option. `numbers` contains numeric fields of job_desc, which are
    None if the user did not specify them. The result is empty if the request does not divide evenly.
    """
    forms = _forms(gres)
    if any(_uneven(forms, numbers)):
        return {}
    get = forms.get
    job, node, task = get("tres_per_job"), get("tres_per_node"), get("tres_per_task")
    found: dict[str, int] = {}
    most, least = numbers.get("max_nodes"), numbers.get("min_nodes")
    if job and node:
        found |= dict.fromkeys(("min_nodes", "max_nodes"), job.count // node.count)
    elif job and most is not None and most > job.count:
        found["max_nodes"] = job.count
    per_node, per_gpu = numbers.get("ntasks_per_node"), numbers.get("ntasks_per_tres")
    if task and numbers.get("num_tasks") is None:
        by_node = (1 if least is None else least) * (1 if per_node is None else per_node)
        found["num_tasks"] = job.count // task.count if job else by_node
    if node and task:
        found["ntasks_per_node"] = node.count // task.count
    if per_gpu is not None and (job or node):
        nodes = found.get("min_nodes", 1 if least is None else least)
        gpus = job.count if job else nodes * node.count if node else 0
        found["num_tasks"] = gpus * per_gpu
    return found


def mistakes(gres: Mapping[str, str], numbers: Mapping[str, int | None]) -> list[str]:
    """Return the reasons why sbatch itself refuses the GPU options of a request, and the remedies."""
    forms = _forms(gres)
    kinds = {form.kind is None for form in forms.values()}
    found = list(_uneven(forms, numbers))
    if len(kinds) > 1:
        kind = next(form.kind for form in forms.values() if form.kind is not None)
        found.append(f"{_listed(forms)}: either all options or none must name a GPU type, such as {kind}:1")
    given = [numbers.get(name) for name in ("min_nodes", "num_tasks", "ntasks_per_node")]
    task = forms.get("tres_per_task")
    if task and "tres_per_job" not in forms and given == [None, None, None]:
        found.append(f"{task.option} also requires --ntasks, --nodes or --gpus")
    if task and numbers.get("ntasks_per_tres") is not None:
        found.append(f"{task.option} and --ntasks-per-gpu cannot be combined")
    if "tres_per_socket" in forms and numbers.get("sockets_per_node") is None:
        found.append("--gpus-per-socket also requires --sockets-per-node")
    return found


def _forms(gres: Mapping[str, str]) -> dict[str, _Form]:
    """Return the GPU request of each field of job_desc.

    Fields with several requests or GPU types (a100:2,v100:1) are left out.
    """
    found: dict[str, list[_Form | None]] = {name: [] for name in _OPTIONS.values()}
    for option, name in _OPTIONS.items():
        for item in gres.get(option, "").split(","):
            if re.match(r"gres/gpu(?![\w])", item):
                match = _GPU.fullmatch(item)
                count = 0 if match is None else int(match["count"] or 1)
                found[name].append(None if match is None else _Form(f"--{option}", count, match["kind"]))
    return {
        name: some[0]
        for name, some in found.items()
        if len(some) == 1 and some[0] is not None and some[0].count
    }


def _uneven(forms: Mapping[str, _Form], numbers: Mapping[str, int | None]) -> Iterator[str]:
    """Yield a message for each mismatch between GPU options, nodes and tasks."""
    job, node, task = (forms.get(name) for name in ("tres_per_job", "tres_per_node", "tres_per_task"))
    parts = [(part, whole) for part, whole in ((node, job), (task, job), (task, node)) if part and whole]
    odd = False
    for part, whole in parts:
        if whole.count % part.count:
            odd = True
            right = max(part.count, whole.count // part.count * part.count)
            yield f"{whole} is not a multiple of {part}; use {whole.of(right)}"
    least, most = numbers.get("min_nodes"), numbers.get("max_nodes")
    tasks, per_node = numbers.get("num_tasks"), numbers.get("ntasks_per_node")
    if job and node is None and least is not None and least > job.count:
        yield f"{job} is less than --nodes={least}: each node needs a GPU"
    if odd:
        return
    if job and node:
        nodes = job.count // node.count
        if (least is not None and nodes < least) or (most is not None and nodes > most):
            requested_nodes = f"{least}" if most in (least, None) else f"{least}-{most}"
            yield f"{job} and {node} imply --nodes={nodes}, not --nodes={requested_nodes}"
    if job and task and tasks is not None and tasks != job.count // task.count:
        yield f"{job} and {task} imply --ntasks={job.count // task.count}, not --ntasks={tasks}"
    if node and task and per_node is not None and per_node != node.count // task.count:
        yield f"{node} and {task} imply --ntasks-per-node={node.count // task.count}, not {per_node}"


def _listed(forms: Mapping[str, _Form]) -> str:
    return " and ".join(form.option for form in forms.values())


def gpu_count(description: Mapping[str, object], name: str) -> int:
    """Return the sum of the numbers after gres/gpu in a field of a job description, such as tres_per_node."""
    found = _GPU.finditer(str(description.get(name) or ""))
    return sum(1 if match["count"] is None else int(match["count"]) for match in found)


def requested_gpus(description: Mapping[str, object]) -> int:
    """Return how many GPUs of all types a job description requests; without --nodes, assume one node."""

    def number(name: str) -> int:
        value = description.get(name)
        return value if isinstance(value, int) and value not in (NO_VAL, NO_VAL16) else 1

    sockets = number("min_nodes") * number("sockets_per_node")
    for name, times in (
        ("tres_per_job", 1),
        ("tres_per_node", number("min_nodes")),
        ("tres_per_task", number("num_tasks")),
        ("tres_per_socket", sockets),
    ):
        if total := gpu_count(description, name):
            return total * times
    return 0
