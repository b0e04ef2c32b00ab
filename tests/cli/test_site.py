"""Where slurmctld is down the commands say so at once."""

import pytest

from slurm_gpu.cli import site
from slurm_gpu.errors import SlurmError


class Client:
    """Answers a ping in one way."""

    def __init__(self, said: str | None) -> None:
        self.said = said

    def ping(self) -> None:
        if self.said is not None:
            raise SlurmError(self.said)


DOWN = "`scontrol ping` failed (1): Slurmctld(primary) at head is DOWN"


def test_a_slurmctld_that_is_down_is_not_asked_for_half_a_minute(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(site, "connect", lambda: Client(DOWN))
    with pytest.raises(SlurmError, match="is DOWN"):
        _ = site.Site().slurm


@pytest.mark.parametrize("said", [None, "`scontrol ping` gave no answer within 5 s"])
def test_one_that_is_slow_is_waited_for(monkeypatch: pytest.MonkeyPatch, said: str | None):
    monkeypatch.setattr(site, "connect", lambda: Client(said))
    assert isinstance(site.Site().slurm, Client)
