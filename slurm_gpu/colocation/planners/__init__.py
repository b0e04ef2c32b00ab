"""Provide implementations of `planner.Planner`; `registry` creates them by name."""
