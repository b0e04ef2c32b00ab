"""Hold the choices of a viewer of `slurm-gpu top`: the order of the rows, a filter, and the help."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from slurm_gpu.monitor.cluster.overview import Overview, ShownRow
from slurm_gpu.wire.answers.cluster import ClusterJob

HELP = (
    "space, page down   next page                  b, page up   previous page",
    "j, k, arrows       one row                    g, G         first and last row",
    "s                  sort by node, user, utilisation or time until the GPUs become free",
    "/                  show only rows with a text: node, state, type, user, account, job ID or name",
    "m                  show only your jobs, or all",
    "?                  show or hide these keys    q            quit",
)
_ENTER, _ESCAPE, _BACKSPACE = ("\r", "\n"), "\x1b", ("\x7f", "\x08")


def _util(shown: ShownRow) -> float:
    measured = [device.util_pct for device in shown.devices if device.util_pct is not None]
    return math.fsum(measured) / len(measured) if measured else math.inf


def _frees(shown: ShownRow) -> float:
    return math.inf if shown.row.frees_s is None else shown.row.frees_s


# Sort keys by name; None keeps the order by node. Rows without a value come last.
_SORTS: Mapping[str, Callable[[ShownRow], tuple[bool, str, float]] | None] = {
    "node": None,
    "user": lambda shown: (shown.row.job is None, shown.row.job.user if shown.row.job else "", 0.0),
    "utilisation": lambda shown: (shown.row.job is None, "", _util(shown)),
    "time left": lambda shown: (shown.row.job is None, "", _frees(shown)),
}


@dataclass(slots=True)
class TopView:
    """The choices of the viewer."""

    own_user: str
    sort: str = "node"
    find: str = ""
    is_typing: bool = False
    """Whether keys are added to `find`."""
    shows_help: bool = False
    only_own: bool = False

    def press(self, key: str) -> bool:
        """Apply a key; return whether it changed the view."""
        if self.is_typing:
            return self._type(key)
        if key == "?":
            self.shows_help = not self.shows_help
        elif key == "s":
            names = list(_SORTS)
            self.sort = names[(names.index(self.sort) + 1) % len(names)]
        elif key == "/":
            self.is_typing, self.find = True, ""
        elif key == "m":
            self.only_own = not self.only_own
        elif key == _ESCAPE and (self.find or self.shows_help):
            self.find, self.shows_help = "", False
        else:
            return False
        return True

    def _type(self, key: str) -> bool:
        if key in _ENTER:
            self.is_typing = False
        elif key == _ESCAPE:
            self.is_typing, self.find = False, ""
        elif key in _BACKSPACE:
            self.find = self.find[:-1]
        elif len(key) == 1 and key.isprintable():
            self.find += key
        return True

    @property
    def status(self) -> str:
        """Describe the choices that differ from the defaults."""
        parts = [f"sorted by {self.sort}"] if self.sort != "node" else []
        parts += ["your jobs"] if self.only_own else []
        if self.is_typing or self.find:
            parts.append(f"filter: {self.find}{'_' if self.is_typing else ''}")
        return " · ".join(parts)

    def arranged(self, overview: Overview) -> Overview:
        """Return the overview with the chosen rows in the chosen order."""
        text = self.find.lower()
        rows = [shown for shown in overview.rows if text in _searched(shown)]
        pending = [job for job in overview.pending if text in "\n".join(_of_job(job)).lower()]
        if (key := _SORTS[self.sort]) is not None:
            rows.sort(key=key)
        return replace(overview, rows=rows, pending=pending)


def _searched(shown: ShownRow) -> str:
    row = shown.row
    of_job = () if row.job is None else _of_job(row.job)
    return "\n".join((*row.nodes, row.state, row.gpu_type, *of_job)).lower()


def _of_job(job: ClusterJob) -> tuple[str, ...]:
    return job.user, job.account, job.id, job.name or ""
