"""The verdict at the top of the page: suspects, period, evidence, and the next step."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree.ElementTree import Element

from slurm_gpu.diagnose.verdict import Cause, Evidence
from slurm_gpu.reports.diagnosed.page_model import DiagnosisPageModel
from slurm_gpu.reports.diagnosed.words import clock_time
from slurm_gpu.reports.page.markup import append, element, items
from slurm_gpu.text.cells import span
from slurm_gpu.text.units import few

_MOST_NAMES = 12
_SIGNS = {
    Cause.IMBALANCE: ("⚖", "uneven"),
    Cause.SLOW: ("▼", "bad"),
    Cause.COMMUNICATION: ("⇄", "bad"),
    Cause.STARVATION: ("◌", "uneven"),
    Cause.HANG: ("■", "bad"),
    Cause.HEALTHY: ("✓", "good"),
    Cause.INCONCLUSIVE: ("?", "unknown"),
}


def verdict_card(page: DiagnosisPageModel) -> Element:
    """Return the section with the verdict."""
    verdict = page.verdict
    sign, tone = _SIGNS[verdict.cause]
    head = element(
        "h2", {"id": "verdict-title"}, element("span", {"class": "sign", "aria-hidden": "true"}, sign)
    )
    append(head, verdict.cause.value, element("small", None, f" {verdict.kind}") if verdict.kind else None)
    facts = element("dl", {"class": "facts"})
    for name, value in _facts(page):
        append(facts, element("div", None, element("dt", None, name), element("dd", None, value)))
    card = element(
        "section", {"id": "verdict", "class": f"verdict {tone}", "aria-labelledby": "verdict-title"}, head
    )
    if verdict.cause is not Cause.INCONCLUSIVE:
        append(card, _sureness(verdict.confidence, suspect=verdict.suspect))
    append(card, facts)
    if verdict.evidence:
        append(card, element("h3", None, "Evidence"), _evidence(verdict.evidence))
    if verdict.why_not:
        title = "Why there is no verdict" if verdict.cause is Cause.INCONCLUSIVE else "Limits"
        append(card, element("h3", None, title), items("limits", verdict.why_not))
    append(
        card,
        element(
            "div", {"class": "next"}, element("h3", None, "Next step"), element("p", None, verdict.next_step)
        ),
    )
    return card


def _sureness(confidence: float, *, suspect: bool) -> Element:
    meter = element(
        "svg",
        {"class": "meter", "width": "120", "height": "8", "aria-hidden": "true"},
        element("rect", {"class": "f-grid", "width": "120", "height": "8", "rx": "4"}),
        element("rect", {"class": "sure", "width": f"{120 * confidence:.0f}", "height": "8", "rx": "4"}),
    )
    words = f"{confidence:.0%} confidence"
    words += "; this is a suspicion, so do not drain nodes because of it" if suspect else ""
    return element("p", {"class": "sureness"}, meter, words)


def _facts(page: DiagnosisPageModel) -> list[tuple[str, str]]:
    verdict, series = page.verdict, page.case.series
    facts = []
    if verdict.culprits:
        facts.append(("Suspected", few([worker.name for worker in verdict.culprits], _MOST_NAMES)))
    elif verdict.roles:
        label = "Most work (no fault)" if verdict.cause is Cause.IMBALANCE else "Different from peers"
        facts.append((label, few(verdict.roles, _MOST_NAMES)))
    if verdict.nodes:
        facts.append(("Nodes", few(verdict.nodes, _MOST_NAMES)))
    if verdict.since_s is not None:
        facts.append(("Since", clock_time(verdict.since_s, page.timezone)))
    if verdict.until_s is not None:
        facts.append(("Until", clock_time(verdict.until_s, page.timezone)))
    facts.append(("Data", f"{page.by}: {span(series.end_s - series.start_s)}{page.coverage_text}"))
    if series.offsets_s:
        apart = (f"{node} {seconds:+.0f} s" for node, seconds in series.offsets_s.items())
        facts.append(("Corrected clocks", few(apart, _MOST_NAMES)))
    return facts


def _evidence(items: Sequence[Evidence]) -> Element:
    listed = element("ul", {"class": "evidence"})
    for item in items:
        append(listed, element("li", None, element("span", None, item.text), _bars(item)))
    return listed


def _bars(item: Evidence) -> Element | None:
    """Return bars of the value and the expected value; None if they are not comparable."""
    most = max(item.value, item.expected)
    if min(item.value, item.expected) < 0 or not most > 0:
        return None
    svg = element("svg", {"class": "bars", "width": "100%", "height": "15", "aria-hidden": "true"})
    for y, tone, value in ((0, "is", item.value), (8, "expected", item.expected)):
        attributes = {
            "class": tone,
            "y": str(y),
            "width": f"{100 * value / most:.1f}%",
            "height": "6",
            "rx": "2",
        }
        append(svg, element("rect", attributes))
    return svg
