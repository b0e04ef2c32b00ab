"""Planners, each a `planner.Planner`; `registry` makes them by name."""
