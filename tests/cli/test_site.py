"""Where slurmctld or munged is down the commands say so at once."""

from pathlib import Path

import pytest

from slurm_gpu.cli import site
from slurm_gpu.cli.site import CommandSite
from slurm_gpu.errors import MungedUnavailableError, SlurmError

DOWN = "`scontrol ping` failed (1): Slurmctld(primary) at head is DOWN"
SLOW = "`scontrol ping` gave no answer within 5 s"


class Client:
    """Answers a ping in one way."""

    def __init__(self, said: str | None) -> None:
        self.said = said

    def ping(self) -> None:
        if self.said is not None:
            raise SlurmError(self.said)


def test_a_slurmctld_that_is_down_is_not_asked_for_half_a_minute(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(site, "connect", lambda _: Client(DOWN))
    with pytest.raises(SlurmError, match="is DOWN"):
        _ = CommandSite().slurm


@pytest.mark.parametrize("said", [None, SLOW])
def test_one_that_is_slow_is_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: str | None):
    monkeypatch.setattr(site, "connect", lambda _: Client(said))
    assert isinstance(CommandSite(tmp_path / "none.yaml").slurm, Client)


def test_a_munged_that_is_away_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(site, "connect", lambda _: Client(SLOW))
    config = tmp_path / "slurm-gpu.yaml"
    config.write_text(f"cluster: neuron\nmunge_socket: {tmp_path}/munge.socket\n")
    with pytest.raises(MungedUnavailableError, match=r"is munged running\?"):
        _ = CommandSite(config).slurm
