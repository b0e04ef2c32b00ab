"""Request a one-time link from slurm-gpuweb as the calling user, for `slurm-gpu web`."""

from __future__ import annotations

import json
import ssl
from dataclasses import dataclass

import httpx

from slurm_gpu import munge
from slurm_gpu.config.site import SiteConfig
from slurm_gpu.errors import NotAllowedError, OutsideError, UsageError

_TIMEOUT_S = 20.0
_PATH = "/signin"


@dataclass(frozen=True, slots=True)
class Link:
    """A link that can be used once, no later than `until_s` by the wall clock of slurm-gpuweb's host."""

    url: str
    until_s: int


def ask_for_link(config: SiteConfig, timeout_s: float = _TIMEOUT_S) -> Link:
    """Return a link to slurm-gpuweb for the calling user.

    Raise UsageError if slurm-gpu.yaml names no slurm-gpuweb, MungeError if no credential is available,
    NotAllowedError if slurm-gpuweb refuses to issue a link, and OutsideError if it does not answer.
    """
    web = config.web
    if web is None:
        raise UsageError(
            "web: is missing in slurm-gpu.yaml; write slurm-gpuweb's address, such as https://gpu.example.org"
        )
    body = json.dumps({"web": web}).encode()
    credential = munge.encode(munge.request_digest("POST", _PATH, body), config.munge_socket)
    headers = {"Authorization": f"MUNGE {credential}", "Content-Type": "application/json"}
    try:
        # Use the system's CA certificates, because they include the site's own CA. Do not use a proxy,
        # because it would see the link.
        trusted = ssl.create_default_context() if web.startswith("https:") else True
        with httpx.Client(verify=trusted, trust_env=False, timeout=timeout_s) as client:
            response = client.post(web + _PATH, content=body, headers=headers)
    except httpx.TimeoutException as error:
        raise OutsideError(f"slurm-gpuweb at {web} did not answer in time") from error
    except httpx.HTTPError as error:
        raise OutsideError(f"slurm-gpuweb at {web} cannot be reached: {error}") from error
    try:
        answer = response.json()
        if response.is_success:
            link = Link(str(answer["url"]), int(answer["until_s"]))
            if link.url.startswith(f"{web}{_PATH}#") and link.url.isprintable() and link.url.isascii():
                return link
            raise OutsideError(
                f"{web} answered with a link to another address; check that web: is slurm-gpuweb's address"
            )
        why = str(answer["error"])
    except (ValueError, TypeError, KeyError) as error:
        raise OutsideError(
            f"{web} answered {response.status_code}, but is not slurm-gpuweb; if the site has its own "
            "page for signing in, open it in a browser"
        ) from error
    if response.status_code == 403:
        raise NotAllowedError(f"slurm-gpuweb at {web} refused a link: {why}")
    raise OutsideError(f"slurm-gpuweb at {web} answered {response.status_code}: {why}")
