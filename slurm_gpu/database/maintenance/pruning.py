"""Drop expired timelines, windows, events, verdicts, forecasts and decisions; keep runs and records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass
from functools import partial

from sqlalchemy import Column, Connection, Delete, Update, delete, func, null, select, update

from slurm_gpu.config.site import Retention
from slurm_gpu.database.storage.engine import Database
from slurm_gpu.database.storage.schema import decision, event, forecast, run_device, run_window, verdict
from slurm_gpu.database.storage.watermarks import get_watermark, set_watermark

_ROWS_AT_ONCE = 1000
# Name of the watermark up to which all timelines have been dropped.
_PRUNED = "pruned:timelines"


@dataclass(frozen=True, slots=True)
class Pruned:
    """The numbers of rows that were dropped or would be dropped."""

    timelines: int
    windows: int
    events: int
    verdicts: int
    forecasts: int
    decisions: int

    def __bool__(self) -> bool:
        return any(astuple(self))


@dataclass(frozen=True, slots=True)
class Pruning:
    """Drops rows older than `retention`; `stepped` is called before each batch."""

    database: Database
    retention: Retention
    stepped: Callable[[], None] = lambda: None

    def prune(self, now_s: int, late_s: int | None = None) -> Pruned:
        """Drop expired rows.

        The search for timelines begins `late_s` before the watermark. If `late_s` is None, all timelines are
        searched.
        """
        return Pruned(
            windows=self._rows(delete(run_window), run_window.c.at_s, 0, self._before_s("windows", now_s)),
            events=self._rows(delete(event), event.c.at_s, 0, self._before_s("events", now_s)),
            verdicts=self._rows(delete(verdict), verdict.c.last_s, 0, self._before_s("events", now_s)),
            forecasts=self._rows(delete(forecast), forecast.c.at_s, 0, self._before_s("forecasts", now_s)),
            decisions=self._rows(delete(decision), decision.c.at_s, 0, self._before_s("decisions", now_s)),
            timelines=self._timelines(self._before_s("timelines", now_s), late_s),
        )

    def count(self, now_s: int) -> Pruned:
        """Return the numbers of rows that `prune` would drop."""
        with self.database.reading() as connection:

            def older(at: Column[int], name: str) -> int:
                query = select(func.count()).where(at < self._before_s(name, now_s))
                if name == "timelines":
                    query = query.where(run_device.c.timeline.is_not(None))
                return connection.execute(query).scalar_one()

            return Pruned(
                timelines=older(run_device.c.last_s, "timelines"),
                windows=older(run_window.c.at_s, "windows"),
                events=older(event.c.at_s, "events"),
                verdicts=older(verdict.c.last_s, "events"),
                forecasts=older(forecast.c.at_s, "forecasts"),
                decisions=older(decision.c.at_s, "decisions"),
            )

    def _before_s(self, name: str, now_s: int) -> int:
        kept_s: float = getattr(self.retention, f"{name}_s")
        return now_s - int(kept_s)

    def _timelines(self, before_s: int, late_s: int | None) -> int:
        """Drop the timelines of old records, keep the records, and set the watermark to `before_s`."""
        from_s = 0
        if late_s is not None:
            with self.database.reading() as connection:
                done_s = get_watermark(connection, _PRUNED)
            from_s = 0 if done_s is None else done_s - late_s
        statement = update(run_device).where(run_device.c.timeline.is_not(None)).values(timeline=null())
        n = self._rows(statement, run_device.c.last_s, from_s, before_s)
        # The watermark may move back, for example after the clock or the retention was changed.
        self.database.write(lambda connection: set_watermark(connection, _PRUNED, before_s))
        return n

    def _rows(self, statement: Delete | Update, at: Column[int], from_s: int, before_s: int) -> int:
        """Execute `statement` on all rows from `from_s` up to `before_s`; return the number of rows."""
        n = 0
        next_s: int | None = from_s
        while next_s is not None:
            self.stepped()
            work = partial(_prune_some, statement=statement, at=at, from_s=next_s, before_s=before_s)
            n_some, next_s = self.database.write(work)
            n += n_some
        return n


def _prune_some(
    connection: Connection, statement: Delete | Update, at: Column[int], from_s: int, before_s: int
) -> tuple[int, int | None]:
    """Process one batch; return its number of rows, and the start of the next batch or None.

    Batches are small, because a long statement could exceed the database's time limit, and would lock rows
    for which shipments wait.
    """
    in_order = select(at).where(at >= from_s, at < before_s).order_by(at)
    last_s = connection.execute(in_order.offset(_ROWS_AT_ONCE - 1).limit(1)).scalar()
    end_s = before_s if last_s is None else last_s + 1
    done = connection.execute(statement.where(at >= from_s, at < end_s))
    return done.rowcount, None if last_s is None else end_s
