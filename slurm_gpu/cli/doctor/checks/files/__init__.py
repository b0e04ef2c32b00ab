"""Check files on this host: hooks, settings, permissions and units."""
