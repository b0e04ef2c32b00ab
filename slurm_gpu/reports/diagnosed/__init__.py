"""The diagnosis of one job as a page: what was found, and what it stands on, to be looked at."""
