"""Training runs resampled from traced steps contain only traced values, with the requested imbalance."""

from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from bench.diagnose_resample import BLOCK, KINDS, Resampled, read_trace, resampled
from slurm_gpu.diagnose.verdict import Cause


def write_trace(
    path: Path,
    *,
    steps: int = 8,
    microbatches: int = 4,
    stages: int = 2,
    replicas: int = 4,
    last: float = 1.6,
) -> None:
    """Write passes of 0.1 s forward and 0.2 s backward (± 3 %); the last stage takes `last` times as long."""
    places = np.indices((steps, microbatches, stages, replicas)).reshape(4, -1)
    noise = np.random.default_rng(1).lognormal(0, 0.03, (2, places.shape[1]))
    more = np.where(places[2] == stages - 1, last, 1.0)
    columns = {
        name: np.tile(place, 2)
        for name, place in zip(("step", "mb_id", "stage", "dp_rank"), places, strict=True)
    }
    columns["duration"] = (noise * more * np.array([[0.1], [0.2]])).ravel()
    optype = ["forward-compute"] * places.shape[1] + ["backward-compute"] * places.shape[1]
    path.parent.mkdir(exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.table({**columns, "optype": optype}), path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("traces")
    write_trace(found / "straggler" / "trace-ST.parquet")
    write_trace(found / "straggler" / "trace-SE.parquet", microbatches=8, replicas=8, last=1.0)
    return found


def test_a_trace_is_read_by_step_microbatch_stage_and_replica(folder: Path) -> None:
    trace = read_trace(folder / "straggler" / "trace-ST.parquet")
    assert trace.seconds.shape == (2, 8, 4, 2, 4)
    by_stage = np.median(trace.seconds, axis=(1, 2, 4))
    assert by_stage[:, 1] / by_stage[:, 0] == pytest.approx(1.6, rel=0.05)
    assert np.median(trace.relative(), axis=(1, 2, 4)) == pytest.approx(1.0)


def test_a_trace_that_lacks_an_operation_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "some" / "trace.parquet"
    write_trace(path)
    table = pyarrow.parquet.read_table(path)
    pyarrow.parquet.write_table(table.slice(1), path)
    with pytest.raises(ValueError, match="not every step"):
        read_trace(path)


def test_consecutive_steps_stay_together() -> None:
    relative = np.broadcast_to(np.arange(20.0)[:, None, None, None], (2, 20, 1, 1, 3))
    drawn = Resampled(relative, 1, 5, np.random.default_rng(3)).draw(12)[0, :, 0, 0, 0]
    assert drawn.shape == (12,)
    for begin in range(0, 12, BLOCK):
        assert np.array_equal((drawn[begin : begin + BLOCK] - drawn[begin]) % 20, np.arange(BLOCK))


@pytest.mark.parametrize("kind", sorted(set(KINDS)))
def test_streams_and_timings_belong_to_one_training(kind: str, folder: Path) -> None:
    case = resampled(1, KINDS.index(kind), folder)
    again = resampled(1, KINDS.index(kind), folder)
    assert case.steps is not None
    assert again.steps is not None
    assert np.array_equal(case.steps.forward, again.steps.forward)
    stages = np.nanmedian(case.steps.backward, axis=(0, 2, 3))
    ranks = np.nanmedian(case.steps.backward, axis=(2, 3))
    if case.fault is None:
        assert stages == pytest.approx(stages[0], rel=0.06)
    elif kind == "stage":
        assert stages[-1] / stages[0] - 1 == pytest.approx(case.fault.size, abs=0.08)
    elif kind in ("slow GPU", "shard"):
        assert case.fault.cause in (Cause.SLOW, Cause.IMBALANCE)
        worst = np.unravel_index(ranks.argmax(), ranks.shape)
        assert case.steps.ranks[worst] in case.fault.culprits
