"""Jobs that agree to share a GPU: eligibility, assignment and outcome."""
