"""Whether the GPUs that Slurm counts on this node are those that the driver has."""

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
_MODEL = re.compile(r"(?:rtx|gtx|gb|gh|[abhvpktlm])\d{1,4}[a-z]?", re.IGNORECASE)
"""What NVIDIA calls a GPU, such as A100, L40S or RTX6000, without its spaces."""
_LOOK = "on {node}, compare nvidia-smi -L with slurmd -G; then fix gres.conf, and restart slurmd"


@dataclass(frozen=True, slots=True)
class Position:
    """One GPU or MIG instance as Slurm counts them."""

    files: tuple[str, ...]
    type: str

    @property
    def minor(self) -> int | None:
        """Return the minor number of the file of a whole GPU; None for a MIG instance or if unknown."""
        return minor_of(self.files[0]) if len(self.files) == 1 else None


def positions(text: str) -> list[Position]:
    """Slurm's GPUs in the order of `slurmd -G`."""
    found = []
    for line in text.splitlines():
        match = _TYPE.search(line)
        kind = "" if match is None else match["type"]
        found += [Position(files, kind) for files in parse_files(line)]
    return found


def agrees(at: DoctorContext) -> Iterator[CheckResult]:
    """Compare count, type and File= of gres.conf with the driver, as reported by slurm-gpud."""
    here = at.gpu_nodes_here
    yield from _without_gres(at)
    if not here:
        yield skipped("gres.conf is read by slurmd on GPU nodes, and this host is none")
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
            remedy = finding_slurm(str(error)) or f"slurmd -G, as root on {node}, says how it reads gres.conf"
            # With what is fatal to `slurmd -G`, slurmd does not start any more either.
            yield (fail if "fatal:" in str(error) else warn)(str(error), remedy)
            continue
        yield from compare(node, positions(text), report)


def compare(node: str, slurms: Sequence[Position], report: NodeReport) -> Iterator[CheckResult]:
    """Compare Slurm's count of GPUs on a node with that of its driver."""
    look = _LOOK.format(node=node)
    if not slurms:
        yield warn(
            f"slurmd -G names no File= on {node}: GPUs are taken to be counted in the order of their minors",
            f"AutoDetect=nvml, or File=/dev/nvidia[0-{len(report.gpus) - 1}], in gres.conf; restart slurmd",
        )
        return
    by_minor = {gpu.minor: gpu for gpu in report.gpus if gpu.minor is not None}
    whole = [position for position in slurms if position.minor is not None]
    found = [*_absent(node, whole, by_minor.keys(), look), *_twice(node, whole, look)]
    found += _types(node, whole, by_minor, look)
    given = {position.minor for position in whole}
    left = [gpu for minor, gpu in by_minor.items() if minor not in given and not _is_cut(gpu, report)]
    if left:
        found.append(warn(f"no File= names {_named(left)} of {node}: no job can have it", look))
    yield from found
    if not found:
        yield ok(f"{counted(len(slurms), 'GPU')} of {node}: each File= is a GPU of the driver's")


def _without_gres(at: DoctorContext) -> Iterator[CheckResult]:
    """Yield a finding if Slurm has no GPU of this host."""
    without = [node.name for node in at.nodes_here if not node.n_gpus]
    devices = sorted(str(path) for path in at.devices.glob("nvidia[0-9]*") if path.name[6:].isdigit())
    if devices and without and len(at.nodes_here) == 1:
        yield fail(
            f"this host has {counted(len(devices), 'GPU')} ({few(devices, 2)}), but Slurm has none on "
            f"{without[0]}: no job can use them",
            f"Gres=gpu:TYPE:{len(devices)} on the line NodeName={without[0]} in slurm.conf, AutoDetect=nvml "
            "or File= in gres.conf; restart slurmctld and slurmd",
        )


def _absent(
    node: str, whole: Iterable[Position], known: Iterable[int | None], look: str
) -> Iterator[CheckResult]:
    for position in whole:
        if position.minor not in known:
            yield fail(
                f"{position.files[0]} of {node} is no GPU of the driver's: jobs are given what is not there",
                look,
            )


def _twice(node: str, whole: Iterable[Position], look: str) -> Iterator[CheckResult]:
    counts = Counter(position.minor for position in whole)
    for minor, count in counts.items():
        if count > 1:
            yield fail(f"the GPU of minor {minor} of {node} is counted {count} times: jobs share it", look)


def _types(
    node: str, whole: Iterable[Position], by_minor: dict[int, DeviceFacts], look: str
) -> Iterator[CheckResult]:
    """A type is a site's own word; one that is another model's name is a mistake."""
    wrong: dict[tuple[str, str], int] = {}
    for position in whole:
        gpu = by_minor.get(position.minor) if position.minor is not None else None
        if gpu is None or gpu.name is None:
            continue
        name = re.sub(r"[\s_-]", "", gpu.name).lower()
        said, is_one = _MODEL.fullmatch(re.sub(r"[\s_-]", "", position.type)), _MODEL.search(name)
        if said is not None and is_one is not None and said[0].lower() not in name:
            wrong[position.type, gpu.name] = wrong.get((position.type, gpu.name), 0) + 1
    for (kind, name), count in wrong.items():
        yield warn(f"Slurm calls {counted(count, 'GPU')} of {node} {kind}, the driver {name}", look)


def _is_cut(gpu: DeviceFacts, report: NodeReport) -> bool:
    return any(device.parent == gpu.uuid for device in report.devices)


def _named(gpus: Sequence[DeviceFacts]) -> str:
    return few((f"minor {gpu.minor} ({gpu.uuid})" for gpu in gpus), 3)
