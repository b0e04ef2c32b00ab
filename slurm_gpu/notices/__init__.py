"""Notify users about their jobs: rules, texts and channels."""
