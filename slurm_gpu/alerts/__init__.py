"""Which running jobs need somebody's eye: pure functions of live values, for pages, notices and cancels."""
