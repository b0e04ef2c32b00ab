"""Define each answer as JSON Schema, for the OpenAPI document and for tests of the answers."""

from __future__ import annotations

from typing import Any

from slurm_gpu.alerts.alert import AlertKind

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "number"}
WHOLE: Schema = {"type": "integer"}
FLAG: Schema = {"type": "boolean"}
OCTETS: Schema = {"type": "string", "format": "binary"}


def null_or(schema: Schema, why: str = "") -> Schema:
    """Return the schema with null allowed; `why` describes the meaning of null."""
    kind = schema.get("type")
    found = (
        {**schema, "type": [kind, "null"]} if isinstance(kind, str) else {"oneOf": [schema, {"type": "null"}]}
    )
    return {**found, "description": why} if why else found


def listed(schema: Schema) -> Schema:
    """Return the schema of an array whose items have this schema."""
    return {"type": "array", "items": schema}


def an_object(more: bool = False, /, **properties: Schema) -> Schema:
    """Return the schema of an object with exactly these keys or, with `more`, at least these."""
    found: Schema = {"type": "object", "required": sorted(properties), "properties": properties}
    return found if more else {**found, "additionalProperties": False}


def described(schema: Schema, what: str) -> Schema:
    """Return the schema with a description."""
    return {**schema, "description": what}


RANGES = described(
    listed({"type": "array", "items": WHOLE, "minItems": 2, "maxItems": 2}),
    "ranges of squares, each from the first to the last",
)
AS_OF = described(NUMBER, "time of the data, UTC epoch seconds")
MOMENT = null_or(NUMBER)

LAYOUT = an_object(
    id=TEXT,
    cluster=TEXT,
    zones=listed(
        an_object(
            name=null_or(TEXT),
            racks=listed(
                an_object(
                    name=null_or(TEXT),
                    nodes=listed(
                        an_object(
                            name=TEXT,
                            server_type=null_or(TEXT),
                            gpus=listed(
                                an_object(
                                    index=WHOLE,
                                    uuid=null_or(TEXT, "no slurm-gpud has reported the device"),
                                    type=TEXT,
                                )
                            ),
                        )
                    ),
                )
            ),
        )
    ),
    metrics=listed(an_object(name=TEXT, title=TEXT, unit=TEXT, top=NUMBER, step=NUMBER)),
)
# The attributes of a pending or running job.
_OF_JOB: dict[str, Schema] = {
    "id": TEXT,
    "job_id": WHOLE,
    "full": described(FLAG, "false for another user's job; the job's name is then null"),
    "user": TEXT,
    "account": TEXT,
    "partition": TEXT,
    "state": TEXT,
    "n_gpus": null_or(NUMBER, "the number is unknown"),
    "n_nodes": WHOLE,
    "n_tasks": WHOLE,
    "submit_s": MOMENT,
    "start_s": MOMENT,
    "end_s": MOMENT,
    "name": null_or(TEXT),
}
JOB = an_object(**_OF_JOB, reason=TEXT, squares=RANGES, shared_squares=RANGES)
JOBS = an_object(
    version=WHOLE,
    all=described(FLAG, "whether `jobs` contains all jobs instead of changes"),
    jobs=listed(JOB),
    gone=listed(WHOLE),
)
ATTENTION = an_object(
    alerts=listed(
        an_object(
            job_id=WHOLE,
            id=TEXT,
            user=TEXT,
            alert={"type": "string", "enum": [kind.value for kind in AlertKind]},
            squares=RANGES,
            since_s=NUMBER,
            coverage=NUMBER,
            verdict=null_or(
                an_object(cause=TEXT, kind=TEXT, confidence=NUMBER, text=TEXT, next_step=TEXT),
                "null unless the alert is unhealthy",
            ),
        )
    ),
    suspects=listed(
        an_object(
            node=TEXT,
            device=null_or(TEXT, "the node itself is the suspect"),
            squares=RANGES,
            jobs=WHOLE,
            users=WHOLE,
            healthy=described(WHOLE, "number of jobs that have run well on it since the last accusation"),
            first_s=NUMBER,
            last_s=NUMBER,
            next_step=described(TEXT, "a command for an operator"),
        )
    ),
    complete_from_s=described(
        MOMENT, "before this time, alerts may lack idle jobs, because slurm-gpuweb started recently"
    ),
)
FREE = an_object(
    types=listed(
        an_object(
            type=TEXT,
            total=WHOLE,
            free=WHOLE,
            allocated=WHOLE,
            out_of_service=WHOLE,
            next_free_s=null_or(NUMBER, "no GPU is allocated with a time limit"),
        )
    ),
)
_BINS = listed(null_or(NUMBER, "nothing was recorded"))
USAGE = an_object(
    from_s=described(WHOLE, "start of the first bin, UTC epoch seconds"),
    bin_s=described(WHOLE, "length of each bin in seconds"),
    gpus=described(_BINS, "GPUs of nodes in service, and allocated GPUs of other nodes"),
    allocated=_BINS,
    busy=described(_BINS, "allocated GPUs × their mean utilisation; null for users"),
    waiting_jobs=_BINS,
    waiting_gpus=described(_BINS, "GPUs that pending jobs request"),
)
QUEUE = an_object(
    reasons=listed(
        an_object(
            reason=TEXT,
            meaning=null_or(TEXT),
            n_jobs=WHOLE,
            n_gpus=null_or(NUMBER, "unknown for one of these jobs"),
            next_start_s=null_or(NUMBER, "Slurm has no estimate"),
        )
    ),
    jobs=listed(an_object(job_id=WHOLE, start_s=null_or(NUMBER, "Slurm has no estimate"))),
)
RESERVATIONS = an_object(
    reservations=listed(
        an_object(
            True, id=WHOLE, user=TEXT, account=TEXT, gpus=WHOLE, state=TEXT, full=FLAG, why=null_or(TEXT)
        )
    ),
    known=described(FLAG, "false if slurm-gpudbd did not answer; the list is then empty"),
)
_FORECAST: dict[str, Schema] = {
    "forecast": null_or({"type": "object"}, "there is no forecast; `why` states the reason"),
    "accuracy": described(listed(TEXT), "how far the forecast can be trusted, in words"),
    "why": null_or(TEXT),
}
ME = an_object(
    cluster=null_or(TEXT, "no state has been read yet"),
    user=TEXT,
    operator=FLAG,
    signed_in={"type": "string", "enum": ["link", "proxy"]},
    limits=null_or(
        listed(
            an_object(
                True,
                rule=TEXT,
                group=TEXT,
                per=TEXT,
                on=described(TEXT, "the limited resource, in words"),
                key=TEXT,
                unit=TEXT,
                limit={"type": ["number", "array"]},
                used=null_or(NUMBER, "the limit applies to each job, or usage is unknown"),
                left=null_or(NUMBER),
                mode=TEXT,
                why=TEXT,
            )
        ),
        "the limits are unknown; `limits_why` states the reason",
    ),
    limits_as_of_s=AS_OF,
    limits_why=null_or(TEXT),
    waits=listed(
        an_object(
            job_id=WHOLE,
            id=TEXT,
            **_FORECAST,
        )
    ),
)
_WAIT = an_object(
    reason=TEXT,
    meaning=null_or(TEXT, "the reason has no explanation"),
    dependency=null_or(TEXT, "there is none, or the job belongs to another user"),
    place=null_or(WHOLE, "the job is held, or its priority is unknown"),
    n_jobs=described(WHOLE, "number of pending jobs in the job's partitions, including the job"),
    gpus_ahead=null_or(NUMBER, "the place or a number of GPUs is unknown"),
    start_s=null_or(NUMBER, "Slurm has no estimate"),
    forecast=null_or(an_object(**_FORECAST), "the job belongs to another user"),
)
QUEUED = an_object(
    job=null_or(
        an_object(
            **_OF_JOB,
            qos=TEXT,
            time_limit_s=MOMENT,
            wait=null_or(_WAIT, "the job is not pending"),
        ),
        "the job is neither pending nor running",
    )
)
PERCENTILES: Schema = {
    "type": ["object", "null"],
    "additionalProperties": an_object(
        p25=null_or(NUMBER),
        p95=null_or(NUMBER),
        unit=TEXT,
        how={"type": "string", "enum": ["exact", "from bins"]},
    ),
}
_USE = an_object(
    resource={"type": "string", "enum": ["gpu", "gpu_memory", "cpu", "memory"]},
    used=null_or(
        NUMBER, "not measured; busy GPUs and CPUs are means, memory is the maximum in MiB (GPU: of one GPU)"
    ),
    requested=null_or(NUMBER, "unknown; for gpu_memory the memory of that GPU"),
)
RUNS = an_object(
    runs=listed(
        an_object(
            True,
            id=TEXT,
            job_id=WHOLE,
            full=FLAG,
            user=TEXT,
            state=TEXT,
            percentiles=PERCENTILES,
            by_device=null_or(listed(an_object(node=TEXT, device=TEXT, percentiles=PERCENTILES))),
            use=null_or(listed(_USE), "the run belongs to another user"),
            suggestions=null_or(
                listed(TEXT), "the run belongs to another user; at most three, only for ended runs"
            ),
        )
    )
)
ENDED_RUNS = an_object(
    runs=listed(an_object(True, id=TEXT, job_id=WHOLE, user=TEXT, account=TEXT, state=TEXT, end_s=WHOLE)),
    cursor=null_or(TEXT, "this is the last page"),
    matched=described(
        {"type": ["string", "null"], "enum": ["job", "user", "account", "app", None]},
        "what the search was found in; null without a search",
    ),
    since_s=described(WHOLE, "the listed runs ended after this time"),
)
TIMELINES = an_object(
    runs=listed(an_object(id=TEXT, job_id=WHOLE, submit_s=WHOLE, devices=null_or(listed({"type": "object"}))))
)
WINDOWS = an_object(
    windows=listed({"type": "object"}),
    requested=described(
        FLAG, "windows have just been requested from the job's nodes; repeat the request in ten seconds"
    ),
)
DIAGNOSIS = an_object(
    by=described(TEXT, "the data of the verdict, in words"),
    verdict=an_object(
        True,
        cause=TEXT,
        kind=described(TEXT, "empty if the cause has no kinds"),
        suspect=FLAG,
        confidence=NUMBER,
        since_s=MOMENT,
        until_s=MOMENT,
        evidence=listed(an_object(True, text=TEXT)),
        why_not=listed(TEXT),
        next_step=TEXT,
    ),
)
ERROR = an_object(error=TEXT)
