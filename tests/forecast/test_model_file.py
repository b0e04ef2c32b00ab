"""A truncated, damaged or forged model is rejected with one kind of error, or it forecasts."""

import io
import json
import zipfile
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from slurm_gpu.errors import DatabaseError
from slurm_gpu.forecast import packing
from slurm_gpu.forecast.forecaster import LEARNED, TABLES
from slurm_gpu.forecast.model import known_runs, make_model
from slurm_gpu.forecast.model_file import model_bytes, read_model
from slurm_gpu.forecast.queue import Vocabulary, feature_names, past_samples
from tests.examples import examples
from tests.forecast.plainlearner import plain_learner
from tests.forecast.queues import DAY_S, NOW_S, made_up_runs

RUNS = made_up_runs(240, days=4.0)
QUEUE = known_runs(RUNS, NOW_S - DAY_S / 2)[-40:]
WANTED = QUEUE[-3:]


def learned_model():
    """Return a model whose regression forecasts jobs of both kinds, even if the tables are better."""
    model = make_model(RUNS, NOW_S, plain_learner)
    past = past_samples(RUNS, model.vocabulary, NOW_S).known_at(NOW_S)
    regression = plain_learner(past, past.samples.names, np.ones(len(past.wait_s)))
    found = model.forecaster.corrections
    corrections = {kind: replace(one, source=LEARNED) for kind, one in found.items()}
    assert set(corrections) == {"cpu", "gpu"}
    return replace(
        model, forecaster=replace(model.forecaster, regression=regression, corrections=corrections)
    )


MODEL = learned_model()
BODY = model_bytes(MODEL)
with zipfile.ZipFile(io.BytesIO(BODY)) as _file:
    PARTS = {name: _file.read(name) for name in _file.namelist()}
HEADER = json.loads(PARTS["header.json"])


def packed(parts, compression=zipfile.ZIP_DEFLATED):
    """Return a zip file of these parts, as a user with access to the database could forge it."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as made:
        for name, content in parts.items():
            made.writestr(name, content)
    return file.getvalue()


def refused_or_forecasts(body):
    """Return whether `body` is rejected; if not, check that forecasts and drivers are finite and ordered."""
    try:
        model = read_model(body)
    except DatabaseError as error:
        assert str(error).startswith("the stored forecast model cannot be read")  # noqa: PT017
        return True
    said = model.forecast(QUEUE, WANTED, NOW_S - DAY_S / 2)
    for values in (said.lower_s, said.median_s, said.upper_s):
        assert np.isfinite(values).all()
        assert (values > 0).all()
    assert (said.lower_s <= said.median_s).all()
    assert (said.median_s <= said.upper_s).all()
    for one in model.drivers(QUEUE, WANTED[:1], NOW_S - DAY_S / 2):
        assert 0 < one.factor < np.inf
    json.dumps([said.lower_s.tolist(), model.n_samples, model.since_s], allow_nan=False)
    return False


def test_an_intact_model_forecasts_the_same_after_storage():
    again = read_model(BODY)
    assert again.read_error == ""
    one, other = (model.forecast(QUEUE, WANTED, NOW_S) for model in (MODEL, again))
    assert set(other.source) == {LEARNED}
    for name in ("lower_s", "median_s", "upper_s"):
        np.testing.assert_allclose(getattr(other, name), getattr(one, name), rtol=1e-3)
    np.testing.assert_array_equal(again.typical, MODEL.typical)
    assert model_bytes(again) == BODY


def test_feature_names_need_no_job():
    assert list(feature_names()) == list(past_samples(RUNS, Vocabulary.of(RUNS), NOW_S).names)


@settings(suppress_health_check=[HealthCheck.large_base_example, HealthCheck.data_too_large])
@given(st.data())
def test_damaged_bytes_are_refused_or_forecast(data):
    """Bytes are flipped, removed, doubled or inserted."""
    body = bytearray(BODY)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, max(0, len(body) - 1)))
        length = data.draw(st.sampled_from([1, 1, 4, 40, 4000]))
        match data.draw(st.sampled_from(["turn", "cut", "put", "double"])):
            case "turn":
                body[at : at + 1] = bytes([data.draw(st.integers(0, 255))])
            case "cut":
                del body[at : at + length]
            case "put":
                body[at:at] = data.draw(st.binary(max_size=40))
            case "double":
                body[at:at] = body[at : at + length]
    refused_or_forecasts(bytes(body))


@given(st.binary(max_size=200))
@example(b"")
@example(b"PK\5\6" + bytes(18))
def test_other_bytes_are_refused(body):
    assert refused_or_forecasts(body)


_NUMBERS = st.one_of(
    st.integers(-(2**40), 2**40), st.floats(), st.sampled_from([0, -1, 1, 255, 2**31 - 1, -(2**31), 1e300])
)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("roots", "<i4"),
        ("feature", "<i4"),
        ("left", "<i4"),
        ("right", "<i4"),
        ("first", "<i4"),
        ("threshold", "<f8"),
        ("value", "<f4"),
        ("bins", "u1"),
        ("shares", "<f4"),
        ("slopes", "<f8"),
        ("typical", "<f8"),
        ("started.all", "<f4"),
        ("waiting.partition", "<f4"),
        ("errors.tables.all", "<f4"),
        ("errors.learned.partition", "<f4"),
    ],
)
@settings(max_examples=examples(10))
@given(data=st.data())
def test_other_numbers_are_refused_or_forecast(name, dtype, data):
    """In a file with correct checksums some values are changed, and some are removed or added."""
    values = np.frombuffer(PARTS[name], dtype).copy()
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(values) - 1))
        with np.errstate(all="ignore"):
            values[at] = np.array(data.draw(_NUMBERS)).astype(dtype)
    content = values.tobytes()[: data.draw(st.integers(0, 8 * len(values)))]
    content += data.draw(st.binary(max_size=16))
    refused_or_forecasts(packed(PARTS | {name: content}))


def test_a_typical_value_above_float32_costs_the_regression():
    values = np.frombuffer(PARTS["typical"], "<f8").copy()
    values[0] = 3.5e38
    model = read_model(packed(PARTS | {"typical": values.tobytes()}))
    assert model.forecaster.regression is None


_JSON = st.recursive(
    st.none() | st.booleans() | _NUMBERS | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=examples(40))
@given(st.data())
def test_a_model_with_another_value_is_refused_or_forecasts(data):
    """One value in the JSON is replaced."""
    header = json.loads(PARTS["header.json"])
    place = header
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(place[key], (dict, list)) or not place[key] or data.draw(st.booleans()):
            break
        place = place[key]
    place[key] = data.draw(_JSON)
    refused_or_forecasts(packed(PARTS | {"header.json": json.dumps(header)}))


@pytest.mark.parametrize("name", [name for name in PARTS if name != "header.json"])
def test_the_tables_forecast_if_the_regression_is_damaged(name):
    """The interval is computed from the errors of the tables."""
    parts = {part: content for part, content in PARTS.items() if part != name}
    if name.startswith(("started.", "waiting.", "errors.tables.")):
        with pytest.raises(DatabaseError, match=f"{name} is missing"):
            read_model(packed(parts))
        return
    model = read_model(packed(parts))
    assert model.read_error == f"{name} is missing"
    said = model.forecast(QUEUE, WANTED, NOW_S)
    assert set(said.source) == {TABLES}
    of_tables = {kind: replace(one, source=TABLES) for kind, one in MODEL.forecaster.corrections.items()}
    expected = replace(MODEL.forecaster, regression=None, corrections=of_tables)
    np.testing.assert_allclose(
        said.upper_s, replace(MODEL, forecaster=expected).forecast(QUEUE, WANTED, NOW_S).upper_s, rtol=1e-3
    )


@pytest.mark.parametrize(
    ("header", "why"),
    [
        (HEADER | {"format": 3}, "it has format 3, not 4"),
        (HEADER | {"more": 1}, "unknown field `more`"),
        (HEADER | {"n_samples": "many"}, "Expected `int`"),
        (HEADER | {"accounts": ["b", "a"]}, "accounts are not sorted or not unique"),
        ({"format": 4}, "missing required field"),
    ],
)
def test_the_error_names_the_damaged_part(header, why):
    with pytest.raises(DatabaseError, match=why):
        read_model(packed(PARTS | {"header.json": json.dumps(header)}))


@pytest.mark.parametrize("text", ["[" * 100_000, '{"format":4,"x":' + "[" * 100_000, "\ud800", "NaN", ""])
def test_invalid_json_is_refused(text):
    content = text.encode("utf-8", "surrogatepass")
    assert refused_or_forecasts(packed(PARTS | {"header.json": content}))


def test_trees_that_never_end_are_refused():
    """A node that is its own child would never end a forecast."""
    loop = {
        "feature": np.zeros(1, "<i4"),
        "left": np.zeros(1, "<i4"),
        "right": np.zeros(1, "<i4"),
    }
    model = read_model(packed(PARTS | {name: array.tobytes() for name, array in loop.items()}))
    assert model.read_error == "a path along left and right has more than 1000 nodes"


def test_a_zip_bomb_is_not_unpacked(monkeypatch):
    bomb = {f"bomb{n}": bytes(2**20) for n in range(3)}
    body = packed(PARTS | bomb)
    assert not refused_or_forecasts(body)
    assert len(body) < len(BODY) + 2**16
    monkeypatch.setattr(packing, "MAX_UNPACKED_BYTES", 2**21)
    with pytest.raises(DatabaseError, match="parts of 2097152 bytes are allowed"):
        read_model(body)


def test_a_part_is_unpacked_only_up_to_its_stated_size():
    """The zip directory states a size of 8 bytes instead of 16 MiB."""
    size = 2**24 + 4321
    body = packed(PARTS | {"typical": bytes(size)})
    lied = body.replace(size.to_bytes(4, "little"), (8).to_bytes(4, "little"))
    assert lied != body
    assert read_model(lied).read_error.startswith("typical: ")


@pytest.mark.parametrize("compression", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_other_compressions_are_refused(compression):
    """Other compression methods unpack everything at once."""
    with pytest.raises(DatabaseError, match="a compression other than deflate"):
        read_model(packed(PARTS, compression))
