"""Errors in slurm-gpuweb.yaml and in the racks of slurm-gpu.yaml are reported with their position."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_gpu.config.node_groups import group_by_node
from slurm_gpu.config.site import check_config
from slurm_gpu.config.value_types import Address
from slurm_gpu.config.yaml_source import parse_yaml
from slurm_gpu.errors import InvalidFileError, UsageError
from slurm_gpu.monitor.settings import WebSettings, load_settings


def written(directory: Path, text: str) -> Path:
    path = directory / "slurm-gpuweb.yaml"
    path.write_text(text)
    return path


def test_defaults_are_this_host_and_three_seconds(tmp_path: Path):
    settings = load_settings(written(tmp_path, "# nothing\n"))
    assert settings == WebSettings()
    assert settings.base_url == "http://127.0.0.1:6830"


def test_all_settings_are_read(tmp_path: Path):
    text = "listen: '[::1]:8443'\nurl: https://gpu.example.org/\nrefresh: 5s\n"
    settings = load_settings(written(tmp_path, text))
    assert settings == WebSettings(Address("::1", 8443), "https://gpu.example.org", 5.0)
    assert str(settings.listen) == "[::1]:8443"


@pytest.mark.parametrize("contact", ["gpu-help@example.org", "https://help.example.org/new?queue=gpu#form"])
def test_the_contact_is_an_email_address_or_a_url(tmp_path: Path, contact: str):
    settings = load_settings(written(tmp_path, f"contact: {contact}\ndocumentation: https://x/gpu\n"))
    assert (settings.contact, settings.documentation) == (contact, "https://x/gpu")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("listen: everywhere", "1:9: listen: 'everywhere' must be HOST:PORT"),
        ("listen: 0.0.0.0:0", "1:9: listen: '0.0.0.0:0' must be HOST:PORT"),
        ("url: gpu.example.org", "1:6: url: 'gpu.example.org' must be the address of the page"),
        ("url: http://me:secret@x", "1:6: url:"),
        ("refresh: 5m", "1:10: refresh: '5m' must be a duration from 1s to 1m, such as 3s"),
        ("contact: help desk", "1:10: contact: 'help desk' must be an email address or a URL"),
        ("contact: 'javascript:alert(1)'", "must be an email address or a URL, such as gpu-help@example.org"),
        ("documentation: docs/gpu", "1:16: documentation: 'docs/gpu' must be a URL, such as https://docs"),
        ("documentation: https://me:secret@x", "1:16: documentation:"),
        ("refersh: 5s", "1:1: 'refersh' is not a setting of the file; did you mean refresh?"),
        ("- listen", "must contain `key: value` lines"),
    ],
)
def test_a_mistake_is_reported_with_its_place_and_what_would_be_right(
    tmp_path: Path, text: str, message: str
):
    with pytest.raises(InvalidFileError) as error:
        load_settings(written(tmp_path, text))
    assert message in str(error.value)


def test_racks_are_of_the_nodes_of_their_hostlists():
    text = 'cluster: lab\nracks: {r1: {nodes: "n[1-2]"}, r2: {nodes: "n3"}}\n'
    assert group_by_node("racks", check_config(parse_yaml(text, "x")).racks) == {
        "n1": "r1",
        "n2": "r1",
        "n3": "r2",
    }


@pytest.mark.parametrize(
    ("racks", "message"),
    [
        ('{r1: {nodes: "n[1"}}', "racks.r1.nodes"),
        ('{r1: {nodes: n1}, r2: {nodes: "n[1-2]"}}', "n1 is in r1 and in r2"),
    ],
)
def test_a_hostlist_that_is_none_and_a_node_in_two_racks_are_errors(racks: str, message: str):
    with pytest.raises(UsageError, match=r"slurm-gpu\.yaml: racks") as error:
        group_by_node("racks", check_config(parse_yaml(f"cluster: lab\nracks: {racks}\n", "x")).racks)
    assert message in str(error.value)


def test_a_rack_without_nodes_is_reported_with_its_place():
    with pytest.raises(InvalidFileError, match="r1 lacks nodes"):
        check_config(parse_yaml("cluster: lab\nracks: {r1: {}}\n", "x"))


def test_settings_of_proxies_and_sessions_are_read(tmp_path: Path):
    path = tmp_path / "slurm-gpuweb.yaml"
    path.write_text(
        "trusted_proxies: [10.0.0.7, 'fd00::/64']\nuser_header: X-User\n"
        "session: {lifetime: 1d, idle: 30m, key_file: /etc/k}\n"
    )
    settings = load_settings(path)
    assert [str(network) for network in settings.trusted_proxies] == ["10.0.0.7/32", "fd00::/64"]
    assert settings.user_header == "X-User"
    assert (settings.session.lifetime_s, settings.session.idle_s) == (86400, 1800)
    assert settings.session.key_file == Path("/etc/k")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("trusted_proxies: [10.0.0.7]", ":1:1: trusted_proxies has no effect without user_header"),
        ("user_header: X-User", ":1:1: user_header has no effect without trusted_proxies"),
        ("user_header: X-User\ntrusted_proxies: [proxy1]", "'proxy1' must be an address or a network"),
        ("user_header: X-User\ntrusted_proxies: [10.0.0.7/24]", "must be an address or a network"),
        ("user_header: X-User\ntrusted_proxies: [0.0.0.0/0]", "must be an address or a network"),
        ("user_header: 'X User'\ntrusted_proxies: [10.0.0.7]", "must be a header's name"),
        ("session: {lifetime: 5s}", "lifetime: '5s' must be a duration from 1m to 31d"),
        ("session: {key_file: key}", "key_file: 'key' must be an absolute path"),
        ("session: {length: 5m}", "'length' is not a setting of session"),
    ],
)
def test_mistakes_in_who_may_sign_people_in_are_reported_with_their_place(
    tmp_path: Path, text: str, message: str
):
    path = tmp_path / "slurm-gpuweb.yaml"
    path.write_text(text + "\n")
    with pytest.raises(InvalidFileError) as error:
        load_settings(path)
    assert message in str(error.value)
