"""Timings of steps that a job itself records."""
