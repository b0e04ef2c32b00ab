"""Formats and parsers of amounts, times, tables and host lists."""
