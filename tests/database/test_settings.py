import os
import pwd
from pathlib import Path

import pytest

from slurm_gpu.config.value_types import Address, listen_option
from slurm_gpu.database import settings
from slurm_gpu.database.settings import default_address, default_is_meant, load_settings
from slurm_gpu.errors import InputError, InvalidFileError, UsageError
from slurm_gpu.http.web_reader import WebReader

SECRET = "url: mysql+pymysql://slurm_gpu:pw@localhost/slurm_gpu\n"


def write(tmp_path: Path, text: str, mode: int = 0o600) -> Path:
    path = tmp_path / "slurm-gpudbd.yaml"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_everything_has_a_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings(write(tmp_path, "# nothing\n")).url == settings.DEFAULT_URL
    monkeypatch.setattr(settings, "DEFAULT_PATH", tmp_path / "missing.yaml")
    assert load_settings(None).url == settings.DEFAULT_URL


def test_the_shipped_file_contains_the_defaults() -> None:
    shipped = Path(__file__).parents[2] / "etc" / "slurm-gpudbd.yaml"
    assert load_settings(shipped) == settings.DaemonSettings()


def test_a_named_file_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        load_settings(tmp_path / "missing.yaml")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
@pytest.mark.parametrize("text", [SECRET, "url: mysql+pymysql://localhost/x?password=pw\n"])
def test_a_password_that_others_may_read_is_refused(tmp_path: Path, mode: int, text: str) -> None:
    path = write(tmp_path, text, mode)
    with pytest.raises(InputError, match=rf"is readable by other users \(mode {mode:04o}\); chmod 0600"):
        load_settings(path)
    path.chmod(0o600)
    assert load_settings(path).url == text.removeprefix("url: ").strip()


def test_without_a_password_anyone_may_read_it(tmp_path: Path) -> None:
    assert load_settings(write(tmp_path, "url: sqlite:////x.db\n", 0o644)).url == "sqlite:////x.db"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- x\n", "must contain `key: value` lines"),
        ("ulr: x\n", r":1:1: 'ulr' is not a setting of the file; did you mean url"),
        ("url: 5\n", r":1:6: url: 5 must be text"),
        ("url: sqlite:////x\nlisten: 6829\n", r":2:9: listen: 6829 must be HOST:PORT, such as"),
        ("listen: nonsense\n", r":1:9: listen: 'nonsense' must be HOST:PORT"),
    ],
)
def test_mistakes_are_named_with_their_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_settings(write(tmp_path, text))


def test_all_mistakes_are_reported_at_once(tmp_path: Path) -> None:
    text = "url: 5\nworkers: 9\nper_user: {requests: 0, rows: 1}\nweb_user: root\n"
    with pytest.raises(InvalidFileError) as caught:
        load_settings(write(tmp_path, text))
    assert [(error.line, error.message.split(";")[0]) for error in caught.value.errors] == [
        (1, f"url: 5 must be text on one line, such as {settings.DEFAULT_URL}"),
        (2, "workers: 9 must be a whole number from 0 to 8"),
        (3, "requests: 0 must be a whole number from 1 to 1000000000"),
        (3, "'rows' is not a setting of per_user"),
        (4, "web_user: 'root' has all rights here: slurm-gpuweb needs its own user"),
    ]


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:80", Address("127.0.0.1", 80)),
        ("dbhost:6829", Address("dbhost", 6829)),
        ("[::1]:6829", Address("::1", 6829)),
        (":6829", Address("0.0.0.0", 6829)),
    ],
)
def test_addresses(text: str, address: Address) -> None:
    assert listen_option(text) == address


@pytest.mark.parametrize("text", ["", "host", "host:", "host:x", "host:70000", "u@host:1", "host:1/x"])
def test_no_addresses(text: str) -> None:
    with pytest.raises(UsageError, match="must be HOST:PORT"):
        listen_option(text)


def test_the_default_port_is_that_of_nodes() -> None:
    assert default_address("http://dbhost:17004") == Address("0.0.0.0", 17004)


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_a_missing_permission_on_the_database_folder_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setattr(settings, "DEFAULT_PATH", tmp_path / "there" / "no.yaml")
    os.seteuid(pwd.getpwnam("nobody").pw_uid)
    try:
        with pytest.raises(UsageError, match=r"only root and SlurmUser may read .*/there"):
            default_is_meant()
    finally:
        os.seteuid(0)
    assert not default_is_meant()


def test_slurm_gpuweb_is_a_user_by_name_or_uid_or_none(tmp_path: Path) -> None:
    assert load_settings(write(tmp_path, "workers: 0\n")).web == WebReader("slurm-gpu-web")
    assert load_settings(write(tmp_path, "web_user: www-gpu\n")).web.user == "www-gpu"
    assert load_settings(write(tmp_path, "web_user: 987\n")).web.user == 987
    assert load_settings(write(tmp_path, "web_user: null\n")).web.user is None
    for value in ("root", "0", "-1", "4294967296", "true", "''", "[987]", "1.5"):
        with pytest.raises(InputError, match=":1:11: web_user: "):
            load_settings(write(tmp_path, f"web_user: {value}\n"))


def test_the_hosts_of_slurm_gpuweb_are_addresses_or_networks(tmp_path: Path) -> None:
    hosts = load_settings(write(tmp_path, "web_hosts: [10.0.0.7, 'fd00::/64']\n")).web.hosts
    assert list(map(str, hosts)) == ["10.0.0.7/32", "fd00::/64"]
    (host,) = load_settings(write(tmp_path, "web_hosts: 10.0.0.7\n")).web.hosts
    assert str(host) == "10.0.0.7/32"
    for value in ("web1", "10.0.0.7/24", "0.0.0.0/0", "5", "null"):
        with pytest.raises(InputError, match=r"web_hosts: .* must be an address or a network"):
            load_settings(write(tmp_path, f"web_hosts: [10.0.0.7, {value}]\n"))
