"""Any data gives a verdict, and the verdict can be shown."""

import json
import math
import warnings

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from slurm_gpu.diagnose.judge import diagnose
from slurm_gpu.diagnose.metric import HOST_METRICS, Metric
from slurm_gpu.diagnose.peers import Groups
from slurm_gpu.diagnose.series import HostSeries, JobWorker, WorkerSeries, align
from slurm_gpu.diagnose.verdict import Cause
from slurm_gpu.wire import Event
from tests.diagnose.faults import OLDER, as_series
from tests.diagnose.training import EVERYTHING, START_S, Training
from tests.examples import examples

_LEVELS = st.sampled_from([0.0, 0.004, 0.3, 0.95, 1.0, math.nan])


@st.composite
def data(draw):
    """Draw a few workers with any metrics, bins, gaps and jumping levels, with or without noise."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n_bins = draw(st.integers(0, 90))
    width_s = draw(st.sampled_from([0.5, 1.0, 8.0, 512.0]))
    metrics = draw(st.sets(st.sampled_from([m for m in Metric if m not in HOST_METRICS])))
    courses, missing = [], []
    for i in range(draw(st.integers(0, 9))):
        worker = JobWorker(
            node=f"n{draw(st.integers(1, 3))}",
            device=f"GPU-{i}",
            index=i,
            shared=draw(st.booleans()) and i % 4 == 0,
        )
        if draw(st.integers(0, 5)) == 0:
            missing.append(worker)
            continue
        values = {}
        for metric in metrics:
            row = np.full(n_bins, draw(_LEVELS))
            row[draw(st.integers(0, 90)) :] = draw(_LEVELS)
            if draw(st.booleans()):
                row = row * (1 + 0.1 * random.standard_normal(n_bins))
            row[random.random(n_bins) < draw(st.sampled_from([0.0, 0.1, 0.9]))] = np.nan
            values[metric] = np.clip(row, 0, 1)
        start_s = 1000.0 + draw(st.integers(-3, 3))
        courses.append(WorkerSeries(worker=worker, start_s=start_s, width_s=width_s, values=values))
    hosts = [
        HostSeries(node="n1", start_s=1000.0, width_s=10.0, values={metric: random.random(20) * 1e9})
        for metric in draw(st.sets(st.sampled_from(HOST_METRICS)))
    ]
    events = [
        Event(node="n1", boot_id="b", n=0, at_s=1010, kind=kind, device="GPU-0", data={"code": 79})
        for kind in draw(st.sets(st.sampled_from(["xid", "gpu_lost", "clock_step"]), max_size=1))
    ]
    return align(courses, hosts=hosts, missing=missing, events=events)


@settings(max_examples=examples(40))
@given(data(), st.booleans())
def test_there_is_always_a_verdict(series, running):
    verdict = diagnose(series, running=running)
    assert 0 <= verdict.confidence <= 1
    assert set(verdict.culprits) <= set(series.workers)
    assert bool(verdict.why_not) or verdict.cause is not Cause.INCONCLUSIVE
    json.dumps(verdict.to_json(), allow_nan=False)
    for worker in verdict.culprits:
        assert not worker.shared or "gpu_lost" in verdict.kind or "xid" in verdict.kind


@settings(max_examples=examples(40))
@example(335315)  # clocks of 0
@given(st.integers(0, 2**32 - 1))
def test_verdicts_of_any_faulty_training_contain_no_nan(seed):
    """Partly slow training runs with gaps, extreme values and any groups cause no warning and no NaN."""
    random = np.random.default_rng(seed)
    n, data = int(random.choice([1, 2, 3, 4, 8, 16])), EVERYTHING if random.random() < 0.5 else OLDER
    training = Training(n=n, per_node=int(random.choice([1, 4])), n_bins=256, metrics=data, seed=seed)
    at = int(random.integers(1, 200))
    for what in random.choice([training.work, training.speed, training.talk], 2):
        what[random.random(n) < random.choice([0.1, 0.5, 1.0]), at:] *= random.choice([0.7, 0.95, 1.2, 2.0])
    values = training.values()
    for metric in random.choice(list(values), 3):
        rows, columns = random.random(n) < random.choice([0.2, 1.0]), slice(*random.choice([0, at, 256], 2))
        values[metric][rows, columns] *= random.choice([np.nan, 0.0, 0.9, 1.1])
    hosts = [
        HostSeries(
            node=node,
            start_s=START_S,
            width_s=10.0,
            values={metric: random.random(26) for metric in HOST_METRICS},
        )
        for node in dict.fromkeys(worker.node for worker in training.workers)
        if random.random() < 0.3
    ]
    of = np.unique(random.integers(0, n, n), return_inverse=True)[1].astype(np.intp)
    groups = Groups(of=of, names=tuple(f"stage {i}" for i in range(of.max() + 1)), source="given")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        series = as_series(training, values, hosts=hosts)
        verdict = diagnose(series, groups=groups if random.random() < 0.5 else None)
    json.dumps(verdict.to_json(), allow_nan=False)
    assert not any("nan" in item.text for item in verdict.evidence)
    assert n > 1 or verdict.cause is not Cause.COMMUNICATION
