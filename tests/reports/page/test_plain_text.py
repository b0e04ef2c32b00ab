"""Names are shown unchanged and have no effect as markup or control characters."""

from xml.etree.ElementTree import fromstring

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.reports.page.markup import element, html_text, raw, svg_text
from slurm_gpu.reports.page.plain_text import visible
from tests.reports.page.example_figures import HOSTILE


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("plain", "plain"),
        ("a\nb", "a\\nb"),
        ("\x1b[2J", "\\x1b[2J"),
        ("a\u202eb", "a\\u202eb"),
        ("\ud800", "\\ud800"),
        ("한글", "한글"),
        ("<b>", "<b>"),
    ],
)
def test_control_characters_are_escaped(name: str, shown: str):
    assert visible(name) == shown


@given(st.text(alphabet=st.characters(exclude_categories=[])))
def test_any_text_survives_a_document(text: str):
    drawn = svg_text(element("svg", None, element("title", {"class": text}, text)))
    (title,) = fromstring(drawn.encode())
    # XML does not distinguish kinds of blanks in attributes; the shown names contain only plain spaces.
    assert title.text == (visible(text) or None)
    assert title.get("class") == visible(text)


@pytest.mark.parametrize("name", HOSTILE)
def test_markup_in_a_name_is_escaped_in_html(name: str):
    written = html_text(element("p", {"title": name}, name))
    assert written.count("<") == len(["<!doctype", "<p", "</p"])
    assert written.partition(">\n<p title=")[2].partition(">")[0].count('"') == 2


@pytest.mark.parametrize("content", ["</script>", "</SCRIPT >", "<!--"])
def test_our_own_script_cannot_end_early(content: str):
    with pytest.raises(ValueError, match="cannot be inside"):
        raw("script", {}, content)
