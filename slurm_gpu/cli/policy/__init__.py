"""Commands on the policy: `policy`, `explain`, `quota`."""
