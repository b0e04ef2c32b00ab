import pytest

from .cluster import Cluster, Site


@pytest.fixture
def site(cluster: Cluster) -> Site:
    """Return a site in which all applications of the module's `cluster` are known."""
    found = Site(cluster)
    found.pass_s(1)
    for key in cluster.memory:
        cluster.submit(key, None, 50)
    found.until_all_end()
    found.pass_s(15)
    return found
