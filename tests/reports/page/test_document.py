"""The page is one file without requests, in which names of users are only text."""

import base64
import hashlib
import json
import re
import zlib
from html.parser import HTMLParser

import pytest

from slurm_gpu.reports.page.document import page_html
from slurm_gpu.reports.page.plain_text import visible
from tests.reports.page.example_figures import HOSTILE, figures, page, parallel, table

_OWN_ELEMENTS = {
    "html",
    "head",
    "meta",
    "title",
    "style",
    "body",
    "a",
    "header",
    "h1",
    "h2",
    "h3",
    "b",
    "p",
    "dl",
    "div",
    "dt",
    "dd",
    "small",
    "nav",
    "ol",
    "ul",
    "li",
    "main",
    "section",
    "svg",
    "rect",
    "path",
    "text",
    "details",
    "summary",
    "table",
    "thead",
    "tbody",
    "tr",
    "th",
    "td",
    "canvas",
    "noscript",
    "fieldset",
    "legend",
    "button",
    "script",
    "footer",
}


class _Seen(HTMLParser):
    """The page as a browser would parse it."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.styles: list[str] = []
        self.texts: list[str] = []
        self._open: str | None = None

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._open = tag
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag):
        self._open = None

    def handle_data(self, data):
        if self._open == "script":
            attributes, text = self.scripts.pop()
            self.scripts.append((attributes, text + data))
        elif self._open == "style":
            self.styles.append(data)
        else:
            self.texts.append(data)


@pytest.fixture(scope="module")
def html() -> str:
    return page_html(page(figures()))


@pytest.fixture(scope="module")
def seen(html: str) -> _Seen:
    parser = _Seen()
    parser.feed(html)
    parser.close()
    return parser


def test_only_elements_and_attributes_of_our_own_come_about(seen: _Seen):
    assert {tag for tag, _ in seen.tags} <= _OWN_ELEMENTS
    names = {name for _, attributes in seen.tags for name in attributes}
    assert not {name for name in names if name.startswith("on") or name in ("src", "style", "srcdoc")}


def test_every_hostile_name_is_text(seen: _Seen):
    cells = set(seen.texts)
    for name in HOSTILE:
        assert visible(name) in cells


def test_control_characters_in_names_are_escaped(html: str):
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", html)
    assert "two\\nlines\\r\\tand a tab" in html
    html.encode("utf-8")


def test_the_policy_allows_our_script_and_style_alone(seen: _Seen):
    (policy,) = (a["content"] for tag, a in seen.tags if tag == "meta" and "Content-Security" in str(a))
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    code = [text for attributes, text in seen.scripts if "type" not in attributes]
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == _hash(*code)
    assert rules["style-src"] == _hash(*seen.styles)
    assert rules["base-uri"] == rules["form-action"] == "'none'"
    assert rules["require-trusted-types-for"] == "'script'"


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def test_the_page_contacts_no_other_host(html: str, seen: _Seen):
    links = [value for _, attributes in seen.tags for name, value in attributes.items() if name == "href"]
    assert links
    assert all(
        re.fullmatch(r"#[a-z0-9-]+|(tables|figures)/[\w-]+\.(csv|parquet|svg|png)", link) for link in links
    )
    style, script = (
        seen.styles[0],
        next(text for attributes, text in seen.scripts if "type" not in attributes),
    )
    assert "url(" not in style
    assert "@import" not in style
    assert set(re.findall(r"https?://[^\"']*", script)) == {
        "http://www.w3.org/2000/svg"
    }  # a name, not an address


def test_the_scripts_data_are_the_runs(seen: _Seen):
    (facts,) = (
        json.loads(text) for attributes, text in seen.scripts if attributes.get("id") == "parallel-facts"
    )
    (data,) = (text for attributes, text in seen.scripts if attributes.get("id") == "parallel-bytes")
    assert facts["runs"] == 300
    assert set(facts["applications"]) <= {*map(visible, HOSTILE), "(not recognised)"}
    columns = sum(2 if axis["wide"] else 1 for axis in facts["axes"]) + 1
    assert len(zlib.decompress(base64.b64decode(data))) == 300 * columns


def test_every_figure_has_its_reading_its_chart_its_table_and_its_files(html: str, seen: _Seen):
    sections = [attributes for tag, attributes in seen.tags if tag == "section"]
    assert [section["id"] for section in sections] == [figure.id for figure in figures()]
    for figure in figures():
        assert f'href="#{figure.id}"' in html
        assert f'href="tables/{figure.table.name}.parquet"' in html
        assert f'href="figures/{figure.id}.png"' in html
    assert sum(tag == "table" for tag, _ in seen.tags) == len(sections)
    assert all(a.get("aria-label") for tag, a in seen.tags if tag == "svg" and a.get("role") == "img")


def test_a_page_alone_has_no_links_to_files_that_are_not_there():
    html = page_html(page(figures(), with_files=False))
    assert "tables/" not in html
    assert "figures/" not in html


def test_a_long_table_shows_its_length(html: str):
    figure = figures(("a",))[0]
    long = table("long", n=list(range(2500)))
    text = page_html(page([type(figure)(id="x", title="X", reading="R.", table=long, chart=figure.chart)]))
    assert "the first 100 of 2,500 rows; tables/long.csv contains all rows" in text
    assert text.count("<td") == 100


def test_the_same_page_is_the_same_text():
    assert page_html(page(figures(runs=50))) == page_html(page(figures(runs=50)))


def test_forty_thousand_runs_fit_into_a_mail():
    figure = figures(("a",))[4]
    lines = parallel(39_470)
    shown = type(figure)(id="runs", title="Runs", reading="R.", table=figure.table, chart=lines)
    assert len(page_html(page([shown]))) < 1_000_000
