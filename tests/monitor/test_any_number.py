"""Any value of any parameter of slurm-gpuweb's API is used, or rejected by a 4xx that names it."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from slurm_gpu.monitor.routes import ROUTES, ApiRoute
from tests.monitor.small_cluster import Here
from tests.odd_numbers import TEXTS

WITH_PARAMETERS = [route for route in ROUTES if route.parameters]


def ask(here: Here, target: str) -> None:
    answer = here.get(target)
    assert answer.status_code < 500, f"{target[:80]}: {answer.status_code} {answer.text[:200]}"
    assert answer.status_code < 400 or len(answer.text) < 20_000, target


@pytest.mark.parametrize("route", WITH_PARAMETERS, ids=lambda route: route.path)
def test_any_parameter_is_answered(here: Here, route: ApiRoute) -> None:
    for parameter in route.parameters:
        for text in map(quote, TEXTS):
            if parameter.in_path:
                ask(here, route.path.replace(f"{{{parameter.name}}}", text))
            else:
                ask(here, f"{route.path.replace('{job}', '17')}?{parameter.name}={text}")


@pytest.mark.parametrize("name", ["id", "run"])
def test_any_parameter_of_the_diagnosis_is_answered(here: Here, name: str) -> None:
    for text in map(quote, TEXTS):
        ask(here, f"/diagnosis?{name}={text}" + ("&id=17" if name == "run" else ""))


def test_the_diagnosis_refuses_what_is_no_job(here: Here) -> None:
    assert here.get("/diagnosis?id=x").status_code == 400


def test_any_part_of_another_path_is_answered(here: Here) -> None:
    for text in map(quote, TEXTS):
        ask(here, f"/{text}")
