"""The ways of gradients: parts declare where they work, and what declares nothing is staged."""

import dataclasses

import pytest
from installed import horovod_parts, is_installed
from programs import run_python

from hvd_sparse.configuration import PARTS, STAGES, Configuration
from hvd_sparse.types import TensorSpec

pytestmark = pytest.mark.skipif(not is_installed("torch"), reason="torch is not installed")

WEIGHT = TensorSpec("weight", (64, 64), "float32")


def why(spec=WEIGHT, **options):
    chosen = {"selector": {"id": "topk", "density": 0.01}, **options}
    return Configuration.create(**chosen).why_staged(spec)


def test_it_is_known_of_every_common_option_whether_it_stages():
    stage_nothing = {
        *("min_numel", "compress_1d", "groups", "max_gathered_bytes", "clip_grad_norm"),
        *("allow_dense", "on_nonfinite", "telemetry_every", "name", "timeout_s", "wire"),
    }
    fields = {field.name for field in dataclasses.fields(Configuration)}
    assert set(STAGES) | stage_nothing == fields - set(PARTS)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, ""),
        ({"engine": "torch"}, ""),
        ({"memory": "none"}, "memory 'none' selects from the gradient itself"),
        ({"exchange": "oktopk"}, "exchange 'oktopk' reads the vector on the host"),
        ({"rollback": False}, "rollback False"),
        ({"select_over": "group"}, "select_over 'group'"),
        ({"telemetry": True}, "telemetry measures"),
        ({"engine": "numpy"}, "engine works on arrays on the host"),
        ({"min_numel": 5000}, "they are never compressed"),
        ({"memory": {"id": "momentum_correction", "clip_norm": 1.0}}, "memory 'momentum_corr"),
        (
            {"memory": {"id": "error_feedback", "residual": "bfloat16"}},
            "memory 'error_feedback' with residual 'bfloat16' rounds",
        ),
    ],
)
def test_the_reason_is_told(options, words):
    told = why(**options)
    assert told.startswith(words) if words else not told


def test_a_part_of_a_users_own_is_staged():
    from hvd_sparse.selectors.contract import DensitySelector

    class Own(DensitySelector):
        id = "own"

    made = Configuration.create(selector={"id": "topk", "density": 0.01})
    told = dataclasses.replace(made, selector=Own(0.01)).why_staged(WEIGHT)
    assert told == "selector 'own' is not known to work on devices"


@pytest.mark.skipif("torch" not in horovod_parts(), reason="Horovod was built without PyTorch")
@pytest.mark.full
def test_doctor_names_both_paths_of_gradients_on_a_device():
    script = (
        "from devices import pretend\n"
        "from hvd_sparse.cli import main\n"
        "pretend.load()\n"
        "main(['doctor'])\n"
    )
    done = run_python("-c", script)
    told = next(line for line in done.stdout.splitlines() if "gradients on the CPU: host" in line)
    assert "on pretend: device" in told, done.stdout + done.stderr
    assert "staged (copied to the host and back)" in told
    assert "wire of messages: host; " in done.stdout
