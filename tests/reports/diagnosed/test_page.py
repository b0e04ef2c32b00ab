"""The page of a diagnosis is one small file without requests, in which names are only text."""

import base64
import hashlib
import re
import struct
import zlib
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from slurm_gpu.diagnose.metric import Metric
from slurm_gpu.diagnose.series import JobWorker
from slurm_gpu.diagnose.verdict import Cause
from slurm_gpu.reports.diagnosed.document import diagnosis_html
from slurm_gpu.reports.diagnosed.heat import against_peers, scale
from slurm_gpu.reports.diagnosed.page_model import MOST_ROWS, view_of
from slurm_gpu.reports.diagnosed.raster import N_LEVELS, picture, sequential
from slurm_gpu.reports.diagnosed.relations import correlations
from slurm_gpu.reports.diagnosed.time_axis import ticks
from slurm_gpu.reports.page.plain_text import visible
from tests.diagnose.training import START_S, Training
from tests.reports.diagnosed.faulty_trainings import a_slow_gpu, page_model
from tests.reports.page.example_figures import HOSTILE

_OWN_ELEMENTS = {
    "html",
    "head",
    "meta",
    "title",
    "style",
    "body",
    "header",
    "h1",
    "h2",
    "h3",
    "p",
    "dl",
    "div",
    "dt",
    "dd",
    "small",
    "ul",
    "li",
    "main",
    "section",
    "svg",
    "rect",
    "path",
    "text",
    "line",
    "details",
    "summary",
    "table",
    "thead",
    "tbody",
    "tr",
    "th",
    "td",
    "input",
    "label",
    "img",
    "span",
    "bdi",
    "i",
    "script",
    "footer",
}


class Seen(HTMLParser):
    """The page as a browser would parse it."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inside: dict[str, list[str]] = {}
        self.texts: list[str] = []
        self._open = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._open = tag

    def handle_endtag(self, tag):
        self._open = ""

    def handle_data(self, data):
        self.inside.setdefault(self._open, []).append(data)
        if self._open not in ("script", "style"):
            self.texts.append(data)

    @property
    def text(self) -> str:
        """Return the whole text."""
        return " ".join(self.texts)


def test_the_verdict_evidence_and_next_step_are_at_the_top():
    page = page_model(a_slow_gpu())
    text = Seen(diagnosis_html(page)).text
    assert page.verdict.cause is Cause.SLOW
    first, rest = text.split("GPU × time")
    for part in (
        "slow or failing",
        "n2 GPU 5",
        "n2 GPU 5: SM clock 76%, its 15 peers 95%",
        "sbatch --exclude",
        "confidence",
    ):
        assert part in first
    assert "1 of 16 GPUs is framed" in rest


def test_names_of_jobs_are_nothing_but_text():
    page = page_model(a_slow_gpu(), title=HOSTILE[0], about=HOSTILE)
    hostile = tuple(
        JobWorker(node=HOSTILE[row % len(HOSTILE)], device=f"GPU-{row}", index=row)
        for row in range(len(page.case.series.workers))
    )
    series = replace(page.case.series, workers=hostile)
    groups = replace(page.case.groups, names=(HOSTILE[2],), source=HOSTILE[1])
    verdict = replace(page.verdict, culprits=hostile[:3], kind=HOSTILE[0], why_not=HOSTILE, nodes=HOSTILE)
    case = replace(page.case, series=series, groups=groups)
    html = diagnosis_html(replace(page, case=case, verdict=verdict))
    seen = Seen(html)
    assert {tag for tag, _ in seen.tags} <= _OWN_ELEMENTS
    names = {name for _, attributes in seen.tags for name in attributes}
    assert not {name for name in names if name.startswith("on") or name in ("style", "srcdoc")}
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", html)
    for name in HOSTILE:
        assert visible(name) in seen.text


def test_it_makes_no_requests_and_runs_only_its_own_script():
    seen = Seen(diagnosis_html(page_model(a_slow_gpu())))
    sources = [
        value or ""
        for _, attributes in seen.tags
        for name, value in attributes.items()
        if name in ("src", "href")
    ]
    assert sources
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    policy = next(
        a["content"] or "" for tag, a in seen.tags if a.get("http-equiv") == "Content-Security-Policy"
    )
    assert "default-src 'none'" in policy
    for kind in ("script", "style"):
        digest = hashlib.sha256("".join(seen.inside[kind]).encode()).digest()
        assert f"{kind}-src 'sha256-{base64.b64encode(digest).decode()}'" in policy


def test_a_day_of_128_gpus_is_a_small_page():
    training = Training(n=128, n_bins=170, width_s=512.0)
    training.clock[37, 80:] *= 0.8
    assert len(diagnosis_html(page_model(training)).encode()) < 700_000


def test_ten_minutes_of_seconds_of_128_gpus_are_a_small_page_too():
    assert len(diagnosis_html(page_model(Training(n=128, n_bins=600))).encode()) < 1_000_000


def test_suspects_among_a_thousand_gpus_are_drawn():
    training = Training(n=1024, n_bins=40, width_s=64.0)
    training.clock[777, 10:] *= 0.8
    page = page_model(training)
    view = view_of(page.case, page.verdict)
    assert (view.n_rows, view.left_out) == (MOST_ROWS, 1024 - MOST_ROWS)
    assert [worker.name for worker, named in zip(view.workers, view.culprit, strict=True) if named] == [
        "n98 GPU 1"
    ]
    text = Seen(diagnosis_html(page)).text
    assert "Not shown: 768 GPUs without suspicion" in text
    assert "256 of 1024 GPUs in numbers" in text


@pytest.mark.parametrize("n_bins", [0, 1, 7, 4000])
def test_any_length_has_a_page(n_bins):
    assert "verdict" in diagnosis_html(page_model(Training(n=2, n_bins=n_bins)))


def test_a_single_gpu_has_no_peers():
    training = Training(n=1, n_bins=200)
    training.talk[:, 100:] *= 3
    text = Seen(diagnosis_html(page_model(training))).text
    assert "The job has one GPU, so there is nothing to compare it with." in text
    assert "Correlation of metrics over time, from −1 to 1." in text
    for words in ("peers", "All GPUs", "80 % of the GPUs"):
        assert words not in text.split("GPU × time")[1]


def test_correlations_are_left_out_without_data():
    assert "Correlation of metrics" not in Seen(diagnosis_html(page_model(Training(n=2, n_bins=5)))).text
    training = Training(n=2, n_bins=200)
    training.talk[:, 100:] *= 3
    assert "Correlation of metrics" in Seen(diagnosis_html(page_model(training))).text


def test_a_job_without_data_has_only_a_verdict():
    page = page_model(Training(n=2, metrics=()))
    text = Seen(diagnosis_html(page)).text
    assert "Why there is no verdict" in text
    assert "GPU × time" not in text


def test_against_peers_only_outliers_have_a_colour():
    page = page_model(a_slow_gpu(noise=0.0))
    view = view_of(page.case, page.verdict)
    apart = against_peers(view, Metric.SM_CLOCK)
    late = apart[:, view.n_columns // 2 + 2 :]
    row = int(np.flatnonzero(view.culprit)[0])
    assert late[row].mean() == pytest.approx(-0.2, abs=0.02)
    assert np.abs(np.delete(late, row, axis=0)).max() < 0.03


def test_correlations_over_time_and_between_gpus():
    training = Training(n_bins=200)
    training.talk[:, 100:] *= 3
    training.work[5, :] *= 1.3
    page = page_model(training)
    view = view_of(page.case, page.verdict)
    metrics = list(view.values)
    busy, tensor, power = (metrics.index(m) for m in (Metric.SM_ACTIVE, Metric.TENSOR, Metric.POWER))
    found = correlations(view)
    assert found[tensor, busy] > 0.9
    assert found[busy, tensor] > 0.5
    assert found[power, tensor] > 0.9


def test_steady_metrics_have_no_correlation():
    training = Training(n_bins=200)
    training.work[5, :] *= 1.3
    page = page_model(training)
    view = view_of(page.case, page.verdict)
    clock = list(view.values).index(Metric.SM_CLOCK)
    # Small common variations, such as those of the sensors' temperature, would otherwise correlate fully.
    common = 0.9 + 0.005 * np.sin(np.arange(view.n_columns) / 5)
    steady = {metric: np.tile(common, (view.n_rows, 1)) for metric in (Metric.SM_CLOCK, Metric.DRAM)}
    found = correlations(replace(view, values={**view.values, **steady}))
    assert np.isnan(found[clock]).all()
    assert np.isnan(found[:, clock]).all()


def test_a_picture_is_a_png_of_one_pixel_for_each_value():
    levels = np.array([[0.0, 0.5, np.nan], [1.0, 2.0, -1.0]])
    data = base64.b64decode(picture(levels, sequential()).removeprefix("data:image/png;base64,"))
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert struct.unpack(">II", data[16:24]) == (3, 2)
    at = data.index(b"IDAT")
    pixels = zlib.decompress(data[at + 4 : at + 4 + struct.unpack(">I", data[at - 4 : at])[0]])
    full = N_LEVELS - 1
    assert list(pixels) == [0, 0, full // 2, N_LEVELS, 0, full, full, 0]


def test_moments_are_named_by_the_clock_of_the_zone():
    # 2026-11-18 11:06:40 UTC is 20:06:40 in Seoul.
    named = ticks(START_S, START_S + 600, "Asia/Seoul")
    assert [name for _, name in named][:2] == ["20:07", "20:08"]
    assert named[0][0] % 60 == 0
    assert "09:00" in [name for _, name in ticks(START_S, START_S + 86400, "Asia/Seoul")]
    assert [name for _, name in ticks(START_S, START_S + 3, "UTC")][1:3] == ["11:06:41", "11:06:42"]


def test_no_share_is_above_the_whole():
    page = page_model(Training(n=8, n_bins=120, width_s=16.0))
    view = view_of(page.case, page.verdict)
    low, high = scale(view, Metric.UTIL)
    assert (round(low, 2) < 1.0, high) == (True, 1.0)
