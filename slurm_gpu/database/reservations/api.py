"""Serve GET and POST /v1/reservations: the calendar, requests, and operators' decisions."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from slurm_gpu.config.site import Reservations as Settings
from slurm_gpu.database.http.answer import Answer
from slurm_gpu.database.http.rate_limits import share_of
from slurm_gpu.database.http.request import authenticated, parameters, posted, whole_parameter
from slurm_gpu.database.reservations import store
from slurm_gpu.database.reservations.places import KeptPlaces
from slurm_gpu.database.services import Services
from slurm_gpu.database.storage.schema import NAME_LENGTH
from slurm_gpu.errors import UsageError
from slurm_gpu.http.identity import Caller, uid_of
from slurm_gpu.text.hostlist import compress, expand
from slurm_gpu.text.units import format_duration, parse_whole
from slurm_gpu.wire.answers.reservation import MOST_IDS, Reservation, ReservationState

T = TypeVar("T")

MOST_SHOWN = 1000
_LATE_S = 300
"""Maximum time after the start of a reservation at which it can be approved, since approval takes time."""
_IDS = re.compile(r"\d{1,18}(,\d{1,18})*")
# Reject a leading - or +: Slurm would remove the name from a list, or add it to the list.
_NAME = r"^[\w.@][\w.@+-]*\Z"
_NODE = re.compile(r"[\w.-]+")
_HIGHEST = 10**18 - 1

_Name = Annotated[str, Meta(min_length=1, max_length=NAME_LENGTH, pattern=_NAME)]
_Time = Annotated[int, Meta(ge=0, lt=1 << 40)]
_Why = Annotated[str, Meta(min_length=1, max_length=2000)]


class _Asked(msgspec.Struct, forbid_unknown_fields=True):
    """The fields of a reservation request."""

    account: _Name
    partition: _Name
    gpus: Annotated[int, Meta(ge=1, le=1_000_000)]
    n_nodes: Annotated[int, Meta(ge=1, le=100_000)]
    duration_s: Annotated[int, Meta(ge=60, lt=1 << 40)]
    why: _Why
    gpu_type: _Name | None = None
    earliest_s: _Time | None = None
    latest_s: _Time | None = None
    user: _Name | None = None


class _Decision(msgspec.Struct, forbid_unknown_fields=True):
    """The fields of a decision about a reservation."""

    act: Literal["approve", "deny", "cancel"]
    start_s: _Time | None = None
    end_s: _Time | None = None
    nodes: Annotated[str, Meta(min_length=1, max_length=60_000)] | None = None
    why: Annotated[str, Meta(max_length=2000)] | None = None


class ReservationPages:
    """The endpoints under /v1/reservations."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._places = KeptPlaces(services.places_of, services.clock)

    async def get(self, request: Request) -> Response:
        """Serve GET /v1/reservations."""
        caller = await authenticated(self._services.authenticator, request)
        past, ids = _wanted(parameters(request))

        def find() -> list[Reservation]:
            with self._services.database.reading() as connection:
                found = store.find(connection, self._services.cluster, past, ids)
            return [_shown(one, caller) for one in found]

        found = await run_in_threadpool(find)
        share_of(request).spend(len(found))
        return Answer({"reservations": found})

    async def request(self, request: Request) -> Response:
        """Serve POST /v1/reservations."""
        caller, body = await posted(self._services.authenticator, request)
        return Answer({"reservation": await run_in_threadpool(self._request, caller, body)})

    async def decide(self, request: Request) -> Response:
        """Serve POST /v1/reservations/{id}."""
        caller, body = await posted(self._services.authenticator, request)
        try:
            number = parse_whole(request.path_params["id"], 1, _HIGHEST)
        except ValueError:
            raise HTTPException(404, f"there is no reservation {request.path_params['id'][:40]}") from None
        return Answer({"reservation": await run_in_threadpool(self._decide, caller, number, body)})

    def _request(self, caller: Caller, body: bytes) -> Reservation:
        settings, wanted = self._settings(), _read(body, _Asked)
        user, now_s = wanted.user or caller.user, int(self._services.clock.wall())
        if user is None:
            raise UsageError(
                f"uid {caller.uid} has no user name on slurm-gpudbd's host: "
                f"`getent passwd {caller.uid}` must print an entry there"
            )
        if user != caller.user and not caller.sees_all:
            raise HTTPException(403, "only operators may request a reservation for another user")
        uid = caller.uid if user == caller.user else uid_of(user)
        if uid is None:
            raise UsageError(f"there is no user {user!r} on slurm-gpudbd's host")
        earliest_s = now_s if wanted.earliest_s is None else max(now_s, wanted.earliest_s)
        horizon = format_duration(settings.horizon_s)
        if earliest_s > now_s + settings.horizon_s or wanted.duration_s > settings.horizon_s:
            raise UsageError(
                f"a reservation must begin within {horizon} from now and last at most {horizon} "
                f"(requested: {format_duration(wanted.duration_s)}); `horizon` of reservations in "
                "slurm-gpu.yaml sets this limit"
            )
        if wanted.latest_s is not None and wanted.latest_s < earliest_s:
            raise UsageError("the latest start is before the earliest start")
        account = self._account(user, wanted.account)
        values = {
            "cluster": self._services.cluster,
            "user": user,
            "uid": uid,
            "account": account,
            "partition": wanted.partition,
            "gpus": wanted.gpus,
            "gpu_type": wanted.gpu_type,
            "n_nodes": wanted.n_nodes,
            "duration_s": wanted.duration_s,
            "earliest_s": earliest_s,
            "latest_s": wanted.latest_s,
            "why": wanted.why,
            "requested_s": now_s,
        }
        number = self._services.database.write(
            lambda connection: store.store_request(connection, values, settings.open_per_user)
        )
        return self._one(number, caller)

    def _account(self, user: str, named: str) -> str:
        """Return the account name as Slurm stores it; raise UsageError if the user may not use it."""
        places, account = self._places.of(user), named.lower()
        if not places.from_slurmdbd:
            raise HTTPException(
                503,
                f"the accounts of {user} cannot be read (`sacctmgr show assoc user={user}` "
                "fails on slurm-gpudbd's host): repeat the request when slurmdbd answers",
            )
        if places.accounts is not None and account not in places.accounts:
            allowed = ", ".join(sorted(places.accounts))
            raise UsageError(f"{user} may not use the account {named}; allowed: {allowed}")
        return account

    def _decide(self, caller: Caller, number: int, body: bytes) -> Reservation:
        settings, decision = self._settings(), _read(body, _Decision)
        who, now_s = caller.user or str(caller.uid), int(self._services.clock.wall())
        cluster, why = self._services.cluster, decision.why or ""

        def act(connection: Any) -> None:
            one = store.find_one(connection, cluster, number)
            if one is None:
                raise HTTPException(404, f"there is no reservation {number}")
            if not (caller.sees_all or (decision.act == "cancel" and one.uid == caller.uid)):
                raise HTTPException(403, _may_not(decision.act))
            if decision.act == "approve":
                start_s, end_s, nodes = _promise(decision, one, now_s, settings)
                store.approve(connection, one, start_s, end_s, nodes, who, now_s)
            elif decision.act == "deny":
                store.end(
                    connection, one, ReservationState.DENIED, who, now_s, why or "an operator denied it"
                )
            else:
                store.end(
                    connection, one, ReservationState.CANCELLED, who, now_s, why or f"{who} cancelled it"
                )

        self._services.database.write(act)
        return self._one(number, caller)

    def _one(self, number: int, caller: Caller) -> Reservation:
        with self._services.database.reading() as connection:
            one = store.find_one(connection, self._services.cluster, number)
        assert one is not None
        return _shown(one, caller)

    def _settings(self) -> Settings:
        if self._services.reservations is None:
            raise UsageError(
                "reservations are disabled; to enable them, an operator must write "
                "`placement: {reservations: {}}` into slurm-gpu.yaml, also on slurm-gpudbd's "
                "host, and restart slurm-gpudbd and slurm-gpuctld"
            )
        return self._services.reservations


def _may_not(act: str) -> str:
    if act == "cancel":
        return "only the user of a reservation and operators may cancel it"
    return f"only operators may {act} a reservation"


def _promise(decision: _Decision, one: Reservation, now_s: int, settings: Settings) -> tuple[int, int, str]:
    """Return the start, the end and the nodes of an approval; raise UsageError if one of them is invalid."""
    if decision.start_s is None or decision.end_s is None or decision.nodes is None:
        raise UsageError("an approval requires start_s, end_s and nodes")
    try:
        names = expand(decision.nodes)
    except ValueError as error:
        raise UsageError(f"nodes: {error}") from None
    if wrong := next((name for name in names if not _NODE.fullmatch(name) or name.upper() == "ALL"), None):
        raise UsageError(f"nodes: {wrong!r} is not a node name; write, for example, n[1-4]")
    if not now_s - _LATE_S <= decision.start_s <= now_s + settings.horizon_s:
        raise UsageError(f"the reservation must begin within {format_duration(settings.horizon_s)} from now")
    longest_s = one.duration_s + math.ceil(settings.release_unused_s)
    if not one.duration_s <= decision.end_s - decision.start_s <= longest_s:
        raise UsageError(
            f"the reservation must last at least the requested {one.duration_s} s, and at most {longest_s} s"
        )
    return decision.start_s, decision.end_s, compress(names)


def _shown(one: Reservation, caller: Caller) -> Reservation:
    """Return the reservation with the fields that the caller may see.

    User, nodes and times are public. Only the reservation's user, identified by uid, and operators see the
    reasons. The uid is compared because a user name may be reassigned.
    """
    if caller.sees_all or caller.uid == one.uid:
        return one
    return replace(one, why=None, decided_why=None, ended_why=None, full=False)


def _wanted(query: dict[str, str]) -> tuple[int, list[int]]:
    past, ids = query.pop("past", "0"), query.pop("ids", "")
    if query:
        raise UsageError(f"{next(iter(query))!r} is not a parameter here; allowed: past, ids")
    n_past = whole_parameter("past", past, 0, MOST_SHOWN)
    if ids and not _IDS.fullmatch(ids):
        raise UsageError(f"ids={ids[:100]!r} must be reservation IDs, such as 3,7")
    numbers = [int(number) for number in ids.split(",") if number]
    if len(numbers) > MOST_IDS:
        raise UsageError(f"ids: {len(numbers)} IDs are too many; at most {MOST_IDS} are allowed")
    return n_past, numbers


def _read(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise UsageError(f"the request cannot be read: {error}") from None
