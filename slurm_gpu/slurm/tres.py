"""Parse TRES and GRES strings: "cpu=8,mem=64G,gres/gpu:a100=2" and "gpu:a100:2(IDX:0-1),shard:16"."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from slurm_gpu.text.hostlist import parse_indices

# Slurm's NO_VAL64, an unknown amount such as the energy of a node without a meter; such amounts are omitted.
_NO_VALUE = 2**64 - 2

_AMOUNT = re.compile(r"([0-9]+(?:\.[0-9]+)?)([KMGTP]?)")
_POWER = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}
_ENTRY = re.compile(r"([^,()]+)(?:\(([^)]*)\))?(?:,|$)")
_COUNT = re.compile(r"([0-9]+)([KMGTP]?)")


# GRES that are parts of a GPU.
SHARED_GRES = ("shard", "mps")
GPU_GRES = ("gpu", *SHARED_GRES)


@dataclass(frozen=True, slots=True)
class SharesPerGpu:
    """The numbers of shards and MPS per GPU; None if unknown, or if nodes differ."""

    shard: int | None = None
    mps: int | None = None


@dataclass(frozen=True, slots=True)
class Gres:
    """One entry of a GRES list. `index` contains the allocated positions if Slurm prints them."""

    name: str
    type: str
    count: int
    index: tuple[int, ...] = ()


def parse_tres(text: str) -> dict[str, float]:
    """Return the amounts by TRES name, memory in MiB; {} for "" and "(null)".

    Raise ValueError if the text is malformed.
    """
    amounts: dict[str, float] = {}
    if text in ("", "(null)", "N/A"):
        return amounts
    for item in text.split(","):
        name, equals, value = item.partition("=")
        match = _AMOUNT.fullmatch(value)
        if not equals or match is None:
            raise ValueError(f"TRES {text!r}: {item!r} is not name=amount")
        number, power = float(match[1]), _POWER[match[2]]
        if number >= _NO_VALUE:
            continue
        if name == "mem":  # in MiB; a bare number is in MiB already
            power = power - 2 if match[2] else 0
        amounts[name] = number * 1024.0**power
    return amounts


def parse_job_tres(text: str) -> dict[str, float]:
    """Return parse_tres(text) with the total of each GPU GRES, even if all amounts in the text are typed."""
    tres = parse_tres(text)
    return tres | {f"gres/{name}": count for name in GPU_GRES if (count := amount(tres, name))}


def parse_gres(text: str) -> list[Gres]:
    """Return the entries of a node's or job's GRES list; [] for "" and "(null)".

    Raise ValueError if the text is malformed.
    """
    entries: list[Gres] = []
    if text in ("", "(null)", "N/A"):
        return entries
    plain, position = text.replace(":(null)", ""), 0
    while position < len(plain):
        match = _ENTRY.match(plain, position)
        if match is None:
            raise ValueError(f"GRES {text!r}: cannot read {plain[position:]!r}")
        # A type may be a number (gpu:3090:2). The last word is the count if it is a number.
        name, *words = re.split("[:=]", re.sub("^gres[:/]", "", match[1]))
        count = _COUNT.fullmatch(words[-1]) if words else None
        amount = 1 if count is None else int(count[1]) * 1024 ** _POWER[count[2]]
        kind = ":".join(words if count is None else words[:-1])
        entries.append(Gres(name, kind, amount, _positions(match[2] or "")))
        position = match.end()
    return entries


def gpus_by_type(entries: Iterable[Gres]) -> dict[str, int]:
    """Return the number of whole GPUs by type, "" for untyped ones. Types with 0 GPUs are kept."""
    gpus: dict[str, int] = {}
    for entry in entries:
        if entry.name == "gpu":
            gpus[entry.type] = gpus.get(entry.type, 0) + entry.count
    return gpus


def index_by_name(entries: Iterable[Gres]) -> dict[str, list[int]]:
    """Return the positions by GRES name, for the entries that have any: {"gpu": [0, 1]}."""
    index: dict[str, list[int]] = {}
    for entry in entries:
        if entry.index:
            index.setdefault(entry.name, []).extend(entry.index)
    return index


def total(entries: Iterable[Gres], name: str) -> int:
    """Return the sum of one GRES over all its types."""
    return sum(entry.count for entry in entries if entry.name == name)


def amount(tres: Mapping[str, float], name: str) -> float:
    """Return the amount of a GRES such as gpu in a TRES map; 0 if it is absent.

    Slurm includes typed GPUs in the untyped total only if AccountingStorageTRES contains both.
    """
    prefix = f"gres/{name}:"
    typed = sum(count for key, count in tres.items() if key.startswith(prefix))
    return max(tres.get(f"gres/{name}", 0.0), typed)


def uses_gpus(tres: Mapping[str, float]) -> bool:
    """Return whether a TRES map contains GPUs or shares of GPUs."""
    return any(amount(tres, name) > 0 for name in GPU_GRES)


def count_mgpu(
    tres: Mapping[str, float], per_gpu: SharesPerGpu | None = None, *, is_accounted: bool = True
) -> int | None:
    """Return the allocated or requested GPUs in a TRES map, in thousandths of a GPU.

    Shards and MPS count as fractions of a GPU according to `per_gpu`, each rounded half up, as in
    job_submit.lua. The result is None if `per_gpu` lacks a number that is required. If the map contains no
    GPUs, shards or MPS, the result is 0, or None if Slurm does not account for all of them (`is_accounted`).
    """
    mgpu = math.floor(amount(tres, "gpu") * 1000 + 0.5)
    for name in SHARED_GRES:
        if count := amount(tres, name):
            one_gpu = None if per_gpu is None else getattr(per_gpu, name)
            if not one_gpu:
                return None
            mgpu += math.floor(count * 1000 / one_gpu + 0.5)
    return mgpu if mgpu or is_accounted else None


def _positions(detail: str) -> tuple[int, ...]:
    """Return the positions in "IDX:0-1", or those with a share in "0/4,2/4" or "-/4,2/4" (since 23.02)."""
    if detail.startswith("IDX:"):
        return tuple(parse_indices(detail.removeprefix("IDX:")))
    shares = [share.replace("-/", "0/").partition("/") for share in detail.split(",")]
    if all(used.isdigit() and slash for used, slash, _ in shares):
        return tuple(position for position, (used, _, _) in enumerate(shares) if int(used) > 0)
    return ()
