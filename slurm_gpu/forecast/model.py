"""A site's forecaster as bytes, for a database: numpy arrays and JSON, nothing that runs when it is read."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.errors import DatabaseError
from slurm_gpu.forecast.drivers import Driver, drivers
from slurm_gpu.forecast.forecaster import KINDS, Correction, Forecaster, Forecasts, Learner, train
from slurm_gpu.forecast.looks import Floats
from slurm_gpu.forecast.queue import TABLE_ORDER, Runs, Vocabulary, look_for, past_looks
from slurm_gpu.forecast.regression import Regression
from slurm_gpu.forecast.tables import WaitTables

FORMAT = 2


@dataclass(frozen=True, slots=True)
class Model:
    """All that a forecast of a job takes, but the queue as it is now."""

    forecaster: Forecaster
    vocabulary: Vocabulary
    typical: Floats
    """The features of an ordinary job."""
    n_looks: int
    since_s: float
    """How many looks at waiting jobs it stands on, and from when on."""

    def forecast(self, queue: Runs, wanted: Runs, now_s: float) -> Forecasts:
        """Of the jobs `wanted`, with what waits and runs now."""
        return self.forecaster.forecast(look_for(queue, wanted, self.vocabulary, now_s))

    def drivers(self, queue: Runs, wanted: Runs, now_s: float) -> list[Driver]:
        """What the forecast of one job hangs on."""
        return drivers(self.forecaster, look_for(queue, wanted, self.vocabulary, now_s), self.typical)

    def correction(self, wanted: Runs) -> Correction | None:
        """How near the last forecasts of such a job were; None where too little is known."""
        kind = "gpu" if wanted.gpus[0] > 0 else "cpu"
        return self.forecaster.corrections.get(kind)

    def to_bytes(self) -> bytes:
        """For `read_model`."""
        forecaster = self.forecaster
        arrays: dict[str, NDArray[Any]] = {
            "vocabulary.account": self.vocabulary.account,
            "vocabulary.partition": self.vocabulary.partition,
            "typical": self.typical,
        }
        for name in forecaster.tables.order:
            arrays[f"started.{name}"] = forecaster.tables.started[name].astype(np.float32)
            arrays[f"waiting.{name}"] = forecaster.tables.waiting[name].astype(np.float32)
        if forecaster.regression is not None:
            arrays |= {f"regression.{name}": array for name, array in forecaster.regression.arrays().items()}
        told = {
            "format": FORMAT,
            "made_at_s": forecaster.made_at_s,
            "order": list(forecaster.tables.order),
            "corrections": {kind: asdict(found) for kind, found in forecaster.corrections.items()},
            "n_looks": self.n_looks,
            "since_s": self.since_s,
        }
        arrays["told"] = np.array(json.dumps(told))
        file = io.BytesIO()
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
        return file.getvalue()


def make_model(runs: Runs, now_s: float, learner: Learner | None = None) -> Model:
    """Of what was known of a site's runs at `now_s`; what lies later in them is not looked at."""
    runs = known_runs(runs, now_s)
    vocabulary = Vocabulary.of(runs)
    looks = past_looks(runs, vocabulary, now_s)
    past = looks.known_at(now_s)
    forecaster = train(past, TABLE_ORDER, looks.names, learner)
    n = len(past.wait_s)
    typical = np.median(past.looks.features, axis=0) if n else np.zeros(len(looks.names))
    since_s = float(past.looks.at_s.min()) if n else now_s
    return Model(forecaster, vocabulary, typical.astype(float), n, since_s)


def known_runs(runs: Runs, now_s: float) -> Runs:
    """As they were known at `now_s`."""
    here = runs[runs.eligible_s <= now_s]
    columns = {name: getattr(here, name) for name in Runs.__slots__}
    for name in ("start_s", "end_s"):
        columns[name] = np.where(columns[name] <= now_s, columns[name], np.nan)
    return Runs(**columns)


def read_model(body: bytes) -> Model:
    """What `Model.to_bytes` made; raises DatabaseError where it is no model of this version."""
    try:
        with np.load(io.BytesIO(body), allow_pickle=False) as file:
            arrays: Mapping[str, NDArray[Any]] = {name: file[name] for name in file.files}
        told = json.loads(str(arrays["told"]))
        if told["format"] != FORMAT:
            raise DatabaseError(
                f"the stored forecasts have format {told['format']}, not {FORMAT}; make them anew"
            )
        corrections = {
            kind: Correction(
                **{
                    **found,
                    "within": {k: tuple(v) for k, v in found["within"].items()},
                    "spread": tuple(found["spread"]),
                }
            )
            for kind, found in told["corrections"].items()
            if kind in KINDS
        }
        tables = WaitTables(
            order=told["order"],
            started={name: arrays[f"started.{name}"].astype(float) for name in told["order"]},
            waiting={name: arrays[f"waiting.{name}"].astype(float) for name in told["order"]},
        )
        prefix = "regression."
        learned = {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}
        forecaster = Forecaster(
            told["made_at_s"], tables, Regression.of_arrays(learned) if learned else None, corrections
        )
        vocabulary = Vocabulary(arrays["vocabulary.account"], arrays["vocabulary.partition"])
        return Model(forecaster, vocabulary, arrays["typical"], told["n_looks"], told["since_s"])
    except (KeyError, TypeError, ValueError, OSError, zipfile.BadZipFile) as error:
        raise DatabaseError(f"the stored forecasts cannot be read; make them anew: {error!r}") from error
