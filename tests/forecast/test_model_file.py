"""A stored model may be cut off, damaged or of any making: it is refused, in one way, or it forecasts."""

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
from slurm_gpu.forecast.queue import Vocabulary, feature_names, past_looks
from tests.examples import examples
from tests.forecast.plainlearner import plain_learner
from tests.forecast.queues import DAY_S, NOW_S, made_up_runs

RUNS = made_up_runs(240, days=4.0)
QUEUE = known_runs(RUNS, NOW_S - DAY_S / 2)[-40:]
WANTED = QUEUE[-3:]


def learned_model():
    """A model of which the learned part forecasts jobs of both kinds, be that the better one or not."""
    model = make_model(RUNS, NOW_S, plain_learner)
    past = past_looks(RUNS, model.vocabulary, NOW_S).known_at(NOW_S)
    regression = plain_learner(past, past.looks.names, np.ones(len(past.wait_s)))
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
TOLD = json.loads(PARTS["told.json"])


def packed(parts, compression=zipfile.ZIP_DEFLATED):
    """A zip file of these parts, as whoever may write into the database could make it."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as made:
        for name, content in parts.items():
            made.writestr(name, content)
    return file.getvalue()


def refused_or_forecasts(body):
    """Whether it is refused; else its forecasts and their reasons are finite numbers in order."""
    try:
        model = read_model(body)
    except DatabaseError as error:
        assert str(error).startswith("the stored forecasts cannot be read; make them anew: ")  # noqa: PT017
        return True
    said = model.forecast(QUEUE, WANTED, NOW_S - DAY_S / 2)
    for values in (said.lower_s, said.median_s, said.upper_s):
        assert np.isfinite(values).all()
        assert (values > 0).all()
    assert (said.lower_s <= said.median_s).all()
    assert (said.median_s <= said.upper_s).all()
    for one in model.drivers(QUEUE, WANTED[:1], NOW_S - DAY_S / 2):
        assert 0 < one.factor < np.inf
    json.dumps([said.lower_s.tolist(), model.n_looks, model.since_s], allow_nan=False)
    return False


def test_a_whole_one_says_the_same_as_before_it_was_stored():
    again = read_model(BODY)
    assert again.lost == ""
    one, other = (model.forecast(QUEUE, WANTED, NOW_S) for model in (MODEL, again))
    assert set(other.source) == {LEARNED}
    for name in ("lower_s", "median_s", "upper_s"):
        np.testing.assert_allclose(getattr(other, name), getattr(one, name), rtol=1e-3)
    np.testing.assert_array_equal(again.typical, MODEL.typical)
    assert model_bytes(again) == BODY


def test_features_are_named_without_a_look_at_any_job():
    assert list(feature_names()) == list(past_looks(RUNS, Vocabulary.of(RUNS), NOW_S).names)


@settings(suppress_health_check=[HealthCheck.large_base_example, HealthCheck.data_too_large])
@given(st.data())
def test_damaged_bytes_are_refused_or_forecast(data):
    """Bytes turned over, cut out, doubled, put in."""
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
def test_what_is_no_model_is_refused(body):
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
    ],
)
@settings(max_examples=examples(10))
@given(data=st.data())
def test_other_numbers_are_refused_or_forecast(name, dtype, data):
    """In a file whose checksums are right: a few values set, and some cut off or added."""
    values = np.frombuffer(PARTS[name], dtype).copy()
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(values) - 1))
        with np.errstate(all="ignore"):
            values[at] = np.array(data.draw(_NUMBERS)).astype(dtype)
    content = values.tobytes()[: data.draw(st.integers(0, 8 * len(values)))]
    content += data.draw(st.binary(max_size=16))
    refused_or_forecasts(packed(PARTS | {name: content}))


_JSON = st.recursive(
    st.none() | st.booleans() | _NUMBERS | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=examples(40))
@given(st.data())
def test_other_words_are_refused_or_forecast(data):
    """Something else at one place of the JSON."""
    told = json.loads(PARTS["told.json"])
    place = told
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(place[key], (dict, list)) or not place[key] or data.draw(st.booleans()):
            break
        place = place[key]
    place[key] = data.draw(_JSON)
    refused_or_forecasts(packed(PARTS | {"told.json": json.dumps(told)}))


@pytest.mark.parametrize("name", [name for name in PARTS if name != "told.json"])
def test_where_the_learned_part_is_damaged_the_tables_go_on(name):
    """Which ones they are the tables tell by the interval that their own errors gave."""
    parts = {part: content for part, content in PARTS.items() if part != name}
    if name.startswith(("started.", "waiting.")):
        with pytest.raises(DatabaseError, match=f"{name} is missing"):
            read_model(packed(parts))
        return
    model = read_model(packed(parts))
    assert model.lost == f"{name} is missing"
    said = model.forecast(QUEUE, WANTED, NOW_S)
    assert set(said.source) == {TABLES}
    of_tables = {kind: replace(one, source=TABLES) for kind, one in MODEL.forecaster.corrections.items()}
    expected = replace(MODEL.forecaster, regression=None, corrections=of_tables)
    np.testing.assert_allclose(
        said.upper_s, replace(MODEL, forecaster=expected).forecast(QUEUE, WANTED, NOW_S).upper_s, rtol=1e-3
    )


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (TOLD | {"format": 2}, "they have format 2, not 3"),
        (TOLD | {"more": 1}, "unknown field `more`"),
        (TOLD | {"n_looks": "many"}, "Expected `int`"),
        (TOLD | {"accounts": ["b", "a"]}, "accounts: are not different names in their order"),
        ({"format": 3}, "missing required field"),
    ],
)
def test_what_is_wrong_is_named(told, why):
    with pytest.raises(DatabaseError, match=why):
        read_model(packed(PARTS | {"told.json": json.dumps(told)}))


@pytest.mark.parametrize("text", ["[" * 100_000, '{"format":3,"x":' + "[" * 100_000, "\ud800", "NaN", ""])
def test_words_that_are_no_json_are_refused(text):
    content = text.encode("utf-8", "surrogatepass")
    assert refused_or_forecasts(packed(PARTS | {"told.json": content}))


def test_trees_that_never_end_are_refused():
    """One that leads back to itself would forecast for ever."""
    loop = {
        "feature": np.zeros(1, "<i4"),
        "left": np.zeros(1, "<i4"),
        "right": np.zeros(1, "<i4"),
    }
    model = read_model(packed(PARTS | {name: array.tobytes() for name, array in loop.items()}))
    assert model.lost.startswith("left, right: lead on for more than")


def test_what_unpacks_to_too_much_is_not_unpacked(monkeypatch):
    bomb = {f"bomb{n}": bytes(2**20) for n in range(3)}
    body = packed(PARTS | bomb)
    assert not refused_or_forecasts(body)
    assert len(body) < len(BODY) + 2**16
    monkeypatch.setattr(packing, "MOST_UNPACKED_BYTES", 2**21)
    with pytest.raises(DatabaseError, match="parts of 2097152 bytes in all may be"):
        read_model(body)


def test_a_part_that_lies_about_its_size_is_not_unpacked_further():
    """The directory says 8 bytes, and 16 MiB are packed."""
    size = 2**24 + 4321
    body = packed(PARTS | {"typical": bytes(size)})
    lied = body.replace(size.to_bytes(4, "little"), (8).to_bytes(4, "little"))
    assert lied != body
    assert read_model(lied).lost.startswith("typical: ")


@pytest.mark.parametrize("compression", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_other_ways_to_pack_are_refused(compression):
    """They unpack all at once, however much it is."""
    with pytest.raises(DatabaseError, match="packed in another way"):
        read_model(packed(PARTS, compression))
