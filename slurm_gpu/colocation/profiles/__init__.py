"""Provide profiles, which describe an application's use of a GPU phase by phase."""
