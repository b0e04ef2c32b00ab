"""Commands report without delay that slurmctld or munged is down."""

from pathlib import Path

import pytest

from slurm_gpu.cli.site import CommandSite
from slurm_gpu.errors import MungedUnavailableError, SlurmError

DOWN = "`scontrol ping` failed (1): Slurmctld(primary) at head is DOWN"
SLOW = "`scontrol ping` gave no answer within 5 s"


class Client:
    """A client whose ping fails with an error, or succeeds."""

    def __init__(self, error: str | None) -> None:
        self.error = error

    def ping(self) -> None:
        if self.error is not None:
            raise SlurmError(self.error)


def test_a_slurmctld_that_is_down_is_reported_immediately(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("slurm_gpu.slurm.connect.connect", lambda _: Client(DOWN))
    with pytest.raises(SlurmError, match="is DOWN"):
        _ = CommandSite().slurm


@pytest.mark.parametrize("error", [None, SLOW])
def test_a_slow_slurmctld_is_awaited(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: str | None):
    monkeypatch.setattr("slurm_gpu.slurm.connect.connect", lambda _: Client(error))
    assert isinstance(CommandSite(tmp_path / "none.yaml").slurm, Client)


def test_a_missing_munged_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr("slurm_gpu.slurm.connect.connect", lambda _: Client(SLOW))
    config = tmp_path / "slurm-gpu.yaml"
    config.write_text(f"cluster: neuron\nmunge_socket: {tmp_path}/munge.socket\n")
    with pytest.raises(MungedUnavailableError, match=r"is munged running\?"):
        _ = CommandSite(config).slurm
