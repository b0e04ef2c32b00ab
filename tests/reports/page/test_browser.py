"""Test the page in a real browser: drawing, brushing, and hostile names of users."""

import importlib.resources
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slurm_gpu.reports.figure import Bars, Cdf, Figure, Matrix, TimeSeries
from slurm_gpu.reports.findings import findings
from slurm_gpu.reports.page.document import ReportPage, page_html
from slurm_gpu.reports.page.plain_text import visible
from slurm_gpu.reports.wording import duration
from tests import browsing
from tests.reports.page.example_figures import AXES, HOSTILE, figures, page, parallel, steps
from tests.reports.test_findings import totals as example_totals

_RUNS = 1000
_CHART = parallel(_RUNS)
_NODES = _CHART.values["nNODE"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with browsing.chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write runs.html with only _CHART, and hostile.html with all kinds of figures and names."""
    directory = tmp_path_factory.mktemp("report")
    some = figures(("pytorch",))[4]
    shown = Figure(id="runs", title="Runs", reading="R.", table=some.table, chart=_CHART)
    (directory / "runs.html").write_text(page_html(page([shown])), "utf-8")
    (directory / "findings.html").write_text(page_html(findings_page()), "utf-8")
    (directory / "hostile.html").write_text(page_html(page(figures())), "utf-8")
    return directory


_NOTHING = "There is nothing to draw."


def findings_page() -> ReportPage:
    """Return a page with five findings of usual length, a figure with data, and one of each kind without."""
    some = figures(("pytorch",))[0]
    unknown = np.array([np.nan])
    empty = {
        "Bars": Bars(labels=["a"], series={"x": unknown}, unit="h"),
        "Series": TimeSeries(edges_s=np.array([0.0, 60]), series={"x": unknown}, unit="%"),
        "Matrix": Matrix(rows=["a"], columns=["b"], values=np.array([[np.nan]]), unit="%"),
        "Curves": Cdf(axes=AXES, curves={"nNODE": {"all": steps(unknown)}}),
    }
    drawn = [
        Figure(
            id=f"empty-{title.lower()}",
            title=title,
            reading="There is nothing to draw.",
            table=some.table,
            chart=chart,
        )
        for title, chart in empty.items()
    ]
    whole = replace(page([some, *drawn]), findings=[])
    totals = example_totals()
    kept = [replace(each, figure_id=some.id) for each in findings(totals, replace(totals, days=30.5), "EUR")]
    return replace(whole, findings=kept)


class _Tab(browsing.Tab):
    """A report that was opened."""

    def __init__(self, browser: Any, file: Path, **options: Any) -> None:
        self.url = file.as_uri()
        super().__init__(browser, self.url, **options)

    def drawn(self) -> "_Tab":
        """Wait until the lines are drawn."""
        self.page.locator("#parallel[data-drawn]").wait_for()
        return self

    def chosen_after(self, act: Any) -> int:
        """Return the number of runs that are drawn once `act` has had its effect."""
        before = self.page.evaluate("document.getElementById('parallel').dataset.drawn")
        act()
        # wait_for_function evaluates text, which the page's security policy forbids.
        self.page.locator(f'#parallel:not([data-drawn="{before}"])').wait_for()
        self.page.evaluate(
            "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )
        return int(self.page.evaluate("document.getElementById('parallel').dataset.runs"))


@pytest.fixture
def opened(browser: Any, files: Path) -> Iterator[Any]:
    """Return a function that opens a file in a new tab; close all tabs after the test."""
    tabs: list[_Tab] = []

    def open_tab(name: str, **options: Any) -> _Tab:
        tabs.append(_Tab(browser, files / name, **options))
        return tabs[-1]

    yield open_tab
    for tab in tabs:
        tab.context.close()


@pytest.fixture(scope="module")
def kept(browser: Any, files: Path) -> Iterator[_Tab]:
    tab = _Tab(browser, files / "runs.html")
    yield tab.drawn()
    tab.context.close()


@pytest.fixture
def runs_tab(kept: _Tab) -> _Tab:
    """Open runs.html with all jobs selected, in one tab for all tests that do not change its axes."""
    everything = kept.page.get_by_role("button", name="Show all")
    if everything.is_enabled():
        kept.chosen_after(everything.click)
    return kept


def test_the_page_draws_all_jobs_without_requests(runs_tab: _Tab):
    tab = runs_tab
    assert tab.page.inner_text('[data-part="count"]') == "1,000 of 1,000 jobs (100 %)"
    assert tab.asked == [tab.url]
    assert tab.said == []


def test_limits_choose_exactly_the_jobs_within_them(runs_tab: _Tab):
    tab = runs_tab
    least = tab.page.get_by_label("Nodes from", exact=True)
    assert tab.chosen_after(lambda: least.fill("2")) == int((_NODES >= 2).sum())
    most = tab.page.get_by_label("Nodes to", exact=True)
    assert tab.chosen_after(lambda: most.fill("4")) == int(((_NODES >= 2) & (_NODES <= 4)).sum())
    assert tab.chosen_after(lambda: tab.page.get_by_role("button", name="Show all").click()) == _RUNS


def test_a_gap_is_within_no_limits(runs_tab: _Tab):
    tab = runs_tab
    known = int((~np.isnan(_CHART.values["uGPUcore"])).sum())
    assert known < _RUNS
    assert (
        tab.chosen_after(lambda: tab.page.get_by_label("GPU utilisation from", exact=True).fill("0")) == known
    )


def _axis_at(tab: _Tab, place: int) -> tuple[float, float, float]:
    """(x, upper end, lower end) of an axis on the screen."""
    tab.page.locator('[data-part="overlay"]').scroll_into_view_if_needed()
    box = tab.page.locator(".axis-line").nth(0).bounding_box()
    line = tab.page.locator("g.axis").nth(place).locator("line.axis-line").nth(0).bounding_box()
    assert box is not None
    assert line is not None
    return line["x"], line["y"], line["y"] + line["height"]


def test_an_axis_is_brushed_moved_and_freed_with_the_mouse(runs_tab: _Tab):
    tab = runs_tab
    mouse = tab.page.mouse
    x, upper, lower = _axis_at(tab, 0)

    def drag(start: float, end: float) -> None:
        mouse.move(x, start)
        mouse.down()
        mouse.move(x, (start + end) / 2)
        mouse.move(x, end)
        mouse.up()

    most = int(_NODES.max())
    assert tab.chosen_after(lambda: drag(upper - 2, (upper + lower) / 2)) < _RUNS
    low = float(tab.page.get_by_label("Nodes from", exact=True).input_value())
    high = float(tab.page.get_by_label("Nodes to", exact=True).input_value())
    assert high == most
    chosen = int(tab.page.evaluate("document.getElementById('parallel').dataset.runs"))
    assert chosen == int((low <= _NODES).sum())
    middle = (upper + lower) / 2
    moved = tab.chosen_after(lambda: drag(middle - 30, middle + 30))
    assert moved != chosen
    assert tab.chosen_after(lambda: mouse.click(x, upper + 3)) == _RUNS


def test_axes_are_moved_with_the_keyboard_and_change_their_scale(opened: Any):
    tab = opened("runs.html").drawn()
    tab.page.get_by_role("button", name="Run time: ").focus()
    tab.chosen_after(lambda: tab.page.keyboard.press("ArrowLeft"))
    order = tab.page.evaluate("document.getElementById('parallel').dataset.order").split()
    assert order == ["nNODE", "nGPU", "RUN_h", "WAIT_h", "uGPUcore", "uGPUmem"]
    scale = tab.page.get_by_role("button", name="Scale of Run time")
    before = scale.inner_text()
    tab.chosen_after(scale.click)
    assert {before, scale.inner_text()} == {"log", "linear"}


def test_an_axis_is_moved_by_dragging_its_name(opened: Any):
    tab = opened("runs.html").drawn()
    first = tab.page.get_by_role("button", name="Nodes: ").bounding_box()
    third = tab.page.get_by_role("button", name="Wait: ").bounding_box()
    mouse = tab.page.mouse

    def drag() -> None:
        mouse.move(first["x"] + 20, first["y"] + 8)
        mouse.down()
        mouse.move(third["x"] + 30, third["y"] + 8, steps=5)
        mouse.up()

    tab.chosen_after(drag)
    order = tab.page.evaluate("document.getElementById('parallel').dataset.order").split()
    assert order[:3] == ["nGPU", "WAIT_h", "nNODE"]


def test_applications_are_chosen(runs_tab: _Tab):
    tab = runs_tab
    names = _CHART.application.texts()
    only = tab.page.get_by_role("button", name="Only tensorflow")
    assert tab.chosen_after(only.click) == names.count("tensorflow")
    more = tab.page.get_by_role("checkbox", name="pytorch")
    assert tab.chosen_after(more.check) == names.count("tensorflow") + names.count("pytorch")


_COLOURED = """() => {
  const canvas = document.querySelector('canvas'), all = canvas.getContext('2d');
  const { data } = all.getImageData(0, 70, canvas.width, 280);
  let found = 0;
  for (let k = 0; k < data.length; k += 4) {
    const [red, green, blue] = [data[k], data[k + 1], data[k + 2]];
    if (Math.max(red, green, blue) - Math.min(red, green, blue) > 40) found++;
  }
  return found;
}"""
_PICTURE = """() => {
  const canvas = document.querySelector('canvas');
  const { data } = canvas.getContext('2d').getImageData(0, 70, canvas.width, 280);
  return data.reduce((sum, value) => (sum * 31 + value) | 0, 0);
}"""


def test_selected_lines_are_drawn_and_others_are_grey(runs_tab: _Tab):
    tab, coloured = runs_tab, _COLOURED
    every = tab.page.evaluate(coloured)
    assert every > 10_000
    tab.chosen_after(lambda: tab.page.get_by_label("Nodes from", exact=True).fill("24"))
    some = tab.page.evaluate(coloured)
    tab.chosen_after(lambda: tab.page.get_by_label("Nodes from", exact=True).fill("25"))
    assert 0 == tab.page.evaluate(coloured) < some < every


def test_a_brush_there_and_back_leaves_the_picture_as_it_was(runs_tab: _Tab):
    """Only changed lines are drawn, and removed ones must leave no trace."""
    least = runs_tab.page.get_by_label("Wait from, hours", exact=True)
    runs_tab.chosen_after(lambda: least.fill("0.5"))
    first = runs_tab.page.evaluate(_PICTURE)
    for limit in ("0.2", "3", "0.01", "0.5"):
        runs_tab.chosen_after(lambda limit=limit: least.fill(limit))
    assert runs_tab.page.evaluate(_PICTURE) == first


def test_hostile_names_are_text_and_do_nothing(opened: Any):
    tab = opened("hostile.html").drawn()
    cells = tab.page.evaluate("[...document.querySelectorAll('td')].map((cell) => cell.textContent)")
    labels = tab.page.evaluate(
        "[...document.querySelectorAll('.applications bdi')].map((name) => name.textContent)"
    )
    for name in HOSTILE:
        assert visible(name) in cells
    assert set(labels) <= {*map(visible, HOSTILE), "(not recognised)"}
    assert tab.page.evaluate("document.scripts.length") == 3  # facts, bytes and the program
    assert tab.page.evaluate("document.images.length") == 0
    assert tab.asked == [tab.url]
    assert tab.said == []


def test_a_script_or_style_that_got_in_would_not_run(opened: Any):
    tab = opened("runs.html").drawn()
    assert tab.blocks_injected_content()


def test_without_javascript_lines_are_static(opened: Any):
    tab = opened("runs.html", java_script_enabled=False)
    assert tab.page.locator("noscript svg").is_visible()
    assert tab.page.locator("noscript path").count() > 10


def test_nothing_is_wider_than_the_screen(opened: Any):
    tab = opened("hostile.html").drawn()
    assert tab.is_within_its_width(1280, 768, 390)


def test_it_is_dark_where_the_screen_is_and_light_on_paper(opened: Any):
    tab = opened("runs.html", color_scheme="dark").drawn()
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = tab.page.evaluate(ground)
    tab.page.emulate_media(media="print", color_scheme="dark")
    assert dark != tab.page.evaluate(ground) == "rgb(244, 246, 248)"
    assert tab.page.locator('[data-part="controls"]').is_hidden()


def test_every_control_has_a_name_and_every_figure_a_heading(opened: Any):
    tab = opened("hostile.html").drawn()
    assert tab.nameless_controls() == 0
    assert tab.page.locator("main section h3").count() == tab.page.locator("main section").count()


def test_the_plot_and_the_sentences_have_the_same_durations(runs_tab: _Tab):
    hours = [0, 1 / 3600, 59.4 / 3600, 148 / 3600, 0.25, 1, 3 + 5 / 60, 23.999, 24, 51.4, 526, 9000]
    words = importlib.resources.files("slurm_gpu.reports.page.script").joinpath("words.js").read_text("utf-8")
    empty = runs_tab.context.new_page()  # the report's security policy forbids other scripts
    shown = empty.evaluate(f"(hours) => {{ {words}; return hours.map(duration); }}", hours)
    empty.close()
    assert shown == [*map(duration, hours)]


def test_the_findings_are_on_the_first_screen(opened: Any):
    tab = opened("findings.html", viewport={"width": 1280, "height": 800})
    rows = tab.page.locator(".findings > div")
    assert [rows.nth(i).locator("dt").inner_text() for i in range(rows.count())] == [
        "Used",
        "Wasted",
        "Waited",
        "Who",
        "What changed",
    ]
    last = rows.nth(4).bounding_box()
    assert last is not None
    assert last["y"] + last["height"] <= 800
    for i in range(5):
        target = rows.nth(i).locator("a").get_attribute("href")
        assert tab.page.locator(target).count() == 1, "each finding links to its figure"


def test_no_figure_has_an_empty_body(opened: Any):
    """A figure without data is one line in its chapter; its link at the top is left out."""
    tab = opened("findings.html")
    assert tab.page.locator("main section").count() == 1
    assert tab.page.locator("main section svg.wide rect[class^=f-s]").count() > 0
    lines = tab.page.locator("main .empty li")
    assert [lines.nth(i).inner_text() for i in range(lines.count())] == [
        f"{title}: {_NOTHING}" for title in ("Bars", "Series", "Matrix", "Curves")
    ]
    assert "Matrix" not in tab.page.locator("nav").inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["findings.html", "runs.html", "hostile.html"])
def test_a_report_satisfies_wcag(opened: Any, name: str, scheme: str):
    assert opened(name, color_scheme=scheme).wcag_violations() == []
