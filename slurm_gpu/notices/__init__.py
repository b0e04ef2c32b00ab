"""Telling users what is wrong with their jobs, and warning before one is ended: rules, texts and senders."""
