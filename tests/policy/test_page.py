"""The policy page shows users all limits that apply to them, as text, Markdown and HTML."""

from __future__ import annotations

import datetime as dt
import html.parser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from slurm_gpu.policy.pages.html import render_html
from slurm_gpu.policy.pages.markdown import render_markdown
from slurm_gpu.policy.pages.page import PagePart, PolicyPage, Section, make_page
from slurm_gpu.policy.pages.policy_json import to_json
from slurm_gpu.policy.pages.text import render_text
from tests import browsing

from .checking import check
from .test_language import WHOLE
from .test_owners import WHOLE as OWNERS_WHOLE

EXPECTED = (
    "job  (for all: every job)",
    "    w",
    "    at most 4 GPUs of type a100 per job",
    "    at most 0.5 GPUs of type v100 per job",
    "    at most 4 GPUs per node per job",
    "    at most 4 nodes per job",
    "    at most 4 CPUs from 0 GPUs on per job",
    "    at most 64 CPUs from 2 GPUs on per job",
    "    at most 1.5T of memory per job",
    "    at most 8 CPUs per GPU per job",
    "    at most 64G of memory per GPU per job",
    "    at most 100 array tasks per job",
    "    at most 256 MPI tasks per job",
    "    time limit at most 7d from 1 GPU on",
    "    time limit at most 2d from 8 GPUs on",
    "    time limit at most 12h from 32 GPUs on",
    "    only partitions gpu, Long",
    "    only GPU types a100",
    "    only QOS sg-long, normal",
    "    at most 96 GPU-hours per job",
    "    at most 800 CPU-hours per job",
    "    at most 900 billing-hours per job",
    "    Only for jobs that may run on Monday, Tuesday and Saturday from 22:30 to 06:00 the",
    "    next day, between their earliest start (now or --begin) and their time limit.",
    "    Only for interactive jobs (srun, salloc).",
    "    Exception from 2026-12-01 until 2026-12-05 for alice: at most 8 GPUs of type a100",
    "    per job, time limit at most 9d (w)",
    "",
    "sum  (for all: every job)",
    "    w",
    "    at most 16 GPUs running and pending per user",
    "    at most 8 GPUs of type a100 running per user",
    "    at most 6 GPUs pending per user",
    "    at most 5 jobs pending per user",
    "    at most 20 jobs running and pending per user",
    "    at most 10 jobs running per user",
    "    at most 640 CPUs running and pending per user",
    "    at most 320 CPUs running per user",
    "    at most 4T of memory running and pending per user",
    "    at most 2T of memory running per user",
    "    at most 8 nodes running per user",
    "    at most 12.5 GPU-hours a day per user",
    "    at most 500 GPU-hours a week per user",
    "    at most 4,000 CPU-hours in 30 days per user",
    "    at most 70,000 billing-hours a year per user",
    "    Jobs that exceed it together wait; a job that exceeds it by itself is refused.",
)
BUNDLES = (
    "train  (jobs with GPUs of type a100)",
    "    Share of 1 GPU: 8 CPUs and 64G of memory.",
    "    at most 8 CPUs for each GPU",
    "    at most 64G of memory for each GPU",
    "    Missing options are filled in; larger jobs are accepted with a warning.",
    "",
    "prep  (jobs without GPUs)",
    "    GPU nodes are for GPU jobs.",
    "    at most 16 CPUs",
    "    only in cpu",
    "    On trial: larger jobs are only counted.",
)


OWNERS = """\
Owners of GPUs. Idle GPUs of an owner are lent to other jobs until the owner needs them.

vision  (account vision, cv)
    It owns 12 GPUs; its own jobs run in QOS sg-vision.
    sbatch --qos=sg-scavenger borrows idle GPUs.
    The GPUs return within 10m when the owner needs them. The job is then requeued; srun
    and salloc jobs are cancelled.
"""


def page_of(text: str) -> PolicyPage:
    return make_page(check(text))


def one_rule(name: str, why: str, contact: str | None = None) -> PolicyPage:
    section = Section(name, why, why, limits=(why,), remarks=(why,), exceptions=(why,))
    others = (PagePart("bundle", "Bundles", "Their opening.", (section,)),)
    return PolicyPage(rules=(section,), others=others, contact=contact)


class Reader(html.parser.HTMLParser):
    """Collect the text that a browser shows and the tags that it interprets."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tags: set[str] = set()

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)


def test_a_terminal_shows_every_limit_with_its_reason() -> None:
    text = render_text(page_of(WHOLE))
    assert "\n".join(EXPECTED) in text
    assert "\n".join(BUNDLES) in text
    assert max(map(len, text.splitlines())) <= 88


def test_conditions_of_a_group_are_described() -> None:
    text = "version: 1\ngroups: {some: {qos: [long], unix_groups: [undergrad]}}\nrules:\n"
    text += "  - {id: a, for: some, per: job, why: W., limits: {gpus: 1}}\n"
    assert "(for some: UNIX groups undergrad and QOS long)" in render_text(page_of(text))


@pytest.mark.parametrize("policy", [WHOLE, OWNERS_WHOLE], ids=["rules", "owners"])
def test_on_a_narrow_terminal_lines_break_between_words(policy: str) -> None:
    wide, narrow = render_text(page_of(policy)), render_text(page_of(policy), 40)
    assert narrow.split() == wide.split()
    assert all(len(line) <= 40 or len(line.split()) == 1 for line in narrow.splitlines())


def test_the_page_names_owners_and_how_to_borrow() -> None:
    text = render_text(page_of(OWNERS_WHOLE))
    assert OWNERS in text
    assert max(map(len, text.splitlines())) <= 88
    data = to_json(check(OWNERS_WHOLE))
    assert data["owners"]["nlp"] == {
        "accounts": ["nlp"],
        "gpus": 4,
        "qos": "sg-own-nlp",
        "lend_in": "sg-scavenger",
        "return_within_s": 1800,
    }


@pytest.mark.parametrize("policy", [WHOLE, OWNERS_WHOLE], ids=["rules", "owners"])
@pytest.mark.parametrize("render", [render_markdown, render_html])
def test_markdown_and_html_have_the_same_content(render: object, policy: str) -> None:
    assert callable(render)
    page = page_of(policy)
    reader = Reader()
    text = render(page)
    reader.feed(text if render is render_html else MarkdownIt().render(text))
    shown = " ".join(" ".join(reader.texts).split())
    for section in (*page.rules, *(section for part in page.others for section in part.sections)):
        for text in (section.name, section.whom, section.why, *section.limits, *section.remarks):
            assert text in shown
        assert all(exception in shown for exception in section.exceptions)


HOSTILE = [
    "<script>alert(1)</script>",
    "**bold** _it_ `code`",
    "[a](javascript:x)",
    "1. one",
    "# no heading",
    "- no",
    "a | b",
    "&lt;",
    "~~~",
    "> quote",
    "https://example.org <b>",
    "+ plus",
    "=====",
    "a\\",
    "![x](y)",
    "***",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_policy_texts_are_never_interpreted_as_markup(text: str) -> None:
    for shown, tags in (shown_as_html(text), shown_as_markdown(text)):
        assert shown.count(" ".join(text.split())) >= 11
        assert not tags & {"script", "b", "strong", "img", "blockquote", "ol", "hr", "table"}


@given(st.text(alphabet=st.characters(exclude_categories=["Cs", "Cc"]), min_size=1).filter(str.strip))
def test_any_text_is_shown_unchanged(text: str) -> None:
    for shown, _ in (shown_as_html(text), shown_as_markdown(text)):
        assert " ".join(text.split()) in shown


def shown_as_html(text: str) -> tuple[str, set[str]]:
    return _shown(render_html(one_rule("r", text, text)))


def shown_as_markdown(text: str) -> tuple[str, set[str]]:
    return _shown(
        MarkdownIt("gfm-like", {"linkify": False}).render(render_markdown(one_rule("r", text, text)))
    )


def _shown(document: str) -> tuple[str, set[str]]:
    reader = Reader()
    reader.feed(document)
    return " ".join("".join(reader.texts).split()), reader.tags


def test_each_rule_has_an_anchor() -> None:
    assert '<h2 id="rule-sum"><code>sum</code></h2>' in render_html(page_of(WHOLE))


def test_json_has_every_part() -> None:
    data = to_json(check(WHOLE))
    job, total = data["rules"]
    assert job["limits"]["gpus"] == {"a100": 4.0, "v100": 0.5}
    assert job["limits"]["memory_mib"] == 1536 * 1024
    assert job["limits"]["walltime_s"][0] == {"gpus": 1.0, "limit": 604800}
    assert job["limits"]["partitions"] == ["gpu", "Long"]
    assert (job["kind"], job["when"]) == (
        "interactive",
        {"days": [0, 1, 5], "from_min": 1350, "to_min": 1800, "at": "run"},
    )
    assert job["limits"]["gpu_hours"] == 96
    assert total["limits"]["gpu_hours"] == {"day": 12.5, "week": 500}
    assert total["limits"]["cpu_hours"] == {"30d": 4000}
    assert total["when"] is None
    assert data["bundles"]["prep"]["cpus"] == 16
    assert data["exceptions"][0]["limits"]["walltime_s"] == 9 * 86400


def test_expired_exceptions_are_left_out() -> None:
    text = (
        "version: 1\ngroups: {all: {}}\n"
        "rules: [{id: a, for: all, per: job, why: w, limits: {cpus: 2000}}]\n"
        "exceptions: [{rule: a, user: bob, limits: {cpus: 4000}, until: 2026-11-20, why: w}]\n"
    )
    last, after = dt.date(2026, 11, 20), dt.date(2026, 11, 21)
    assert make_page(check(text), (), last).rules[0].exceptions == (
        "Exception until 2026-11-20 for bob: at most 4,000 CPUs per job (w)",
    )
    assert make_page(check(text), (), after).rules[0].exceptions == ()


def test_the_html_page_satisfies_wcag(tmp_path: Path) -> None:
    page = tmp_path / "policy.html"
    page.write_text(render_html(page_of(WHOLE)), "utf-8")
    with browsing.chromium() as browser:
        for scheme in ("light", "dark"):
            assert browsing.Tab(browser, page.as_uri(), color_scheme=scheme).wcag_violations() == []
