"""Serve the pages, styles and scripts."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from slurm_gpu.monitor.footer import FooterLinks
from slurm_gpu.monitor.page.files import page_files


def page_routes(links: FooterLinks) -> list[Route]:
    """Return a route for each file of the pages, whose footers contain `links`."""
    files = page_files(links)

    async def page_file(request: Request) -> Response:
        """Return the file at the path, status 304 if the browser has it, or 404 if it does not exist."""
        found = files.get(_path(request))
        if found is None:
            return Response("Page not found.\n", 404, media_type="text/plain")
        headers = dict(found.headers)
        if found.etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(found.packed, headers={**headers, "Content-Encoding": "gzip"})
        return Response(found.body, headers=headers)

    return [Route(path, page_file, methods=["GET"]) for path in files]


def _path(request: Request) -> str:
    """Return the request's path relative to the mount point of slurm-gpuweb."""
    path = str(request.scope["path"])
    root = str(request.scope.get("root_path", ""))
    return path[len(root) :] if root and path.startswith(root) else path
