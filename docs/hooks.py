"""Extend mkdocs: pages from other folders, pictures in the colour of the text, no outside requests.

mkdocs calls the functions by their names (https://www.mkdocs.org/user-guide/plugins/#events).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

_ROOT = Path(__file__).resolve().parents[1]
# Pages of the repository that are also pages of the site.
_OUTSIDE = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "lab/README.md": "lab.md",
    **{log: log for log in (f"bench/results/{path.name}" for path in (_ROOT / "bench/results").glob("*.md"))},
}
_PICTURE = re.compile(r'<img alt="(?P<alt>[^"]*)" src="(?P<source>images/[^"]+\.svg)"[^>]*>')
# Requests to other hosts that a browser makes without a click.
_REQUEST = re.compile(
    r"""<(?:script|img|iframe|source|audio|video)\b[^>]*\bsrc=["']?(?:https?:)?//[^"'\s>]+"""
    r"""|<link\b(?![^>]*\brel=["']?(?:canonical|prev|next)\b)[^>]*\bhref=["']?(?:https?:)?//[^"'\s>]+"""
    r"""|(?:@import\s+|url\()["']?(?:https?:)?//[^"'\s)]+""",
    re.IGNORECASE,
)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages from other folders of the repository."""
    for source, page in _OUTSIDE.items():
        text = (_ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=_as_on_site(text, Path(source), Path(page))))
    return files


def _as_on_site(text: str, source: Path, page: Path) -> str:
    """Replace links to docs/ and CONTRIBUTING.md with links between pages of the site."""
    root, site = ("../" * len(path.parent.parts) for path in (source, page))
    text = text.replace(f"]({root}docs/", f"]({site}")
    return text.replace(f"]({root}CONTRIBUTING.md", f"]({site}contributing.md")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Point links to pages from other folders at their location on the site."""
    for source, page in _OUTSIDE.items():
        markdown = markdown.replace(f"](../{source}", f"]({page}")
        markdown = markdown.replace(f"]({source}", f"]({page}")
    return markdown


def on_page_content(html: str, **_: Any) -> str:
    """Inline pictures, so that they take the colour of the text, and unescape bars in code."""

    def inline(match: re.Match[str]) -> str:
        svg = (_ROOT / "docs" / match["source"]).read_text(encoding="utf-8")
        return svg[svg.index("<svg") :].replace("<svg", f'<svg role="img" aria-label="{match["alt"]}"', 1)

    html = _PICTURE.sub(inline, html)
    # Forges need a backslash before a bar of code in a table; Python's Markdown keeps it.
    return re.sub(r"(?<!</span>)<code>[^<]*</code>", lambda match: match[0].replace("\\|", "|"), html)


def on_page_context(context: Any, page: Any, **_: Any) -> Any:
    """Fail if a block of code was not recognised."""
    if "```" in re.sub(r"<code.*?</code>", "", page.content, flags=re.DOTALL):
        raise PluginError(f"{page.file.src_uri}: a line with ``` is in the text")
    return context


def on_post_build(config: Any) -> None:
    """Fail if a page would load anything from another host."""
    asked = [
        f"{path.relative_to(config['site_dir'])}: {match[0]}"
        for path in sorted(Path(config["site_dir"]).rglob("*"))
        if path.suffix in (".html", ".css")
        for match in _REQUEST.finditer(path.read_text(encoding="utf-8"))
    ]
    if asked:
        raise PluginError("the site would load from other hosts:\n" + "\n".join(asked))
