"""The files of the pages, by name: nothing else in this directory can be asked for.

Scripts and style have a version in their path, the digest of all of them: who has loaded them once need not
ask again, and a page never gets one file of an older slurm-gpuweb and one of a newer.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from slurm_gpu.monitor.page.bundle import bundled
from slurm_gpu.monitor.palette import script_module, style_rules
from slurm_gpu.reports.diagnosed.style import page_script, page_style

PAGES: Mapping[str, str] = {"/": "index.html", "/job": "job.html"}
"""By path. All links in them are relative: slurm-gpuweb may be at any path of a reverse proxy."""
FIRST = {"index.html": "start", "job.html": "job"}
"""The module with which each begins; all that it imports are sent with it, as one script."""
_STYLE, _PALETTE = "monitor.css", "palette"
STYLE_AND_ICON = (_STYLE, "icon.svg")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
"""No script and no style but those here, none written into a page, and no text that becomes either."""
DRAWN_POLICY = POLICY.replace("img-src 'self'", "img-src 'self' data:")
"""The same for a page whose pictures are within it."""
DRAWN = {"diagnosis.css": page_style, "diagnosis.js": page_script}
"""What belongs to the pages on diagnoses."""

_MEDIA = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_ALWAYS = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
_KEPT = "public, max-age=31536000, immutable"


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file as it is sent: `packed` is its body with gzip; `headers` are those of either form."""

    body: bytes
    packed: bytes
    headers: Mapping[str, str]

    @property
    def etag(self) -> str:
        """The quoted digest of its body."""
        return self.headers["ETag"]


@cache
def page_files() -> Mapping[str, PageFile]:
    """All of them by path, such as "/" and "/page/0123456789abcdef/start.js"."""
    parts = {name: _read(name) for name in STYLE_AND_ICON}
    parts[_STYLE] = style_rules().encode() + parts[_STYLE]
    parts |= {f"{first}.js": bundled(first, module).encode() for first in FIRST.values()}
    parts |= {name: text().encode() for name, text in DRAWN.items()}
    digest = hashlib.sha256()
    for name, body in sorted(parts.items()):
        digest.update(f"{name} {len(body)}\n".encode() + body)
    version = digest.hexdigest()[:16]
    found = {
        f"/page/{version}/{name}": _file(name, body, {"Cache-Control": _KEPT}) for name, body in parts.items()
    }
    for path, name in PAGES.items():
        text = _read(name).decode().replace("VERSION", version)
        more = {"Cache-Control": "no-cache", "Content-Security-Policy": POLICY}
        found[path] = _file(name, text.encode(), more)
    return found


@cache
def address_of(name: str) -> str:
    """Where a page finds a style, a script or the icon, as "page/0123456789abcdef/monitor.css"."""
    return next(path for path in page_files() if path.endswith(f"/{name}")).removeprefix("/")


def module(name: str) -> str:
    """The text of a module: a file, but for the colours, which the picture without scripts has as well."""
    if name == _PALETTE:
        return script_module()
    return files(__package__).joinpath("script", f"{name}.js").read_text("utf-8")


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
