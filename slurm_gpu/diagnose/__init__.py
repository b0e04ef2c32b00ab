"""Explain why a distributed job is slow, by pure functions of GPU and host series that need only numpy."""
