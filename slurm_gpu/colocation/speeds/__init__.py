"""Speeds of applications that share a GPU: measured, or predicted from others."""
