"""TRES and GRES strings: "cpu=8,mem=64G,gres/gpu:a100=2" and "gpu:a100:2(IDX:0-1),shard:16"."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from slurm_gpu.slurm.hostlist import parse_indices

_NO_VALUE = 2**64 - 2
"""Slurm's NO_VALUE64: an unknown amount, such as the energy of a node without a meter, is a gap."""

_AMOUNT = re.compile(r"([0-9]+(?:\.[0-9]+)?)([KMGTP]?)")
_POWER = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}
_ENTRY = re.compile(r"([^,()]+)(?:\(([^)]*)\))?(?:,|$)")
_COUNT = re.compile(r"([0-9]+)([KMGTP]?)")


@dataclass(frozen=True, slots=True)
class Gres:
    """One entry of a GRES list; `index` holds the positions that Slurm gave, where it says so."""

    name: str
    type: str
    count: int
    index: tuple[int, ...] = ()


def parse_tres(text: str) -> dict[str, float]:
    """Amounts by TRES name, memory in MiB; {} for "" and "(null)". Raises ValueError."""
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
        if name == "mem":  # in MiB; a bare number is that already
            power = power - 2 if match[2] else 0
        amounts[name] = number * 1024.0**power
    return amounts


def parse_gres(text: str) -> list[Gres]:
    """Entries of a node's or job's GRES list; [] for "" and "(null)". Raises ValueError."""
    entries: list[Gres] = []
    if text in ("", "(null)", "N/A"):
        return entries
    plain, position = text.replace(":(null)", ""), 0
    while position < len(plain):
        match = _ENTRY.match(plain, position)
        if match is None:
            raise ValueError(f"GRES {text!r}: cannot read {plain[position:]!r}")
        # A type may look like a number (gpu:3090:2); what stands last and can be a count is the count.
        name, *words = re.split("[:=]", re.sub("^gres[:/]", "", match[1]))
        count = _COUNT.fullmatch(words[-1]) if words else None
        amount = 1 if count is None else int(count[1]) * 1024 ** _POWER[count[2]]
        kind = ":".join(words if count is None else words[:-1])
        entries.append(Gres(name, kind, amount, _positions(match[2] or "")))
        position = match.end()
    return entries


def gpus_by_type(entries: Iterable[Gres]) -> dict[str, int]:
    """Whole GPUs by type, "" where untyped; types without a GPU are kept, as 0 is an answer."""
    gpus: dict[str, int] = {}
    for entry in entries:
        if entry.name == "gpu":
            gpus[entry.type] = gpus.get(entry.type, 0) + entry.count
    return gpus


def index_by_name(entries: Iterable[Gres]) -> dict[str, list[int]]:
    """Positions by GRES name, for those entries that have any: {"gpu": [0, 1]}."""
    index: dict[str, list[int]] = {}
    for entry in entries:
        if entry.index:
            index.setdefault(entry.name, []).extend(entry.index)
    return index


def total_shards(entries: Iterable[Gres]) -> int:
    """All shards, of any type."""
    return sum(entry.count for entry in entries if entry.name == "shard")


def granted_mgpu(tres: Mapping[str, float], shards_per_gpu: int | None) -> int | None:
    """GPUs in thousandths in a TRES map, shards as their fraction; None where shards cannot be converted."""
    whole = round(tres.get("gres/gpu", 0) * 1000)
    shards = tres.get("gres/shard", 0)
    if not shards:
        return whole
    return None if not shards_per_gpu else whole + round(shards * 1000 / shards_per_gpu)


def _positions(detail: str) -> tuple[int, ...]:
    """Positions in "IDX:0-1", or those with a share in "0/4,2/4" or "-/4,2/4" (shards by GPU, from 23.02)."""
    if detail.startswith("IDX:"):
        return tuple(parse_indices(detail.removeprefix("IDX:")))
    shares = [share.replace("-/", "0/").partition("/") for share in detail.split(",")]
    if all(used.isdigit() and slash for used, slash, _ in shares):
        return tuple(position for position, (used, _, _) in enumerate(shares) if int(used) > 0)
    return ()
