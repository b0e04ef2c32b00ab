"""Any value in any YAML file is either used or reported with its line and column."""

import contextlib
import copy
import inspect
import json
from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_gpu.colocation.research.price import comparisons
from slurm_gpu.config.site import check_config
from slurm_gpu.config.yaml_source import Location, YamlSource, parse_yaml
from slurm_gpu.database.settings import load_settings as load_daemon
from slurm_gpu.errors import InputError, InvalidFileError
from slurm_gpu.monitor.settings import load_settings as load_web
from slurm_gpu.node.application.rules import check_rules
from slurm_gpu.notices.settings import check_settings
from slurm_gpu.policy.language.check import check_policy

Check = Callable[[YamlSource], object]
# A file that only its owner may read, as required for slurm-gpudbd.yaml.
_PRIVATE = "/proc/self/environ"

_POLICY = {
    "version": 1,
    "contact": "a",
    "mode": "enforce",
    "on_error": "allow",
    "manages": {"qos": ["sg-*", "normal", "urgent"], "accounts": ["vision"]},
    "chain": {"before": "/a", "after": "/b"},
    "bundles": {"train": {"gpus": 1, "cpus": 8, "memory": "64G", "mode": "advise", "partitions": ["gpu"]}},
    "groups": {"vision": {"accounts": ["vision"]}, "leads": {"users": ["carol"], "until": "2026-12-31"}},
    "owners": {"vision": {"gpus": 96, "lend_in": "sg-loans", "return_within": "10m", "qos": "sg-vision"}},
    "urgent": {"for": ["leads"], "jobs_running": 2, "preempts": ["normal"], "why": "w"},
    "colocation": {
        "mode": "advise",
        "allowed_groups": ["vision"],
        "required_groups": ["leads"],
        "goal": "considerate",
        "slowdown": 1.1,
        "jobs_per_gpu": 2,
        "max_gpu_fraction": 0.75,
        "max_wait": "5m",
        "planner": "annealing",
        "why": "w",
    },
    "cancel_idle": {"for": ["leads"], "after": "4h", "warn": ["1h"], "why": "w"},
    "rules": [
        {
            "id": "a",
            "for": "leads",
            "per": "user",
            "why": "w",
            "mode": "advise",
            "on_error": "deny",
            "limits": {"gpus_total": 8, "jobs_total": 9, "gpu_hours": {"day": 1.5}, "memory_total": "1T"},
            "when": {"days": "mon-fri", "hours": "09-18"},
            "kind": "batch",
        },
        {
            "id": "c",
            "for": "vision",
            "per": "user",
            "why": "w",
            "limits": {"gpus_running": 9},
            "adjust": {"gpus_running": [8, 24]},
        },
        {
            "id": "b",
            "for": "leads",
            "per": "job",
            "why": "w",
            "limits": {"walltime": {1: "7d"}, "gpus": {"a100": 2}, "cpus": 1, "memory": "64G"},
        },
    ],
    "exceptions": [
        {
            "rule": "a",
            "user": "u",
            "limits": {"gpus_total": 9},
            "until": "2027-01-01",
            "why": "w",
            "granted_by": "x",
        }
    ],
}
_SITE = {
    "cluster": "c",
    "database": "http://h:1",
    "database_socket": "/a",
    "munge_socket": "/b",
    "web": "https://h",
    "timezone": "UTC",
    "import_interval": "1m",
    "operators": {"users": ["a"]},
    "team": {"a": "b"},
    "server_types": {"s": {"nodes": "n[1-2]", "rate_per_gpu_hour": 1.5}},
    "zones": {"z": {"nodes": "n1", "role": "small"}},
    "racks": {"r": {"nodes": "n1"}},
    "sampling": {"interval": "1s", "min_coverage": 0.5},
    "retention": {"timelines": "9d", "events": "9d"},
    "spool": {"max_size": "1G"},
    "metrics": {"listen": "h:1"},
    "placement": {
        "mode": "observe",
        "partitions": ["p"],
        "nodes": "n1",
        "zone_wait": "9m",
        "priority": {"per_hour": {"small": 1.5}, "max_points": 9},
        "reservations": {"required_gpus": 9, "horizon": "9d", "open_per_user": 2},
    },
}
_NOTICES = {
    "mode": "send",
    "alerts": ["never_used"],
    "after": "9m",
    "max_per_user_per_day": 5,
    "exempt_users": ["a"],
    "contact": "a",
    "templates": "/a",
    "webhook": {"url": "https://h", "secret_file": "/s"},
    "mail": {"host": "h", "port": 25, "from": "a@b", "to": "{user}@b", "starttls": True},
}
_PRICES = {
    "instances": {"a": 0.75, "b": 1.2},
    "compare": {"c": {"alone": "a", "shared": "b", "parts": 2}},
}
_APPLICATIONS = {
    "version": 1,
    "applications": {
        "A": {
            "field": "f",
            "priority": 5,
            "any": [{"python": ["torch"], "executable": "x*"}],
            "parameters": {"size": r"a(\d)", "bytes": {"file_size": "b (x)"}},
        },
    },
}
_DAEMON = {"url": "sqlite:////a", "listen": "h:1", "workers": 2, "web_user": "w"}
_WEB = {
    "listen": "h:1",
    "url": "https://h",
    "refresh": "3s",
    "contact": "a@b",
    "documentation": "https://h/d",
    "trusted_proxies": ["10.0.0.0/8"],
    "user_header": "X-User",
    "session": {"lifetime": "2h", "idle": "1h", "key_file": "/k"},
}


def _of_path(load: Callable[[Path | None], object]) -> Check:
    def check(source: YamlSource) -> object:
        # These functions read a file themselves, so replace their reader with one that returns the source.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(inspect.getmodule(load), "read_yaml", lambda _: source)
            return load(Path(source.path))

    return check


CHECKS: dict[str, tuple[Any, Check]] = {
    "policy.yaml": (_POLICY, check_policy),
    "slurm-gpu.yaml": (_SITE, check_config),
    "notices.yaml": (_NOTICES, check_settings),
    "prices.yaml": (_PRICES, comparisons),
    "applications.yaml": (_APPLICATIONS, check_rules),
    "slurm-gpudbd.yaml": (_DAEMON, _of_path(load_daemon)),
    "slurm-gpuweb.yaml": (_WEB, _of_path(load_web)),
}

VALUES = (
    "~",
    "true",
    "-0",
    "-1",
    "0.5",
    "1e999",
    "-.inf",
    ".inf",
    ".nan",
    "9" * 18,
    "9" * 400,
    "9" * 5000,
    "0x" + "f" * 5000,
    "0b" + "1" * 5000,
    "0" + "7" * 5000,
    "1" + ":1" * 5000,
    "1:30",
    "1:30.5",
    "1" + ":1" * 5000 + ".5",
    "1_000",
    "2026-13-45",
    "2026-01-01",
    "2026-01-01T00:00:00+23:59",
    "0001-01-01T00:00:00+23:59",
    "9999-12-31T23:59:59-23:59",
    "'9999999999999999999999-0'",
    f"'{'9' * 400}-0'",
    f"'{'9' * 5000}h'",
    f"'{'9' * 400}G'",
    "'h:99999999999'",
    "'http://[::1'",
    "'https://h:99999'",
    "'\\ud800'",
    '"\\uD800"',
    '"\\0"',
    '"\\uFFFF"',
    "''",
    "' '",
    "'\u00e9\u0661'",
    "'-'",
    "!!binary aGk=",
    "!!binary '%'",
    "!!set {a, b}",
    "!!set [a]",
    "!!omap [a: 1]",
    "!!omap [a]",
    "!!pairs [a: 1]",
    "!!int abc",
    "!!int {=: abc}",
    "!!int []",
    "!!float abc",
    "!!bool abc",
    "!!null abc",
    "!!timestamp abc",
    "!!timestamp []",
    "!!str {a: b}",
    "!!str []",
    "!!map []",
    "!!seq {}",
    "!own a",
    "!!python/object:os.system a",
    "=",
    "<<",
    "{<<: 5}",
    "{<<: [5]}",
    "{<<: {a: 1}}",
    "&x [*x]",
    "&x {<<: *x}",
    "&x a",
    "*missing",
    "[]",
    "{}",
    "[[]]",
    "[{}]",
    "{a: 1, a: 2}",
    "{[a]: 1}",
    "{{a: 1}: 1}",
    "{~: 1}",
    "{1: 1, 1.0: 2}",
    "{.nan: 1, .nan: 2}",
    "{2026-01-01: 1}",
    "{!!binary aGk=: 1}",
    "[" * 500,
    "[" * 500 + "]" * 500,
    '"\\UFFFFFFFF"',
    "|\n x",
    ">-\n x",
    "'a\nb'",
    "@",
    "`",
    "%",
    "\t",
)


def _places(value: Any) -> Iterator[Location]:
    yield ()
    items = enumerate(value) if isinstance(value, list) else value.items() if isinstance(value, dict) else ()
    for key, item in items:
        yield from ((key, *place) for place in _places(item))


def _with_value(whole: Any, place: Location, value: Any) -> Any:
    if not place:
        return value
    changed = copy.copy(whole)
    changed[place[0]] = _with_value(whole[place[0]], place[1:], value)
    return changed


def _with_key(whole: Any, place: Location, key: Any) -> Any:
    """Return `whole` with `key` added to the mapping at `place`; its value is that of another key."""
    here = whole
    for part in place:
        here = here[part]
    if not isinstance(here, dict):
        return whole
    return _with_value(whole, place, {**here, key: next(iter(here.values()), 1)})


@contextlib.contextmanager
def _placed() -> Iterator[None]:
    """Check that no error is raised, or a short error that names its place."""
    refused: InputError | None = None
    try:
        yield
    except InputError as error:
        refused = error
    if refused is not None:
        errors = refused.errors if isinstance(refused, InvalidFileError) else (refused,)
        assert all(error.line > 0 and error.column > 0 for error in errors), str(refused)[:300]
        assert len(str(refused)) < 20_000


def _parsed(text: str) -> YamlSource | None:
    with _placed():
        return parse_yaml(f"a: {text}", "f.yaml")
    return None


def _check_everywhere(name: str, found: YamlSource) -> None:
    whole, check = CHECKS[name]
    source = parse_yaml(yaml.safe_dump(whole), _PRIVATE)
    value, text = found.value["a"], found.texts.get(("a",))
    for place in _places(whole):
        texts = {**source.texts, place: text} if text is not None else source.texts
        changed = replace(source, value=_with_value(whole, place, value), texts=texts)
        with _placed():
            check(changed)
        if isinstance(value, Hashable):
            changed = replace(source, value=_with_key(whole, place, value))
            with _placed():
                check(changed)


@pytest.mark.parametrize("text", VALUES, ids=lambda text: ascii(text)[:40])
def test_any_yaml_is_a_value_or_an_error_with_its_place(text: str) -> None:
    _parsed(text)


@pytest.mark.parametrize("name", CHECKS)
def test_the_file_without_any_change_is_taken(name: str) -> None:
    whole, check = CHECKS[name]
    check(parse_yaml(yaml.safe_dump(whole), _PRIVATE))


@pytest.mark.parametrize("name", CHECKS)
def test_any_value_and_any_key_is_used_or_named_with_its_place(name: str) -> None:
    for found in filter(None, map(_parsed, VALUES)):
        _check_everywhere(name, found)


_SCALARS = st.one_of(
    st.integers().map(str),
    st.integers(min_value=0, max_value=10**40).map(hex),
    st.floats().map(repr),
    st.lists(st.integers(0, 59), min_size=2, max_size=40).map(lambda parts: ":".join(map(str, parts))),
    st.datetimes().map(str),
    st.text(alphabet="0123456789:.eE+-_xbT Z", min_size=1, max_size=30),
    st.text(max_size=20).map(json.dumps),
)


@pytest.mark.parametrize("name", CHECKS)
@settings(max_examples=50)
@given(text=_SCALARS)
def test_any_scalar_at_any_place_is_used_or_named(name: str, text: str) -> None:
    if (found := _parsed(text)) is not None:
        _check_everywhere(name, found)
