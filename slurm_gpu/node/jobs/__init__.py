"""The life of an allocation: what opens, suspends, watches and closes it, and what contradicts it."""
