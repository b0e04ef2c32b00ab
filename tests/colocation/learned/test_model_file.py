"""A model file is read unchanged, or rejected clearly if damaged, hostile or of another version."""

import io
import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_gpu.colocation.learned import LEARNED_PLANNERS
from slurm_gpu.colocation.learned.model_file import PlannerModel, read_model, write_arrays, write_model
from slurm_gpu.colocation.learned.models import inputs_of, read_any, read_for
from slurm_gpu.colocation.learned.net import Net, new_net
from slurm_gpu.colocation.learned.rows import NAMES
from slurm_gpu.errors import InputError
from tests.colocation.learned.nets import any_images_net, any_scorer


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "model.npz"
    write_model(path, PlannerModel("dqngpu", NAMES, any_scorer(3), {"seed": 3, "data": "table.json"}))
    return path


def test_a_written_model_is_read_back(written: Path):
    model = read_model(written, "dqngpu", NAMES)
    for ours, theirs in zip(model.net.weights, any_scorer(3).weights, strict=True):
        assert np.array_equal(ours, theirs)
    assert model.provenance == {"seed": 3, "data": "table.json"}
    assert written.stat().st_size < 20_000


@pytest.mark.parametrize(
    ("kind", "inputs", "message"),
    [
        ("deeprm_max", NAMES, "is a model for planner 'dqngpu', not for 'deeprm_max'"),
        ("dqngpu", ("other",), "trained by another version"),
    ],
)
def test_a_model_for_something_else_is_refused(
    written: Path, kind: str, inputs: tuple[str, ...], message: str
):
    with pytest.raises(InputError, match=message) as refused:
        read_model(written, kind, inputs)
    assert str(written) in str(refused.value)


def test_a_model_of_the_previous_release_is_read(written: Path):
    with np.load(written) as file:
        parts = dict(file)
    np.savez(written, told=parts.pop("description"), **parts)
    assert read_model(written, "dqngpu", NAMES).provenance == {"seed": 3, "data": "table.json"}


def test_a_missing_file_is_an_error(tmp_path: Path):
    with pytest.raises(InputError, match="No such file"):
        read_model(tmp_path / "none.npz", "dqngpu", NAMES)


@given(st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_file_is_an_error_and_nothing_else(written: Path, data: st.DataObject):
    body = bytearray(written.read_bytes())
    kind = data.draw(st.sampled_from(("flip", "cut", "grow")))
    at = data.draw(st.integers(0, len(body) - 1))
    if kind == "flip":
        body[at] ^= data.draw(st.integers(1, 255))
    elif kind == "cut":
        del body[at:]
    else:
        body[at:at] = data.draw(st.binary(min_size=1, max_size=50))
    other = written.with_name("damaged.npz")
    other.write_bytes(body)
    assert _is_as_written_or_refused(other)


def _is_as_written_or_refused(path: Path) -> bool:
    """Return whether the model is rejected with an error, or is unchanged despite the damage."""
    try:
        model = read_model(path, "dqngpu", NAMES)
    except InputError as error:
        return str(path) in str(error)
    return np.array_equal(model.net.weights[0], any_scorer(3).weights[0])


class _Runs:
    def __reduce__(self):
        return exec, ("raise SystemExit('was run')",)


def test_pickled_code_is_never_run(tmp_path: Path):
    path = tmp_path / "hostile.npz"
    np.savez(path, description=np.array([_Runs()], dtype=object))
    with pytest.raises(InputError, match="is not a model or is damaged"):
        read_model(path, "dqngpu", NAMES)
    path.write_bytes(pickle.dumps(_Runs()))
    with pytest.raises(InputError, match="is not a model or is damaged"):
        read_model(path, "dqngpu", NAMES)


def test_an_archive_that_unpacks_to_gigabytes_is_not_unpacked(tmp_path: Path):
    path = tmp_path / "bomb.npz"
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("weight0.npy", bytes(40 * 2**20))
    path.write_bytes(packed.getvalue())
    with pytest.raises(InputError, match="a model has at most"):
        read_model(path, "dqngpu", NAMES)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_refused(tmp_path: Path, value: float):
    path = tmp_path / "model.npz"
    write_arrays(path, {}, {"weight0": np.array([[value]], dtype=np.float32)})
    with pytest.raises(InputError, match="finite numbers"):
        read_model(path, "dqngpu", NAMES)


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_slurm_gpuctld_which_is_slurmuser_can_read_what_root_trained(tmp_path: Path, umask: int, mode: int):
    path, model = tmp_path / "model.npz", PlannerModel("dqngpu", NAMES, any_scorer(1), {})
    before = os.umask(umask)
    try:
        write_model(path, model)
        assert path.stat().st_mode & 0o777 == mode
        path.chmod(0o604)
        write_model(path, model)
        assert path.stat().st_mode & 0o777 == 0o604
        assert os.umask(umask) == umask
    finally:
        os.umask(before)


@pytest.mark.parametrize("name", LEARNED_PLANNERS)
def test_a_net_that_cannot_see_what_its_planner_sees_is_refused(tmp_path: Path, name: str):
    path = tmp_path / "model.npz"
    good = any_scorer(1) if name == "dqngpu" else any_images_net(name, 1)
    n_inputs, *hidden, n_outputs = good.widths
    write_model(path, PlannerModel(name, inputs_of(name), good, {}))
    assert read_for(path, name).net.widths == good.widths
    for widths in ((n_inputs + 1, *hidden, n_outputs), (n_inputs, *hidden, n_outputs + 1), (n_inputs, 0)):
        write_model(path, PlannerModel(name, inputs_of(name), new_net(widths, np.random.default_rng(0)), {}))
        with pytest.raises(InputError, match=f"the net of planner {name} has {n_inputs} and {n_outputs}"):
            read_any(path)


def test_a_net_that_would_not_return_numbers_is_refused(tmp_path: Path):
    path, huge = tmp_path / "model.npz", np.full((len(NAMES), 1), 3e38, dtype=np.float32)
    write_model(path, PlannerModel("dqngpu", NAMES, Net((huge,), (huge[0],)), {}))
    with pytest.raises(InputError, match="too large: its output is not always a number"):
        read_for(path, "dqngpu")


def test_an_array_without_dimensions_is_no_layer(tmp_path: Path):
    path = tmp_path / "model.npz"
    write_model(path, PlannerModel("dqngpu", NAMES, any_scorer(1), {}))
    with np.load(path) as there:
        np.savez(path, **{**there, "weight0": np.float32(1)})
    with pytest.raises(InputError, match="layer 0 has weights of shape"):
        read_for(path, "dqngpu")
