"""Evaluate --constraint against the features of nodes, where its meaning in Slurm is unambiguous."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

from slurm_gpu.slurm.client import SlurmNode

_SIGNS = re.compile(r"([&|,()\[\]])")
_COUNTED = re.compile(r"\*\d+$")


def names_in(constraint: str) -> list[str]:
    """Return the distinct features that an expression names. Slurm treats a space as part of a name."""
    words = (_COUNTED.sub("", word) for word in _SIGNS.split(constraint) if not _SIGNS.fullmatch(word))
    return list(dict.fromkeys(word for word in words if word))


def nodes_with(constraint: str, nodes: Sequence[SlurmNode]) -> int | None:
    """Return how many nodes satisfy an expression; None if it cannot be evaluated for a single node.

    Expressions with counts or brackets, such as [a*2&b*1], cannot be evaluated. Slurm does not document the
    precedence of & and |, so a node counts if it satisfies the expression with either precedence.
    """
    if not constraint or "[" in constraint or "*" in constraint:
        return None
    tokens = [token for token in _SIGNS.split(constraint) if token]
    try:
        return sum(
            any(
                _ConstraintReading(tokens, node.features, binds_first).evaluate()
                for binds_first in ("&", "|")
            )
            for node in nodes
        )
    except ValueError:
        return None


class _ConstraintReading:
    """Evaluate an expression for one node; `binds_first` is the operator with higher precedence, & or |."""

    def __init__(self, tokens: Sequence[str], features: Collection[str], binds_first: str) -> None:
        self._tokens = iter([*("&" if token == "," else token for token in tokens), ""])
        self._features, self._first = features, binds_first
        self._next = next(self._tokens)

    def evaluate(self) -> bool:
        """Return whether the node satisfies the expression; raise ValueError if it is malformed."""
        value = self._weak()
        if self._next:
            raise ValueError(self._next)
        return value

    def _weak(self) -> bool:
        sign = "|" if self._first == "&" else "&"
        return self._joined(sign, self._operands(sign, strong=True))

    def _strong(self) -> bool:
        return self._joined(self._first, self._operands(self._first, strong=False))

    def _joined(self, sign: str, values: Iterator[bool]) -> bool:
        found = list(values)  # evaluate every operand, because each consumes tokens
        return all(found) if sign == "&" else any(found)

    def _operands(self, sign: str, *, strong: bool) -> Iterator[bool]:
        yield self._strong() if strong else self._feature()
        while self._next == sign:
            self._advance()
            yield self._strong() if strong else self._feature()

    def _feature(self) -> bool:
        token = self._advance()
        if token == "(":
            value = self._weak()
            if self._advance() != ")":
                raise ValueError("no )")
            return value
        if not token or _SIGNS.fullmatch(token):
            raise ValueError(token)
        return token in self._features

    def _advance(self) -> str:
        token, self._next = self._next, next(self._tokens, "")
        return token
