"""Browsers receive exactly the listed files, and nothing that a strict policy forbids."""

import gzip
import re
from importlib.resources import files

import pytest

from slurm_gpu.monitor.footer import FooterLinks
from slurm_gpu.monitor.page.bundle import BundleError, bundled, in_order
from slurm_gpu.monitor.page.files import DRAWN, EARLY, FIRST, POLICY, module, page_files

SCRIPTS = sorted({name for first in FIRST.values() for name in in_order(first, module)})
_HTML = ("/", "/jobs", "/job")
_MAKES_MARKUP_OR_CODE = (
    "innerHTML",
    "outerHTML",
    "insertAdjacentHTML",
    "setHTMLUnsafe",
    "parseHTMLUnsafe",
    "createContextualFragment",
    "document.write",
    "DOMParser",
    "srcdoc",
    "eval(",
    "Function(",
)


def test_every_file_is_sent_and_every_module_is_of_a_page():
    here = {item.name for item in files("slurm_gpu.monitor.page").iterdir() if item.is_file()}
    sent = {path.rsplit("/", 1)[1] for path in page_files() if path.startswith("/page/")}
    scripts = {f"{first}.js" for first in FIRST.values()} | {f"{EARLY}.js"}
    assert sent == {name for name in here if name.endswith((".css", ".svg"))} | scripts | DRAWN.keys()
    modules = files("slurm_gpu.monitor.page").joinpath("script").iterdir()
    assert {f"{name}.js" for name in SCRIPTS} | {f"{EARLY}.js"} == {item.name for item in modules} | {
        "palette.js"
    }


@pytest.mark.parametrize("path", _HTML)
def test_a_page_requests_its_script_and_its_style_once(path: str):
    text = page_files()[path].body.decode()
    named = re.findall(r'(?:href|src)="(page/[^"]+)"', text)
    assert all(f"/{each}" in page_files() for each in named)
    assert sorted(each.rsplit(".", 1)[1] for each in named) == ["css", "js", "js", "svg"]
    assert named[1].endswith(f"/{EARLY}.js"), "before the style sheet"


def _bundle(**modules: str) -> str:
    return bundled("first", {name: text + "\n" for name, text in modules.items()}.__getitem__)


def test_modules_become_one_each_once_and_after_what_it_imports():
    text = _bundle(
        first='import { b as c } from "./b.js";\nimport * as a from "./a.js";\nc(a.one);',
        a="export const one = 1;\nconst hidden = 2;",
        b='import { one } from "./a.js";\nexport function b() { return one; }\nexport class B {}',
    )
    assert text == (
        "const $a = (() => {\nconst one = 1;\nconst hidden = 2;\nreturn { one };\n})();\n"
        "const $b = (() => {\nconst { one } = $a;\nfunction b() { return one; }\nclass B {}\n"
        "return { b, B };\n})();\n"
        "const { b: c } = $b;\nconst a = $a;\nc(a.one);\n"
    )


@pytest.mark.parametrize(
    ("other", "complaint"),
    [
        ("export let one = 1;", "a.js: 'export let one = 1;' is an import or export that cannot be bundled"),
        ("export default 1;", "'export default 1;' is an import or export"),
        ('import "./b.js";', "is an import or export"),
        ("export const two = 2;", "first.js imports one, which a.js does not export"),
        (
            'import { x } from "./first.js";\nexport const one = 1;',
            "modules import each other: first → a → first",
        ),
    ],
)
def test_scripts_that_cannot_be_bundled_are_refused(other: str, complaint: str):
    with pytest.raises(BundleError, match=re.escape(complaint)):
        _bundle(first='import { one } from "./a.js";', a=other)


@pytest.mark.parametrize("path", _HTML)
def test_nothing_in_a_page_is_inline_or_from_elsewhere(path: str):
    text = page_files()[path].body.decode()
    assert not re.search(r"<script(?![^>]*\ssrc=)", text)
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=|javascript:", text)
    assert not re.search(r"(?:href|src)=\"(?:https?:)?//", text)
    policy = page_files()[path].headers["Content-Security-Policy"]
    assert policy == POLICY
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none'; script-src 'self';")


@pytest.mark.parametrize("name", SCRIPTS)
def test_no_script_makes_markup_or_code_of_text(name: str):
    text = module(name)
    for word in _MAKES_MARKUP_OR_CODE:
        assert word not in text
    assert "://" not in re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE)


def test_both_forms_are_the_same_and_have_an_etag_of_their_content():
    tags = {path: file.etag for path, file in page_files().items()}
    assert all(gzip.decompress(file.packed) == file.body for file in page_files().values())
    bodies = {file.body for file in page_files().values()}
    assert len(set(tags.values())) == len(bodies)


def test_only_files_with_a_version_in_their_path_are_immutable():
    for path, file in page_files().items():
        kept = "immutable" in file.headers["Cache-Control"]
        assert kept == bool(re.fullmatch(r"/page/[0-9a-f]{16}/[a-z-]+\.(js|css|svg)", path))
        assert file.headers["X-Content-Type-Options"] == "nosniff"


def test_the_description_of_zero_is_valid_for_light_and_dark_themes():
    page = page_files()["/"].body.decode()
    assert "first colour of the scale" in page
    assert "palest" not in page, "on dark ground a scale goes from dark to light"


@pytest.mark.parametrize("path", _HTML)
def test_the_footer_of_every_page_has_the_links_of_the_site(path: str):
    links = FooterLinks("gpu-help@example.org", "https://docs.example.org/?a=1&b=2")
    assert (
        page_files(links)[path]
        .body.decode()
        .count(
            '<p class="links">Contact: <a href="mailto:gpu-help@example.org">gpu-help@example.org</a> · '
            '<a href="https://docs.example.org/?a=1&amp;b=2">Documentation</a></p>\n</footer>'
        )
    )
    assert b"LINKS" not in page_files()[path].body
    assert b'class="links"' not in page_files()[path].body


def test_links_contain_no_markup_of_their_own():
    assert FooterLinks('https://x/"><script>').html() == (
        '<p class="links"><a href="https://x/&quot;&gt;&lt;script&gt;">Contact</a></p>\n'
    )
