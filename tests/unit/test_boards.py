"""Weights & Biases and MLflow hold every record, in their offline modes."""

from __future__ import annotations

import json
import os
import sys

import pytest
from installed import is_installed
from programs import run_python

PROGRAM = """
import sys
from worlds import configure, normals, tensors
from hvd_sparse.collectives.local import LocalWorld
from hvd_sparse.step.session import Session
from hvd_sparse.frontend.recorder import Outlet, Recorder
from hvd_sparse.registry import WRITERS
from hvd_sparse.telemetry.contract import Place

SPECS = tensors((20, 5), (7,))
heard = []

def train(collective):
    session = Session(configure("topk", 0.1), SPECS, collective)
    outlet = Outlet([writer, heard.append], Place(collective.rank, 1))
    recorder = Recorder(session.step, 4, outlet)
    recorder.put("run", {"name": "x", "config": session.step.configuration.describe()})
    for step in range(9):
        session.reduce(normals(SPECS, collective.rank, step))
    recorder.log(None, {"loss": 0.5})
    recorder.close()
"""
WANDB = """
writer = WRITERS.create("wandb", project="tests", mode="offline")
LocalWorld(1, 100.0).run(train)
"""
MLFLOW = """
import json, mlflow
store = "file:" + sys.argv[1]
writer = WRITERS.create("mlflow", tracking_uri=store, experiment="tests")
LocalWorld(1, 100.0).run(train)
client = mlflow.MlflowClient()
(found,) = client.search_runs([client.get_experiment_by_name("tests").experiment_id])
norms = client.get_metric_history(found.info.run_id, "residual_norm/t0")
print("found", json.dumps({
    "status": found.info.status,
    "norms": [(each.step, each.value) for each in norms],
    "loss": found.data.metrics["loss"],
    "files": [each.path for each in client.list_artifacts(found.info.run_id)],
    "wanted": [(r["step"], r["tensors"]["t0"]["residual_norm"]) for r in heard if "total" in r],
}))
"""


PATHS = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
"""The packages may lie in a folder of their own."""


def test_weights_and_biases_holds_every_record_offline(tmp_path):
    if not is_installed("wandb"):
        pytest.skip("wandb is not installed")
    quiet = {"WANDB_SILENT": "true", "WANDB_DIR": str(tmp_path), **PATHS}
    done = run_python("-c", PROGRAM + WANDB, **quiet)
    assert done.returncode == 0 and "telemetry:" not in done.stderr, done.stderr
    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    content = file.read_bytes()
    assert content.count(b"residual_norm/t0") >= 3, "a record at steps 1, 4 and 8"
    assert b"hvd_sparse/step" in content and b"loss" in content


def test_mlflow_holds_every_record_in_a_store_of_files(tmp_path):
    if not is_installed("mlflow"):
        pytest.skip("mlflow is not installed")
    store = {"MLFLOW_ALLOW_FILE_STORE": "true", **PATHS}
    done = run_python("-c", PROGRAM + MLFLOW, str(tmp_path / "runs"), **store)
    assert done.returncode == 0 and "telemetry:" not in done.stderr, done.stderr
    (line,) = [each for each in done.stdout.splitlines() if each.startswith("found ")]
    found = json.loads(line.removeprefix("found "))
    assert found["status"] == "FINISHED" and found["loss"] == 0.5
    assert found["norms"] == found["wanted"] and len(found["norms"]) == 3
    assert found["files"] == ["hvd_sparse.json"]
