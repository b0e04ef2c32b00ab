"""Whatever is told, there is a verdict, and it is one that can be shown."""

import json
import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_gpu.diagnose.judge import diagnose
from slurm_gpu.diagnose.metric import HOST_METRICS, Metric
from slurm_gpu.diagnose.series import Course, HostCourse, Worker, align
from slurm_gpu.diagnose.verdict import Cause
from slurm_gpu.records import Event
from tests.examples import examples

_LEVELS = st.sampled_from([0.0, 0.004, 0.3, 0.95, 1.0, math.nan])


@st.composite
def told(draw):
    """A few workers, each with any metrics, bins and gaps; levels that jump, noise or none."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n_bins = draw(st.integers(0, 90))
    width_s = draw(st.sampled_from([0.5, 1.0, 8.0, 512.0]))
    metrics = draw(st.sets(st.sampled_from([m for m in Metric if m not in HOST_METRICS])))
    courses, missing = [], []
    for i in range(draw(st.integers(0, 9))):
        worker = Worker(
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
        courses.append(Course(worker=worker, start_s=start_s, width_s=width_s, values=values))
    hosts = [
        HostCourse(node="n1", start_s=1000.0, width_s=10.0, values={metric: random.random(20) * 1e9})
        for metric in draw(st.sets(st.sampled_from(HOST_METRICS)))
    ]
    events = [
        Event(node="n1", boot_id="b", n=0, at_s=1010, kind=kind, device="GPU-0", data={"code": 79})
        for kind in draw(st.sets(st.sampled_from(["xid", "gpu_lost", "clock_step"]), max_size=1))
    ]
    return align(courses, hosts=hosts, missing=missing, events=events)


@settings(max_examples=examples(40))
@given(told(), st.booleans())
def test_there_is_always_a_verdict(series, running):
    verdict = diagnose(series, running=running)
    assert 0 <= verdict.confidence <= 1
    assert set(verdict.culprits) <= set(series.workers)
    assert bool(verdict.why_not) or verdict.cause is not Cause.UNKNOWN
    json.dumps(verdict.to_json(), allow_nan=False)
    for worker in verdict.culprits:
        assert not worker.shared or "gpu_lost" in verdict.kind or "xid" in verdict.kind
