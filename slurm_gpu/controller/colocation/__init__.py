"""Handle jobs that agreed to share a GPU: their eligibility, placement and results."""
