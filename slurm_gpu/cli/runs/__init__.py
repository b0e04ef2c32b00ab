"""Commands on runs: `job`, `jobs`, `diagnose`."""
