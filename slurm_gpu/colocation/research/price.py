"""What sharing saves in money, as table 5 of the DqnGPU thesis reckons it: etc/prices.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slurm_gpu.config.yaml_source import Location, YamlSource

_LEAST, _MOST = 1e-9, 1e9
"""Of an hour, in whichever currency."""
_MOST_PARTS = 1000


@dataclass(frozen=True, slots=True)
class Comparison:
    """A GPU for oneself against a part of one."""

    name: str
    alone_price: float
    """Of an hour, as that of the part."""
    part_price: float
    in_words: str = ""
    """What is compared: "1/2 of a g4dn.4xlarge in place of g3.xlarge"."""

    def saved(self, alone_s: float, shared_s: float) -> float:
        """The part of the price that is saved where `shared_s` with sharing replace `alone_s` without.

        Below 0 where sharing costs more.
        """
        return 1 - self.part_price * shared_s / (self.alone_price * alone_s)


def comparisons(source: YamlSource) -> tuple[Comparison, ...]:
    """What a file of prices compares. Raises InputError with the place of what is wrong."""
    _mapping(source, (), {"instances", "compare"})
    prices = {name: _price(source, ("instances", name)) for name in _mapping(source, ("instances",))}
    return tuple(_comparison(source, ("compare", name), prices) for name in _mapping(source, ("compare",)))


def _comparison(source: YamlSource, location: Location, prices: Mapping[str, float]) -> Comparison:
    value = _mapping(source, location, {"alone", "shared", "parts"})
    for key in ("alone", "shared"):
        if value[key] not in list(prices):
            raise source.error(
                (*location, key), f"{value[key]!r} must be one of the instances: {', '.join(prices)}"
            )
    parts = value["parts"]
    if isinstance(parts, bool) or not isinstance(parts, int) or not 1 <= parts <= _MOST_PARTS:
        raise source.error(
            (*location, "parts"), f"parts must be a whole number from 1 to {_MOST_PARTS}, not {parts!r}"
        )
    alone, shared = value["alone"], value["shared"]
    in_words = f"{f'1/{parts} of a ' if parts > 1 else ''}{shared} in place of {alone}"
    return Comparison(str(location[-1]), prices[alone], prices[shared] / parts, in_words)


def _price(source: YamlSource, location: Location) -> float:
    value = _at(source, location)
    if isinstance(value, bool) or not isinstance(value, int | float) or not _LEAST <= value <= _MOST:
        raise source.error(
            location,
            f"the price of {location[-1]} must be a number from {_LEAST:g} to {_MOST:g}, not {value!r}",
        )
    return float(value)


def _mapping(source: YamlSource, location: Location, keys: set[str] | None = None) -> dict[str, Any]:
    """A mapping with exactly these keys; None: any names, one at least."""
    value = _at(source, location)
    name = ".".join(map(str, location)) or "the file"
    if not isinstance(value, dict) or not value or not all(isinstance(key, str) for key in value):
        raise source.error(location, f"{name} must have `name: value` lines, not {value!r}")
    if keys is not None and value.keys() != keys:
        raise source.error(location, f"{name} must have {', '.join(sorted(keys))}, not {', '.join(value)}")
    return value


def _at(source: YamlSource, location: Location) -> Any:
    value = source.value
    for key in location:
        value = value[key]
    return value
