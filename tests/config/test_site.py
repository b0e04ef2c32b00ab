"""slurm-gpu.yaml is read completely, and each error is reported with its position and the valid values."""

import subprocess
import sys
from pathlib import Path

import pytest

from slurm_gpu.config.site import (
    Operators,
    Placement,
    Priority,
    Reservations,
    SiteConfig,
    Zone,
    check_config,
    default_path,
    load_config,
)
from slurm_gpu.config.value_types import Address
from slurm_gpu.config.yaml_source import parse_yaml
from slurm_gpu.errors import InputError, InvalidFileError

ROOT = Path(__file__).resolve().parents[2]

_WHOLE = """\
cluster: neuron
database: http://dbhost:6829/
database_socket: /run/slurm-gpu/other.sock
munge_socket: /run/munge/other.socket
import_interval: 30s
timezone: Asia/Seoul
operators: {users: [carol], unix_groups: [gpuops]}
team: {vision: lab-a, nlp: lab-b}
server_types: {a100: {nodes: "n[1-2]", rate_per_gpu_hour: 1.2}, old: {nodes: n3, rate_per_gpu_hour: 0}}
zones: {zone1: {nodes: "n[1-2]", role: small}, zone2: {nodes: n3}}
sampling: {interval: 2s, min_coverage: 0}
retention: {timelines: 30d, windows: 1d, events: 400d}
spool: {max_size: 1.5G}
metrics: {listen: "[::1]:9836"}
placement:
  {mode: enforce, partitions: [gpu, debug], nodes: "n[1-2]", zone_wait: 10m,
   priority: {per_hour: {large: 2.5}}}
"""


def _read(text: str) -> SiteConfig:
    return check_config(parse_yaml(text, "site.yaml"))


def test_a_whole_file():
    config = _read(_WHOLE)
    assert (config.cluster, config.database, config.timezone) == (
        "neuron",
        "http://dbhost:6829",
        "Asia/Seoul",
    )
    assert config.database_socket == Path("/run/slurm-gpu/other.sock")
    assert config.operators == Operators(("carol",), ("gpuops",))
    assert config.team == {"vision": "lab-a", "nlp": "lab-b"}
    assert config.server_types["old"].rate_per_gpu_hour == 0
    assert config.zones == {"zone1": Zone("n[1-2]", "small"), "zone2": Zone("n3", None)}
    assert (config.sampling.interval_s, config.sampling.min_coverage) == (2.0, 0.0)
    assert (config.import_interval_s, config.retention.timelines_s) == (30.0, 30 * 86400.0)
    assert (config.retention.windows_s, config.retention.events_s) == (86400.0, 400 * 86400.0)
    assert (config.spool.max_size_mib, config.metrics.listen) == (1536.0, Address("::1", 9836))
    assert config.placement == Placement(
        "enforce", ("gpu", "debug"), "n[1-2]", 600.0, Priority({"large": 2.5}, max_points=1000)
    )


def test_the_cluster_alone_is_enough():
    config = _read("cluster: neuron\n")
    assert config == SiteConfig(cluster="neuron")
    assert config.placement == Placement("observe", None, None, 1800.0)
    assert (config.team, config.sampling.min_coverage) == ("account", 0.8)


def test_reservations_are_on_where_they_are_written():
    assert _read("cluster: n\nplacement: {reservations: {}}\n").placement.reservations == Reservations()
    some = "{required_gpus: 64, release_unused: 10m, horizon: 7d, open_per_user: 1}"
    assert _read(f"cluster: n\nplacement: {{reservations: {some}}}\n").placement.reservations == Reservations(
        64, 600.0, 7 * 86400.0, 1
    )


def test_the_example_that_is_shipped_is_valid_with_the_name_of_the_cluster():
    text = (ROOT / "etc" / "slurm-gpu.yaml").read_text().replace("CHANGE-ME", "Neuron")
    assert _read(text).cluster == "neuron"


@pytest.mark.parametrize("daemon", ["node", "database", "controller", "monitor"])
def test_no_daemon_starts_with_the_placeholder_of_the_shipped_file(daemon: str):
    path = ROOT / "etc" / "slurm-gpu.yaml"
    argv = [sys.executable, "-m", f"slurm_gpu.{daemon}.main", f"--config={path}"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 2  # systemd does not restart a daemon that exits with 2
    assert "cluster: 'CHANGE-ME' is the placeholder of the installed file" in done.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "timezone: UTC\n",
            "1:1: the file lacks cluster; write the ClusterName of slurm.conf, such as cluster: neuron",
        ),
        ("cluster: 7\n", "1:10: cluster: 7 must be the ClusterName of slurm.conf, such as neuron"),
        ("cluster: n\nclutser: n\n", "2:1: 'clutser' is not a setting of the file; did you mean cluster?"),
        (
            "cluster: n\nplacement: {priority: {most: 9}}\n",
            "2:24: 'most' is not a setting of placement.priority; did you mean max_points?",
        ),
        (
            "cluster: n\nhue: red\n",
            "2:1: 'hue' is not a setting of the file; allowed: cluster, database,",
        ),
        ("cluster: n\ndatabase: dbhost\n", "2:11: database: 'dbhost' must be slurm-gpudbd's address"),
        ("cluster: n\ndatabase: https://dbhost:1\n", "2:11: database: 'https://dbhost:1' must be"),
        ("cluster: n\ndatabase: http://dbhost:port\n", "2:11: database: 'http://dbhost:port' must be"),
        ("cluster: n\ndatabase_socket: 5\n", "2:18: database_socket: 5 must be text"),
        ("cluster: n\nmunge_socket: [a]\n", "2:15: munge_socket: ['a'] must be text"),
        ("cluster: n\ntimezone: Mars/North\n", "2:11: timezone: 'Mars/North' must be a time zone"),
        (
            "cluster: n\nplacement: {mode: on}\n",
            "2:19: mode: True is not valid; allowed: observe, advise, enforce (written as on)",
        ),
        (
            "cluster: n\nplacement: {partitions: gpu}\n",
            "2:25: partitions: 'gpu' must be a list of names",
        ),
        (
            "cluster: n\nplacement: {zone_wait: soon}\n",
            "2:24: zone_wait: 'soon' must be a duration, such as 10m",
        ),
        (
            "cluster: n\nplacement: {reservations: {horizon: 99999999d}}\n",
            "2:37: horizon: '99999999d' must be a duration",
        ),
        (
            f"cluster: n\nplacement: {{zone_wait: {'9' * 400}d}}\n",
            f"2:24: zone_wait: '{'9' * 79}… must be a duration",
        ),
        ("cluster: n\nplacement: {nodes: [n1]}\n", "2:20: nodes: ['n1'] must be a hostlist, such as n[1-4]"),
        ("cluster: n\nimport_interval: 60\n", "2:18: import_interval: 60 must be a duration, such as 10m"),
        ("cluster: n\noperators: carol\n", "2:12: operators must contain `key: value` lines, not 'carol'"),
        ("cluster: n\noperators: {users: carol}\n", "2:20: users: 'carol' must be a list of names"),
        ("cluster: n\noperators: {groups: []}\n", "2:13: 'groups' is not a setting of operators"),
        ("cluster: n\nteam: 5\n", "2:7: team: 5 must be the word account, or a map"),
        (
            "cluster: n\nzones: {z: {role: small}}\n",
            "2:12: zones.z lacks nodes; write a hostlist, such as nodes: n[1-4]",
        ),
        ("cluster: n\nzones: {z: {nodes: n1, role: 5}}\n", "2:30: role: 5 must be text"),
        (
            "cluster: n\nserver_types: {a: {nodes: n1, rate_per_gpu_hour: -1}}\n",
            "2:50: rate_per_gpu_hour: -1 must be a number ≥ 0",
        ),
        (
            "cluster: n\nserver_types: {a: {nodes: n1, rate_per_gpu_hour: yes}}\n",
            "2:50: rate_per_gpu_hour: True must be a number ≥ 0",
        ),
        (
            "cluster: n\nserver_types: {a: {nodes: n1, rate_per_gpu_hour: .nan}}\n",
            "2:50: rate_per_gpu_hour: nan must be a number ≥ 0",
        ),
        ("cluster: n\nsampling: {interval: 0s}\n", "2:22: interval: '0s' must be a duration"),
        ("cluster: n\nsampling: {min_coverage: 80}\n", "2:26: min_coverage: 80 must be a number from 0 to 1"),
        ("cluster: n\nretention: {windows: never}\n", "2:22: windows: 'never' must be a duration"),
        ("cluster: n\nspool: {max_size: 256}\n", "2:19: max_size: 256 must be 1M or more, such as 256M"),
        ("cluster: n\nspool: {max_size: 10K}\n", "2:19: max_size: '10K' must be 1M or more"),
        (
            "cluster: n\nspool: {retention: 1G}\n",
            "2:9: 'retention' is not a setting of spool; it is a setting of the file",
        ),
        ("cluster: n\nspool: {size: 1G}\n", "2:9: 'size' is not a setting of spool"),
        ("cluster: n\nmetrics: {listen: 9836}\n", "2:19: listen: 9836 must be HOST:PORT, such as 127.0.0.1"),
        ("cluster: n\nmetrics: {listen: localhost}\n", "2:19: listen: 'localhost' must be HOST:PORT"),
        ("cluster: n\nmetrics: {listen: h:1/x}\n", "2:19: listen: 'h:1/x' must be HOST:PORT"),
        (
            "cluster: n\nplacement: {priority: {per_hour: {big: 1}}}\n",
            "2:35: 'big' is not a setting of placement.priority",
        ),
        (
            "cluster: n\nplacement: {priority: {per_hour: {large: -1}}}\n",
            "2:42: large: -1 must be a number from 0 to 1000000, such as 20",
        ),
        (
            "cluster: n\nplacement: {priority: {per_hour: {large: yes}}}\n",
            "2:42: large: True must be a number",
        ),
        (
            "cluster: n\nplacement: {priority: {per_hour: {}, max_points: 0}}\n",
            "2:50: max_points: 0 must be a whole number from 1 to 1000000",
        ),
        (
            "cluster: n\nplacement: {reservations: {required_gpus: 0}}\n",
            "2:43: required_gpus: 0 must be a whole number from 1 to",
        ),
        ("cluster: n\nplacement: {reservations: {gpus: 8}}\n", "2:28: 'gpus' is not a setting of placement."),
        (
            "cluster: n\nplacement: {priority: {max_points: 2.5}}\n",
            "2:36: max_points: 2.5 must be a whole number",
        ),
        ("- cluster\n", "1:1: the file must contain `key: value` lines"),
    ],
)
def test_a_mistake_is_named_with_its_place_its_value_and_what_is_right(text: str, message: str):
    with pytest.raises(InvalidFileError) as caught:
        _read(text)
    assert f"site.yaml:{message}" in str(caught.value)


def test_all_errors_are_reported_together_in_the_order_of_the_file():
    with pytest.raises(InvalidFileError) as caught:
        _read("cluster: n\ntimezone: Mars\nsampling: {interval: 5}\nteam: 1\n")
    assert [error.line for error in caught.value.errors] == [2, 3, 4]
    assert caught.value.exit_code == 2


def test_the_path_of_the_file_can_be_configured(tmp_path: Path):
    assert default_path({}) == Path("/etc/slurm-gpu/slurm-gpu.yaml")
    assert default_path({"SLURM_GPU_CONF": "/etc/lab/site.yaml"}) == Path("/etc/lab/site.yaml")
    with pytest.raises(InputError, match="cannot be read"):
        load_config(tmp_path / "missing.yaml")
