"""Keep the state that keys of `slurm-gpu top` change: pane, order, filter and position."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from slurm_gpu.cli.cluster.top_order import SORTS

KEYS = (
    ("?", "show or hide this list"),
    ("tab", "go to the other table: nodes or jobs"),
    ("space, page down", "page forward; b, page up: back"),
    ("j k, arrows", "move by one row; g, home: first row; G, end: last row"),
    ("s", f"change the order: {', '.join(SORTS)}"),
    ("r", "reverse the order"),
    ("/", "filter: text, u:USER, a:ACCOUNT, p:PARTITION"),
    ("m", "show only your jobs, or all jobs"),
    ("escape", "remove the filter"),
    ("q", "quit"),
)
_MOST_TYPED = 200
_FIELDS = {"u": "user", "a": "account", "p": "partition"}


class Pane(StrEnum):
    """A table of the screen."""

    NODES = "nodes"
    JOBS = "jobs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """The selected user, account and partition, and words that must occur."""

    user: str | None = None
    account: str | None = None
    partition: str | None = None
    words: tuple[str, ...] = ()

    @classmethod
    def parse(cls, typed: str) -> Filter:
        """Return the filter that a user typed, such as `user:alice train`."""
        fields: dict[str, str] = {}
        words = []
        for word in typed.split():
            name, colon, value = word.partition(":")
            name = _FIELDS.get(name, name)
            if colon and value and name in _FIELDS.values():
                fields[name] = value
            else:
                words.append(word)
        return cls(**fields, words=tuple(words))

    def __str__(self) -> str:
        named = {"user": self.user, "account": self.account, "partition": self.partition}
        return " ".join((*(f"{name}:{value}" for name, value in named.items() if value), *self.words))


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The state of the screen. `prompt` is the filter while it is being typed; None otherwise."""

    me: str | None = None
    """The caller, whose jobs the key m selects; None if the caller has no user name."""
    pane: Pane = Pane.NODES
    sort: str = SORTS[0]
    is_reverse: bool = False
    shown: Filter = field(default_factory=Filter)
    prompt: str | None = None
    shows_keys: bool = False
    first: Mapping[Pane, int] = field(default_factory=dict)

    def pressed(self, key: str, page: int, rows: int) -> View:
        """Return the view after a key; `page` is the number of rows of the current pane that are shown."""
        if self.prompt is not None:
            return self._typed(key, self.prompt)
        if self.shows_keys:
            return replace(self, shows_keys=False)
        match key:
            case "?":
                return replace(self, shows_keys=True)
            case "tab":
                return replace(self, pane=Pane.JOBS if self.pane is Pane.NODES else Pane.NODES)
            case "s":
                following = SORTS[(SORTS.index(self.sort) + 1) % len(SORTS)]
                return replace(self, sort=following, is_reverse=False, first={})
            case "r":
                return replace(self, is_reverse=not self.is_reverse, first={})
            case "/":
                shown = str(self.shown)
                return replace(self, prompt=f"{shown} " if shown else "")
            case "escape":
                return replace(self, shown=Filter(), first={})
            case "m" if self.me is not None:
                user = None if self.shown.user == self.me else self.me
                return replace(self, shown=replace(self.shown, user=user), first={})
        first = max(0, self.first.get(self.pane, 0) + _moved(key, page, rows))
        return replace(self, first={**self.first, self.pane: first})

    def _typed(self, key: str, prompt: str) -> View:
        match key:
            case "enter":
                return replace(self, shown=Filter.parse(prompt), prompt=None, first={})
            case "escape":
                return replace(self, prompt=None)
            case "backspace":
                return replace(self, prompt=prompt[:-1])
        if len(key) == 1 and key.isprintable() and len(prompt) < _MOST_TYPED:
            return replace(self, prompt=prompt + key)
        return self


def _moved(key: str, page: int, rows: int) -> int:
    page = max(1, page - 1)
    return {
        " ": page,
        "page down": page,
        "b": -page,
        "page up": -page,
        "j": 1,
        "down": 1,
        "k": -1,
        "up": -1,
        "home": -rows,
        "g": -rows,
        "end": rows,
        "G": rows,
    }.get(key, 0)
