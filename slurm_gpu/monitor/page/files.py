"""List the files of the pages by path. No other file in this directory is served.

Paths of scripts and styles contain a digest of all these files. Browsers can therefore cache them
indefinitely, and a page never mixes files of two versions of slurm-gpuweb.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from slurm_gpu.monitor.footer import FooterLinks
from slurm_gpu.monitor.page.bundle import bundled
from slurm_gpu.monitor.palette import script_module, style_rules
from slurm_gpu.reports.diagnosed.style import page_script, page_style

# Files by path. All links are relative, because slurm-gpuweb may be mounted at any path of a reverse proxy.
PAGES: Mapping[str, str] = {"/": "index.html", "/jobs": "jobs.html", "/job": "job.html"}
# The first module of each page. This module and its imports are bundled into one script.
FIRST = {"index.html": "start", "jobs.html": "jobs", "job.html": "job"}
_STYLE, _PALETTE = "monitor.css", "palette"
STYLE_AND_ICONS = (_STYLE, "icon.svg", "icon-attention.svg", "icon-old.svg")
# A script that is not bundled, because it must run before the page is painted.
EARLY = "early"
# The Content-Security-Policy of pages allows only scripts and styles that are files of this server.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
# The Content-Security-Policy of pages with inline pictures.
DRAWN_POLICY = POLICY.replace("img-src 'self'", "img-src 'self' data:")
# The files of diagnosis pages.
DRAWN = {"diagnosis.css": page_style, "diagnosis.js": page_script}

_MEDIA = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_NO_LINKS = FooterLinks()
_ALWAYS = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
_KEPT = "public, max-age=31536000, immutable"


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file. `packed` is the body compressed with gzip, and `headers` applies to both forms."""

    body: bytes
    packed: bytes
    headers: Mapping[str, str]

    @property
    def etag(self) -> str:
        """Return the quoted digest of the body."""
        return self.headers["ETag"]


@cache
def page_files(links: FooterLinks = _NO_LINKS) -> Mapping[str, PageFile]:
    """Return all files by path, such as "/" and "/page/0123456789abcdef/start.js".

    The footer of each page contains `links`.
    """
    parts = {name: _read(name) for name in STYLE_AND_ICONS}
    parts[_STYLE] = style_rules().encode() + parts[_STYLE]
    parts |= {f"{first}.js": bundled(first, module).encode() for first in FIRST.values()}
    parts[f"{EARLY}.js"] = module(EARLY).encode()
    parts |= {name: text().encode() for name, text in DRAWN.items()}
    digest = hashlib.sha256()
    for name, body in sorted(parts.items()):
        digest.update(f"{name} {len(body)}\n".encode() + body)
    version = digest.hexdigest()[:16]
    found = {
        f"/page/{version}/{name}": _file(name, body, {"Cache-Control": _KEPT}) for name, body in parts.items()
    }
    for path, name in PAGES.items():
        text = _assembled(name).replace("VERSION", version).replace("LINKS\n", links.html())
        more = {"Cache-Control": "no-cache", "Content-Security-Policy": POLICY}
        found[path] = _file(name, text.encode(), more)
    return found


@cache
def address_of(name: str) -> str:
    """Return the address of a style, script or icon, such as "page/0123456789abcdef/monitor.css"."""
    return next(path for path in page_files() if path.endswith(f"/{name}")).removeprefix("/")


def module(name: str) -> str:
    """Return the text of a module, which is a file or the generated palette.js."""
    if name == _PALETTE:
        return script_module()
    return files(__package__).joinpath("script", f"{name}.js").read_text("utf-8")


def _assembled(name: str) -> str:
    """Return a page with its parts, which are marked by lines such as "PART tabs"."""

    def part(line: re.Match[str]) -> str:
        text = _read(f"parts/{line[1]}.html").decode()
        return text.replace(f'data-page="{name}"', 'aria-current="page"')

    return re.sub(r"^ *PART (\w+)\n", part, _read(name).decode(), flags=re.MULTILINE)


def _read(name: str) -> bytes:
    return files(__package__).joinpath(name).read_bytes()


def _file(name: str, body: bytes, more: Mapping[str, str]) -> PageFile:
    headers = {
        **_ALWAYS,
        **more,
        "Content-Type": _MEDIA[name.rsplit(".", 1)[1]],
        "ETag": f'"{hashlib.sha256(body).hexdigest()[:20]}"',
        "Vary": "Accept-Encoding",
    }
    return PageFile(body, gzip.compress(body, 9, mtime=0), headers)
