"""Queries of runs and their records, for the read API, forecasts and verdicts."""
