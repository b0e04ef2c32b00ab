"""Checks of files on this host: hooks, settings, permissions, units."""
