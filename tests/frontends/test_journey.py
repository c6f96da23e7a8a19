"""``python -m benchmarks journey`` follows a tensor through real steps of both frameworks."""

import json

import pytest
from installed import horovod_parts
from programs import run_python

pytestmark = pytest.mark.skipif(
    not {"torch", "tensorflow"} <= horovod_parts(), reason="Horovod was built without a framework"
)


@pytest.fixture(scope="module")
def journey(tmp_path_factory):
    output = tmp_path_factory.mktemp("journey")
    run = run_python("-m", "benchmarks", "journey", "--output", str(output))
    assert run.returncode == 0, run.stderr[-4000:]
    page = (output / "journey.md").read_text()
    return json.loads((output / "journey.json").read_text()), page


def test_the_page_judges_every_goal(journey):
    document, page = journey
    judged = {(e["framework"], e["goal"]) for e in document["lines"] if e["goal"]}
    assert judged == {
        ("PyTorch", "≤ 60 calls in ≤ 15 files"),
        ("PyTorch", "≤ 8 calls"),
        ("TensorFlow", "≤ 60 calls in ≤ 18 files"),
    }
    assert page.count(" met |") + page.count(" missed |") == 3


def test_both_calls_of_a_tensor_are_followed_into_the_kernels(journey):
    document, page = journey
    files = {
        (e["framework"], e["what"].split(",")[0], e["part"]): {file for file, *_ in e["way"]}
        for e in document["ways"]
        if "thirty" not in e["what"]
    }
    takes = [seen for (_, what, part), seen in files.items() if part in ("compress", "send")]
    gives = [seen for (_, what, part), seen in files.items() if part in ("decompress", "receive")]
    assert len(takes) == len(gives) == 3  # two tensors in PyTorch, one in TensorFlow
    dense = files["PyTorch", "dense", "compress"]
    for seen in takes:
        assert any("kernels" in file for file in seen) is (seen is not dense)
    assert "torch/compressor.py: " in page


def test_a_pair_is_the_sum_of_its_calls(journey):
    for what in ("compressed, alone", "dense"):
        lines = {
            line["part"]: line
            for line in journey[0]["lines"]
            if line["framework"] == "PyTorch" and line["what"].startswith(what)
        }
        pair = lines["the pair"]
        assert lines["compress"]["calls"] + lines["decompress"]["calls"] == pair["calls"]
        assert pair["fewest"] <= pair["calls"] <= pair["most"]
