"""Present the diagnosis of one job as a page: the verdict and its evidence."""
