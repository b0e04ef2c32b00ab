"""Store the limits that the weekly adjustment moved; policy.yaml itself is edited only by people.

`policy.moved.json`, next to policy.yaml, lists the moves in order. A move counts only while policy.yaml
contains the value from which the move started and bounds that include the new value. Changing the value in
policy.yaml thus revokes the move.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slurm_gpu.errors import InputError, outside
from slurm_gpu.files.atomic import write_whole
from slurm_gpu.policy.language.limit_value import single_value, value_text, with_value
from slurm_gpu.policy.language.limits import LIMITS
from slurm_gpu.policy.language.model import Policy

_VERSION = 1


@dataclass(frozen=True, slots=True)
class Move:
    """The change of one limit of one rule, in the unit of the limit (mgpu, MiB or a count)."""

    rule: str
    limit: str
    old: int
    new: int
    at_s: int
    why: str
    # Time when a user undid the move. An undone move does not count, and its limit is not moved again.
    undone_s: int | None = None

    def __str__(self) -> str:
        old, new = (value_text(self.limit, value) for value in (self.old, self.new))
        return f"{self.limit} of {self.rule}: {old} → {new}"


@dataclass(frozen=True, slots=True)
class Moved:
    """A policy with its moves applied."""

    policy: Policy
    counting: tuple[Move, ...] = ()
    # Moves that no longer count, with the reason.
    void: tuple[tuple[Move, str], ...] = ()
    # Moves that were undone; their limits are not to be moved again.
    undone: tuple[Move, ...] = ()


def moves_path(policy: Path) -> Path:
    """Return the path of the file with the moves of a policy."""
    return policy.with_name(f"{policy.stem}.moved.json")


def read_moves(policy: Path) -> tuple[Move, ...]:
    """Return all moves of a policy, the oldest first; raise InputError if the file is invalid."""
    path = moves_path(policy)
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return ()
    except NotADirectoryError:
        return ()
    except OSError as error:
        raise InputError(str(path), 0, 0, f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise _unreadable(path, error) from error
    try:
        if plain["version"] != _VERSION:
            raise InputError(
                str(path), 0, 0, f"was written by another version of slurm-gpu ({plain['version']})"
            )
        return tuple(_move(item) for item in plain["moved"])
    except (KeyError, TypeError, ValueError) as error:
        raise _unreadable(path, error) from error


def write_moves(policy: Path, moves: Sequence[Move]) -> None:
    """Replace the moves of a policy; like the policy, the file is readable for all users.

    Raise OutsideError if it cannot be written.
    """
    path = moves_path(policy)
    with outside(path):
        if not moves:
            path.unlink(missing_ok=True)
            return
        plain = {"version": _VERSION, "moved": [asdict(move) for move in moves]}
        write_whole(path, json.dumps(plain, indent=1) + "\n", mode=0o644)


def with_moves(policy: Policy, moves: Iterable[Move]) -> Moved:
    """Apply the moves of `policy adjust` to the policy."""
    counting: list[Move] = []
    void: list[tuple[Move, str]] = []
    undone: list[Move] = []
    for move in moves:
        why = _in_the_way(policy, move)
        if why is None and move.undone_s is not None:
            undone.append(move)
        elif why is None:
            policy = with_value(policy, move.rule, move.limit, move.new)
            counting.append(move)
        else:
            void.append((move, why))
    return Moved(policy, tuple(counting), tuple(void), tuple(undone))


def _in_the_way(policy: Policy, move: Move) -> str | None:
    rule = next((rule for rule in policy.rules if rule.id == move.rule), None)
    if rule is None:
        return "the rule no longer exists"
    bounds = next((one for one in rule.adjust if one.key == move.limit), None)
    if bounds is None:
        return "adjust: of the rule no longer contains this limit"
    if single_value(rule, move.limit) != move.old:
        return "the value in policy.yaml was changed"
    if not bounds.low <= move.new <= bounds.high:
        return "the new value is outside the current bounds in adjust:"
    return None


def _move(item: Any) -> Move:
    move = Move(**item)
    texts = (move.rule, move.limit, move.why)
    numbers = (move.old, move.new, move.at_s, 0 if move.undone_s is None else move.undone_s)
    if move.limit not in LIMITS or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"no such limit: {move.limit!r}")
    if not all(isinstance(number, int) and not isinstance(number, bool) for number in numbers):
        raise ValueError(f"not whole numbers: {numbers}")
    return move


def _unreadable(path: Path, error: Exception) -> InputError:
    return InputError(
        str(path),
        0,
        0,
        f"cannot be read ({error}); `slurm-gpu policy adjust` writes this file: repair it, or remove it to "
        "return to the limits in policy.yaml",
    )
