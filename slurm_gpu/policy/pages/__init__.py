"""Render a policy as a page for users: HTML, Markdown, text, JSON."""
