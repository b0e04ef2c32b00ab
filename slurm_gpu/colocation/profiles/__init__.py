"""Provide profiles of applications: their use of a GPU, phase by phase."""
