"""Make the links in the footer of every page, which also users who cannot sign in see."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from urllib.parse import quote


@dataclass(frozen=True, slots=True)
class FooterLinks:
    """The site's contact, which is an email address or a URL, and the URL of its documentation."""

    contact: str | None = None
    documentation: str | None = None

    def html(self) -> str:
        """Return a paragraph with the links, or "" if there are none."""
        links = []
        if self.contact is not None and "://" not in self.contact:
            address = escape(quote(self.contact, safe="@+"))
            links.append(f'Contact: <a href="mailto:{address}">{escape(self.contact)}</a>')
        elif self.contact is not None:
            links.append(f'<a href="{escape(self.contact)}">Contact</a>')
        if self.documentation is not None:
            links.append(f'<a href="{escape(self.documentation)}">Documentation</a>')
        return f'<p class="links">{" · ".join(links)}</p>\n' if links else ""
