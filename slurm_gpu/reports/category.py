"""Dictionary encoding of a column of texts: each distinct text is stored once, and rows contain codes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

# The code of a missing text.
UNKNOWN = -1

Codes = NDArray[np.int32]
Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Category:
    """A column of texts. `codes[i]` is the index of row i's text in `names`, or UNKNOWN."""

    names: Sequence[str]
    codes: Codes

    @classmethod
    def of(cls, texts: Iterable[str | None]) -> Category:
        """Return these texts as a column, with names in the order of their first occurrence."""
        encoder = Encoder()
        return cls(encoder.names, encoder.codes(list(texts)))

    def __len__(self) -> int:
        return len(self.codes)

    def texts(self, rows: NDArray[Any] | slice = slice(None)) -> list[str | None]:
        """Return the texts of the given rows; by default, of all rows."""
        names = [*self.names, None]  # UNKNOWN (-1) selects the last name
        return [names[code] for code in self.codes[rows].tolist()]

    def code(self, name: str) -> int:
        """Return the code of a text; UNKNOWN if no row has it."""
        return self.names.index(name) if name in self.names else UNKNOWN

    def is_(self, name: str) -> Mask:
        """Return a mask of the rows with this text."""
        code = self.code(name)
        return np.zeros(len(self), np.bool_) if code == UNKNOWN else self.codes == code

    def take(self, rows: NDArray[Any]) -> Category:
        """Return the rows selected by indices or a mask."""
        return Category(self.names, self.codes[rows])

    def renamed(self, new: Sequence[str | None]) -> Category:
        """Return the column with its names replaced by `new`, which may contain duplicates and None."""
        encoder = Encoder()
        places = np.append(encoder.codes(list(new)), np.int32(UNKNOWN))
        return Category(encoder.names, places[self.codes])

    def sums(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the sum of values by name, leaving out rows without a text; sums of integers are exact."""
        return self.sums_and_rest(values)[:-1]

    def sums_and_rest(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the sum of values by name; the last sum is for rows without a text."""
        total = np.zeros(len(self.names) + 1, values.dtype)  # UNKNOWN (-1) selects the last sum
        np.add.at(total, self.codes, values)
        return total

    def counts(self, rows: Mask | None = None) -> Integers:
        """Return the number of rows with each name."""
        codes = self.codes if rows is None else self.codes[rows]
        return np.bincount(codes[codes != UNKNOWN], minlength=len(self.names)).astype(np.int64)


class _Places(dict[str | None, int]):
    def __init__(self, names: list[str]) -> None:
        super().__init__({None: UNKNOWN})
        self._names = names

    def __missing__(self, text: str | None) -> int:
        assert text is not None
        place = self[text] = len(self._names)
        self._names.append(text)
        return place


@dataclass(slots=True)
class Encoder:
    """Encodes texts batch by batch; `names` grows with each batch."""

    names: list[str] = field(default_factory=list)
    _places: _Places = field(init=False)

    def __post_init__(self) -> None:
        self._places = _Places(self.names)

    def codes(self, texts: Sequence[str | None]) -> Codes:
        """Return the codes of the next batch of texts."""
        return np.fromiter(map(self._places.__getitem__, texts), np.int32, len(texts))
