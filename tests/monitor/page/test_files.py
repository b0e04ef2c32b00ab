"""What browsers are sent: exactly the files that lie there, and nothing that a strict policy forbids."""

import gzip
import re
from importlib.resources import files

import pytest

from slurm_gpu.monitor.page.files import FIRST, POLICY, imported, page_files, script_names

_HTML = ("/", "/job")
_MAKES_MARKUP_OR_CODE = (
    "innerHTML", "outerHTML", "insertAdjacentHTML", "setHTMLUnsafe", "parseHTMLUnsafe",
    "createContextualFragment", "document.write", "DOMParser", "srcdoc", "eval(", "Function(",
)  # fmt: skip


def test_every_file_is_sent_and_loaded_by_a_page():
    here = {item.name for item in files("slurm_gpu.monitor.page").iterdir() if item.is_file()}
    sent = {path.rsplit("/", 1)[1] for path in page_files() if path.startswith("/page/")}
    assert sent == {name for name in here if name.endswith((".css", ".svg"))} | set(script_names())
    assert {name for first in FIRST.values() for name in imported(first)} == set(script_names())


@pytest.mark.parametrize("path", _HTML)
def test_a_page_names_each_module_that_it_loads(path: str):
    text = page_files()[path].body.decode()
    named = set(re.findall(r'(?:href|src)="(page/[^"]+)"', text))
    assert all(f"/{each}" in page_files() for each in named)
    first = next(each for each in named if each.endswith(("/start.js", "/job.js"))).rsplit("/", 1)[1]
    assert {each.rsplit("/", 1)[1] for each in named if each.endswith(".js")} == set(imported(first))


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


@pytest.mark.parametrize("name", script_names())
def test_no_script_makes_markup_or_code_of_text(name: str):
    text = files("slurm_gpu.monitor.page").joinpath("script", name).read_text("utf-8")
    for word in _MAKES_MARKUP_OR_CODE:
        assert word not in text
    assert "://" not in re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE)


def test_both_forms_are_the_same_and_have_an_etag_of_their_content():
    tags = {path: file.etag for path, file in page_files().items()}
    assert all(gzip.decompress(file.packed) == file.body for file in page_files().values())
    bodies = {file.body for file in page_files().values()}
    assert len(set(tags.values())) == len(bodies)


def test_what_has_a_version_in_its_path_may_be_kept_for_ever():
    for path, file in page_files().items():
        kept = "immutable" in file.headers["Cache-Control"]
        assert kept == bool(re.fullmatch(r"/page/[0-9a-f]{16}/[a-z]+\.(js|css|svg)", path))
        assert file.headers["X-Content-Type-Options"] == "nosniff"
