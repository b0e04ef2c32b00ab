"""`slurm-gpu db upgrade`: on slurm-gpudbd's host only, and it says of which database it speaks."""

from pathlib import Path

import pytest

from slurm_gpu.database import settings
from slurm_gpu.database.engine import shown_url
from tests.cli.conftest import CommandLine


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty host's /etc and /var in one."""
    monkeypatch.setattr(settings, "DEFAULT_PATH", tmp_path / "slurm-gpudbd.yaml")
    monkeypatch.setattr(settings, "DEFAULT_DATABASE", tmp_path / "slurm-gpu.db")
    monkeypatch.setattr(settings, "DEFAULT_URL", f"sqlite:///{tmp_path}/slurm-gpu.db")
    return tmp_path


def test_elsewhere_than_on_its_host_nothing_is_made(slurm_gpu: CommandLine, place: Path):
    before = set(place.iterdir())
    assert slurm_gpu("db", "upgrade") == 2
    assert f"there is no {place}/slurm-gpudbd.yaml" in slurm_gpu.err
    assert "run this on slurm-gpudbd's host" in slurm_gpu.err
    assert set(place.iterdir()) == before


def test_the_database_is_named(slurm_gpu: CommandLine, place: Path):
    (place / "slurm-gpudbd.yaml").write_text(f"url: sqlite:///{place}/own.db\n")
    assert slurm_gpu("db", "upgrade") == 0
    assert slurm_gpu.out.startswith(f"sqlite:///{place}/own.db has schema 0")


def test_a_password_is_never_shown():
    shown = shown_url("mysql+pymysql://gpu:hush@db/slurm_gpu?passwd=hush&charset=utf8mb4")
    assert shown == "mysql+pymysql://gpu:***@db/slurm_gpu?charset=utf8mb4"
