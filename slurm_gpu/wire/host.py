"""The host record: the processes of one job on one node during one segment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slurm_gpu.wire import fields
from slurm_gpu.wire.identity import IDENTITY, check_times

_MAX_PARAMETERS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The cumulative values of one segment, and the recognised application. None means not measured.

    `uptime_s` is the start of the segment in seconds since the boot `boot_id`; an older slurm-gpud sends
    None. The net_ and ib_ counters are those of the node and are measured only if no other job ran on it.
    `app_params` contains named captures of the rule that recognised `app`, and never a command line.
    """

    cluster: str
    job_id: int
    restart: int
    prolog_s: int
    node: str
    boot_id: str
    segment: str
    seq: int
    final: bool
    first_s: int
    last_s: int
    uptime_s: float | None = None
    cpu_s: float | None = None
    rss_max_mib: float | None = None
    read_bytes: int | None = None
    write_bytes: int | None = None
    net_rx_bytes: int | None = None
    net_tx_bytes: int | None = None
    ib_rx_bytes: int | None = None
    ib_tx_bytes: int | None = None
    app: str | None = None
    app_field: str | None = None
    app_params: Mapping[str, str] | None = None
    container: bool | None = None

    def to_wire(self) -> dict[str, Any]:
        """Return a dict for json.dumps without None values, since a missing key means null on the wire."""
        return fields.to_wire(self)

    @classmethod
    def from_wire(cls, wire: Any, dropped: fields.Dropped | None = None) -> Host:
        """Return a validated host record from decoded JSON, ignoring unknown fields.

        A missing or invalid identity field raises RecordError, which names the field. Any other invalid field
        is omitted and added to `dropped`, or raises RecordError if `dropped` is None.
        """
        host = cls(**fields.checked("a host record", wire, _CHECKS, IDENTITY, dropped))
        check_times(host.first_s, host.last_s)
        return host


def _parameters(name: str, value: Any) -> Mapping[str, str]:
    given = fields.mapping(name, value, "name: text", _MAX_PARAMETERS)
    return {fields.word(name, key): fields.text(f"{name}.{key}", item) for key, item in given.items()}


_CHECKS: fields.Checks = {
    **IDENTITY,
    "uptime_s": fields.seconds,
    **dict.fromkeys(("cpu_s", "rss_max_mib"), fields.quantity),
    **dict.fromkeys(("read_bytes", "write_bytes"), fields.whole_quantity),
    **dict.fromkeys(("net_rx_bytes", "net_tx_bytes", "ib_rx_bytes", "ib_tx_bytes"), fields.whole_quantity),
    **dict.fromkeys(("app", "app_field"), fields.text),
    "app_params": _parameters,
    "container": fields.flag,
}
