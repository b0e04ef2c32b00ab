"""Jobs that agree to share a GPU: what they need, where each has its place, and how it goes."""
