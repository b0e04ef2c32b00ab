"""Convert values of sbatch options to values of job_desc; raise UsageError if Slurm would refuse them."""

from __future__ import annotations

import math
import re
from collections.abc import Collection

from slurm_gpu.errors import SlurmError, UsageError
from slurm_gpu.slurm.job_desc import INFINITE
from slurm_gpu.slurm.tres import GPU_GRES
from slurm_gpu.text.hostlist import expand
from slurm_gpu.text.units import parse_slurm_time, parse_whole

# The value of job_desc.shared for each spelling; 0 gives the job exclusive nodes.
_SHARING = {
    "exclusive": {"": 0, "exclusive": 0, "user": 2, "mcs": 3, "topo": 4},
    "oversubscribe": {"": 1},
}
_SIZE = re.compile(r"(?:(?P<type>[A-Za-z_][\w.-]*)[:=])?(?P<count>\d{1,9}[kKmMgG]?)")
_MEMORY = re.compile(r"(\d{1,15})([KMGTkmgt]?)[Bb]?")
_TO_MIB = {"": 1.0, "K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2}
_TYPE = re.compile(r"[A-Za-z_][\w.-]*")
_RANGE = r"\d+(?:-\d+(?::\d+)?)?"
_ARRAY = re.compile(rf"\[?{_RANGE}(?:,{_RANGE})*\]?(?:%\d+)?\]?")


def shared(option: str, value: str) -> int:
    """Return the value of job_desc.shared for --exclusive and --oversubscribe."""
    spellings = _SHARING[option]
    if value not in spellings:
        raise UsageError(f"--{option}: {value!r} is not one of {', '.join(filter(bool, spellings))}")
    return spellings[value]


def gpus(option: str, value: str | None, types: Collection[str]) -> str | None:
    """Convert a comma-separated list of [TYPE:]NUMBER, as in --gpus, to a TRES string.

    `types` are the GPU types of the cluster; if empty, any type is accepted.
    """
    if value is None:
        return None
    return ",".join(f"gres/gpu:{_size(option, item, item, types)}" for item in value.split(","))


def gres(option: str, value: str | None, types: Collection[str]) -> str | None:
    """Convert a comma-separated list of NAME[:TYPE][:NUMBER], as in --gres, to a TRES string."""
    if value is None or value in ("", "none"):
        return None
    items = []
    for item in value.split(","):
        plain = re.sub(r"^gres[:/]", "", item)
        name, *rest = re.split("[:=]", plain, maxsplit=1)
        if not name or rest == [""]:
            raise UsageError(f"--{option}: {item!r} must be NAME:NUMBER or NAME:TYPE:NUMBER, such as gpu:2")
        if name in GPU_GRES and rest:
            _size(option, rest[0], item, types if name == "gpu" else ())
        items.append(f"gres/{plain}")
    return ",".join(items)


def number(option: str, value: str | None) -> int | None:
    """Return the value of an option that must be a whole number of at least 1; None if it is not given."""
    if value is None:
        return None
    try:
        return parse_whole(value, 1)
    except ValueError:
        raise UsageError(
            f"--{option}: {value[:40]!r} must be a whole number of 1 or more, such as 4"
        ) from None


def mib(option: str, value: str | None) -> int | None:
    """Return an amount of memory in MiB, rounded up as in Slurm; None if it is not given.

    A number without a unit is in MiB. 0 requests all memory.
    """
    if value is None:
        return None
    match = _MEMORY.fullmatch(value)
    if match is None:
        raise UsageError(f"--{option}: {value!r} must be an amount of memory, such as 4G or 500M")
    return math.ceil(int(match[1]) * _TO_MIB[match[2].upper()])


def nodes(value: str | None, nodelist: str | None) -> tuple[int | None, int | None]:
    """Return the minimum and maximum number of nodes; without --nodes, count the nodes of --nodelist."""
    if value is None:
        if nodelist is None or "/" in nodelist:
            return None, None
        try:
            return len(expand(nodelist)), None
        except (ValueError, SlurmError) as error:
            raise UsageError(f"--nodelist: {error}") from error
    least, _, most = value.partition("-")
    low, high = _count(least), _count(most or least)
    if low is None or high is None or high < low:
        raise UsageError(f"--nodes: {value!r} must be a number or a range such as 2-4")
    return low, high


def array(value: str | None) -> str | None:
    """Check the indexes of an array and return them unchanged."""
    if value is not None and not _ARRAY.fullmatch(value.replace(" ", "")):
        raise UsageError(f"--array: {value!r} must be indexes, such as 0-9, 1,3,5 or 0-99%10")
    return value


def minutes(value: str | None) -> int | None:
    """Return a time limit in minutes, rounded up; INFINITE for no limit, None if it is not given."""
    if value is None:
        return None
    if value.upper() in ("UNLIMITED", "INFINITE", "-1"):
        return INFINITE
    try:
        return math.ceil(parse_slurm_time(value) / 60) or INFINITE
    except ValueError as error:
        raise UsageError(f"--time: {error}") from error


def _size(option: str, text: str, shown: str, types: Collection[str]) -> str:
    """Return `text` if it is NUMBER, TYPE:NUMBER or a known TYPE; raise UsageError otherwise.

    If `types` is empty, any TYPE is accepted. Slurm counts a TYPE without a number as one GPU, even if no
    node has a GPU of that type.
    """
    is_type = _TYPE.fullmatch(text) and (not types or text.lower() in types)
    if is_type or _SIZE.fullmatch(text):
        return text
    prefix = shown.removesuffix(text)
    hint = ""
    if types:
        hint = f" or {prefix}{min(types)}:2 (GPU types here: {', '.join(sorted(types))})"
    raise UsageError(f"--{option}: {shown!r} must be a number, such as {prefix}2{hint}")


def _count(text: str) -> int | None:
    factor = {"k": 1024, "m": 1024**2}.get(text[-1:].lower())
    digits = text[:-1] if factor else text
    try:
        return parse_whole(digits) * (factor or 1)
    except ValueError:
        return None
