"""Check that Slurm's GPUs on this node are the GPUs of the driver."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from slurm_gpu.cli.doctor.checks.daemons.outages import finding_slurm
from slurm_gpu.cli.doctor.checks.finding import CheckResult, DoctorContext, fail, ok, skipped, warn
from slurm_gpu.client.database_client import NodeReport
from slurm_gpu.errors import SlurmError
from slurm_gpu.node.allocation.dynamic_node import DynamicNode
from slurm_gpu.node.allocation.gres import minor_of, parse_files
from slurm_gpu.text.units import counted, few
from slurm_gpu.wire import DeviceFacts

_TYPE = re.compile(r"\bGres Name=gpu\b.*?\bType=(?P<type>[^\s(,]+)")
# The name of an NVIDIA model, such as A100, L40S or RTX6000, without spaces.
_MODEL = re.compile(r"(?:rtx|gtx|gb|gh|[abhvpktlm])\d{1,4}[a-z]?", re.IGNORECASE)
_COMPARE = (
    "on {node}, compare the output of nvidia-smi -L and slurmd -G; then fix gres.conf, and restart slurmd"
)


@dataclass(frozen=True, slots=True)
class Position:
    """A GPU or MIG instance, as Slurm counts it."""

    files: tuple[str, ...]
    type: str

    @property
    def minor(self) -> int | None:
        """Return the minor number of a whole GPU's device file; None for a MIG instance or if unknown."""
        return minor_of(self.files[0]) if len(self.files) == 1 else None


def positions(text: str) -> list[Position]:
    """Return Slurm's GPUs in the order of `slurmd -G`."""
    found = []
    for line in text.splitlines():
        match = _TYPE.search(line)
        kind = "" if match is None else match["type"]
        found += [Position(files, kind) for files in parse_files(line)]
    return found


def agrees(at: DoctorContext) -> Iterator[CheckResult]:
    """Compare the count, types and File= of gres.conf with the GPUs that slurm-gpud reports."""
    here = at.gpu_nodes_here
    yield from _without_gres(at)
    if not here:
        yield skipped("slurmd reads gres.conf on GPU nodes, and this host is not one")
        return
    with at.site.database() as database:
        reports = {report.node: report for report in database.nodes()}
    for node in here:
        report = reports.get(node)
        if report is None or not report.gpus:
            yield skipped(f"slurm-gpud has not reported the GPUs of {node}")
            continue
        try:
            named = ("-N", node) if len(here) > 1 else ()
            text = at.slurmd(("slurmd", "-G", *named, *DynamicNode(node, at.proc).options()))
        except SlurmError as error:
            remedy = (
                finding_slurm(str(error)) or f"run slurmd -G as root on {node} to see how it reads gres.conf"
            )
            # An error that is fatal to `slurmd -G` also prevents slurmd from starting.
            yield (fail if "fatal:" in str(error) else warn)(str(error), remedy)
            continue
        yield from compare(node, positions(text), report)


def compare(node: str, slurms: Sequence[Position], report: NodeReport) -> Iterator[CheckResult]:
    """Yield differences between Slurm's GPUs on a node and those of its driver."""
    remedy = _COMPARE.format(node=node)
    if not slurms:
        yield warn(
            f"slurmd -G shows no File= on {node}: GPUs are assumed to be in the order of their minor numbers",
            f"set AutoDetect=nvml, or File=/dev/nvidia[0-{len(report.gpus) - 1}], in gres.conf; then "
            "restart slurmd",
        )
        return
    by_minor = {gpu.minor: gpu for gpu in report.gpus if gpu.minor is not None}
    whole = [position for position in slurms if position.minor is not None]
    found = [*_absent(node, whole, by_minor.keys(), remedy), *_twice(node, whole, remedy)]
    found += _types(node, whole, by_minor, remedy)
    given = {position.minor for position in whole}
    left = [gpu for minor, gpu in by_minor.items() if minor not in given and not _is_cut(gpu, report)]
    if left:
        found.append(
            warn(f"{node} has GPUs without File= in gres.conf, which no job can use: {_named(left)}", remedy)
        )
    yield from found
    if not found:
        yield ok(f"{counted(len(slurms), 'GPU')} of {node}: each File= matches a GPU of the driver")


def _without_gres(at: DoctorContext) -> Iterator[CheckResult]:
    """Yield a finding if this host has GPUs, but Slurm has no GPU on this host."""
    without = [node.name for node in at.nodes_here if not node.n_gpus]
    devices = sorted(str(path) for path in at.devices.glob("nvidia[0-9]*") if path.name[6:].isdigit())
    if devices and without and len(at.nodes_here) == 1:
        yield fail(
            f"this host has {counted(len(devices), 'GPU')} ({few(devices, 2)}), but Slurm has none on "
            f"{without[0]}: no job can use them",
            f"add Gres=gpu:TYPE:{len(devices)} to the line NodeName={without[0]} in slurm.conf, and "
            "AutoDetect=nvml or File= to gres.conf; then restart slurmctld and slurmd",
        )


def _absent(
    node: str, whole: Iterable[Position], known: Iterable[int | None], remedy: str
) -> Iterator[CheckResult]:
    for position in whole:
        if position.minor not in known:
            yield fail(
                f"{position.files[0]} on {node} is not a GPU of the driver: jobs get a GPU that does not "
                "exist",
                remedy,
            )


def _twice(node: str, whole: Iterable[Position], remedy: str) -> Iterator[CheckResult]:
    counts = Counter(position.minor for position in whole)
    for minor, count in counts.items():
        if count > 1:
            yield fail(
                f"gres.conf lists minor number {minor} of {node} {count} times, so jobs share that GPU",
                remedy,
            )


def _types(
    node: str, whole: Iterable[Position], by_minor: dict[int, DeviceFacts], remedy: str
) -> Iterator[CheckResult]:
    """Yield a warning for each type that names a model other than the driver's."""
    wrong: dict[tuple[str, str], int] = {}
    for position in whole:
        gpu = by_minor.get(position.minor) if position.minor is not None else None
        if gpu is None or gpu.name is None:
            continue
        name = re.sub(r"[\s_-]", "", gpu.name).lower()
        model, is_one = _MODEL.fullmatch(re.sub(r"[\s_-]", "", position.type)), _MODEL.search(name)
        if model is not None and is_one is not None and model[0].lower() not in name:
            wrong[position.type, gpu.name] = wrong.get((position.type, gpu.name), 0) + 1
    for (kind, name), count in wrong.items():
        yield warn(
            f"Slurm has type {kind} for {counted(count, 'GPU')} of {node}, but the driver reports {name}",
            remedy,
        )


def _is_cut(gpu: DeviceFacts, report: NodeReport) -> bool:
    return any(device.parent == gpu.uuid for device in report.devices)


def _named(gpus: Sequence[DeviceFacts]) -> str:
    return few((f"minor {gpu.minor} ({gpu.uuid})" for gpu in gpus), 3)
