"""Record how many GPUs of the cluster are allocated, busy and requested over time."""
