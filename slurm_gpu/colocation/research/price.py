"""Compute from etc/prices.yaml how much sharing saves, as in table 5 of the DqnGPU thesis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from slurm_gpu.config.decoder import Decoder, Items
from slurm_gpu.config.value_types import number, text, whole_number
from slurm_gpu.config.yaml_source import YamlSource

_INSTANCE = text("g4dn.xlarge", "one of the instances")


@dataclass(frozen=True, slots=True)
class _Compared:
    alone: Annotated[str, _INSTANCE, "The instance of jobs that do not share."]
    shared: Annotated[str, _INSTANCE, "The instance of jobs that share."]
    parts: Annotated[
        int, whole_number(1, 1000, "2"), "The number of equal parts of the shared instance; a job uses one."
    ]


@dataclass(frozen=True, slots=True)
class _Prices:
    instances: Annotated[
        Mapping[str, Annotated[float, number(1e-9, 1e9, "0.75")]],
        Items(least=1),
        "Prices per hour, in any currency.",
    ]
    compare: Annotated[Mapping[str, _Compared], Items(least=1), "Comparisons by name."]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison of the price of an exclusive GPU with the price of a part of one."""

    name: str
    alone_price: float
    """Price per hour of the exclusive GPU, in the same currency as `part_price`."""
    part_price: float
    in_words: str = ""
    """The comparison in words, such as "1/2 of a g4dn.4xlarge instead of g3.xlarge"."""

    def saved(self, alone_s: float, shared_s: float) -> float:
        """Return the fraction of the cost that sharing saves if jobs take `shared_s` instead of `alone_s`.

        The result is negative if sharing costs more.
        """
        return 1 - self.part_price * shared_s / (self.alone_price * alone_s)


def comparisons(source: YamlSource) -> tuple[Comparison, ...]:
    """Return the comparisons in a file of prices; raise InvalidFileError with all errors in the file."""
    decoder = Decoder(source)
    file = decoder.read(_Prices)
    prices, compare = file.instances or {}, file.compare or {}
    for name, one in compare.items():
        for key, instance in (("alone", one.alone), ("shared", one.shared)):
            if instance is not None and instance not in prices:
                message = f"{key}: {instance!r} must be one of the instances: {', '.join(prices)}"
                decoder.fail_once(("compare", name, key), message)
    decoder.finish()
    return tuple(_comparison(name, one, prices) for name, one in compare.items())


def _comparison(name: str, one: _Compared, prices: Mapping[str, float]) -> Comparison:
    part = f"1/{one.parts} of a " if one.parts > 1 else ""
    in_words = f"{part}{one.shared} instead of {one.alone}"
    return Comparison(name, prices[one.alone], prices[one.shared] / one.parts, in_words)
