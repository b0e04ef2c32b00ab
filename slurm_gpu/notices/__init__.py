"""Notices to users about their jobs: rules, texts and senders."""
