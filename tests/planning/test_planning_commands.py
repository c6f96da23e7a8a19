"""``hvd-sparse advise`` and ``hvd-sparse simulate``, by what they print and write."""

from __future__ import annotations

import argparse
import json

import pytest

from hvd_sparse.autotune.costmodel import Layer, Profile
from hvd_sparse.cli import main
from hvd_sparse.cli._cost_probe import SIZES
from hvd_sparse.cli._settings import bandwidth, duration
from hvd_sparse.frontend.table import table

RESNET = ["--model", "resnet50", "--backward", "80ms"]
QUICK = ["--density", "0.001", "--codec", "index_value", "--exchange", "allgather"]


def advised(capsys, *arguments):
    assert main(["advise", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_advice_comes_as_json(capsys):
    found = advised(
        capsys, *RESNET, "--world-size", "4", "--bandwidth", "1Gbit", "--latency", "50us", *QUICK
    )
    assert found["choice"] == "sparse"
    assert found["chosen"]["exchange"] == "allgather" and found["chosen"]["density"] == 0.001
    assert found["step_s"] < min(found["dense"]["step_s"], found["fp16"]["step_s"])
    assert found["dense"]["compute_s"] == pytest.approx(0.12)
    assert found["crossover_bit_s"] > 1e9
    assert sum(map(len, found["groups"])) == 54


def test_advice_against_compressing_says_so(capsys):
    found = advised(capsys, *RESNET, "--world-size", "4", "--bandwidth", "100Gbit", *QUICK)
    assert found["choice"] in ("dense", "fp16") and found["chosen"] is None
    assert "will not help" in found["sentence"]


def test_advice_is_printed_for_people(capsys):
    assert main(["advise", *RESNET, "--world-size", "4", *QUICK]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    for words in (
        "dense",
        "fp16",
        "advised",
        "Compress: ldte_bs at density 0.001",
        "exact",
        "first ready first",
    ):
        assert words in printed


def test_layers_and_costs_may_come_from_files(capsys, tmp_path):
    layers, costs = tmp_path / "layers.json", tmp_path / "costs.json"
    layers.write_text(Profile((Layer("b", 10**6, 0.01), Layer("a", 10**6, 0.01))).to_json())
    line = {"start_s": 1e-3, "byte_s": 8e-8}
    costs.write_text(
        json.dumps(
            {"work": {"entry_s": 1e-9}, "lines": dict.fromkeys(("allgather", "allreduce"), line)}
        )
    )
    found = advised(
        capsys,
        "--model",
        str(layers),
        "--forward",
        "30ms",
        "--costs",
        str(costs),
        "--world-size",
        "3",
        *QUICK,
    )
    assert found["crossover_bit_s"] is None
    assert found["dense"]["compute_s"] == pytest.approx(0.05)
    assert found["candidates"][0]["compute_s"] == pytest.approx(0.05 + 2e-3)
    assert found["dense"]["waiting_s"] > 4 * 2 / 3 * 2 * 10**6 * 8e-8 - 0.02


def test_densities_that_hide_are_told_layer_by_layer(capsys):
    found = advised(capsys, *RESNET, "--world-size", "4", *QUICK, "--hiding", "0.001", "0.05")
    assert len(found["hiding"]["layers"]) == 54
    assert (
        found["hiding"]["layers"][0]["density"] > found["hiding"]["layers"][-1]["density"] == 0.001
    )


def test_densities_that_hide_are_printed_as_a_table(capsys):
    assert main(["advise", *RESNET, "--world-size", "4", *QUICK, "--hiding", "0.001", "0.05"]) == 0
    printed = capsys.readouterr().out
    assert "layers.19.conv3.weight" in printed and "With these densities a step takes" in printed


@pytest.mark.parametrize("missing", ["model", "world-size"])
def test_offline_it_must_be_told_the_model_and_the_ranks(capsys, monkeypatch, missing):
    for name in SIZES:
        monkeypatch.delenv(name, raising=False)
    given = {"model": ["--model", "resnet50"], "world-size": ["--world-size", "4"]}
    assert (
        main(["advise", *[word for name in given if name != missing for word in given[name]]]) == 1
    )
    assert f"--{missing} is missing" in capsys.readouterr().err


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize(
    "described", [["--bandwidth", "1Gbit"], ["--world-size", "2"], ["--costs", "c.json"]]
)
def test_what_is_measured_must_not_be_described(capsys, monkeypatch, name, described):
    for other in SIZES:
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(name, "2")
    assert main(["advise", "--model", "resnet50", *described]) == 1
    assert f"{described[0]} describes what is measured" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "resnet18"], "none of resnet50"),
        ([*RESNET, "--costs", "/nowhere.json"], "costs '/nowhere.json'"),
        ([*RESNET, "--method", "adacomp"], "unknown option 'density'"),
        ([*RESNET, "--exchange", "pigeon"], "no exchange is called 'pigeon'"),
        ([*RESNET, "--exchange", "auto"], "no exchange and codec"),
    ],
)
def test_what_cannot_be_advised_on_is_an_error_in_words(capsys, arguments, words):
    assert main(["advise", "--world-size", "4", *arguments]) == 1
    assert words in capsys.readouterr().err


def test_a_density_that_is_none_is_an_error_of_the_command_line(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["advise", "--world-size", "4", *RESNET, "--density", "2"])
    assert ended.value.code == 2 and "density is 2.0" in capsys.readouterr().err


def test_a_simulation_is_written(tmp_path, capsys):
    arguments = ["--world-size", "2", "16", "--bandwidth", "1Gbit", "--output", str(tmp_path)]
    assert main(["simulate", *RESNET, *arguments, "--json"]) == 0
    document = json.loads((tmp_path / "simulation.json").read_text())
    assert {point["ranks"] for point in document["points"]} == {2, 16}
    assert set(document["networks"]) == {"1 Gbit/s, flat", "1 Gbit/s, 8 ranks a node"}
    assert document["other_s"] == pytest.approx(0.04)
    assert not (tmp_path / "simulation.png").exists()


def test_a_simulation_is_drawn(tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="matplotlib draws")
    arguments = ["--world-size", "2", "16", "--bandwidth", "1Gbit", "--output", str(tmp_path)]
    assert main(["simulate", *RESNET, *arguments]) == 0
    assert (tmp_path / "simulation.png").read_bytes().startswith(b"\x89PNG")
    assert "hierarchical" in capsys.readouterr().out


def test_a_simulation_takes_costs_that_were_measured(tmp_path):
    line, costs = {"start_s": 1e-3, "byte_s": 8e-8}, tmp_path / "costs.json"
    lines = dict.fromkeys(("allgather", "allreduce", "alltoall"), line)
    costs.write_text(json.dumps({"world_size": 2, "lines": lines, "work": {"submit_s": 1e-3}}))
    arguments = [*RESNET, "--costs", str(costs), "--apart", "--output", str(tmp_path), "--json"]
    assert main(["simulate", *arguments, "--world-size", "2", "4"]) == 0
    document = json.loads((tmp_path / "simulation.json").read_text())
    assert set(document["networks"]) == {"as measured on 2 ranks"}
    dense = [point for point in document["points"] if point["method"] == "dense"]
    assert [point["ranks"] for point in dense] == [2, 4]
    assert all(point["waiting_s"] > 0.5 * 25_557_032 * 4 * 8e-8 for point in dense)
    assert main(["simulate", *arguments, "--world-size", "2", "--bandwidth", "1Gbit"]) == 0
    assert len(json.loads((tmp_path / "simulation.json").read_text())["networks"]) == 3


def test_nothing_is_saved_where_nothing_is_measured(capsys, monkeypatch, tmp_path):
    for name in SIZES:
        monkeypatch.delenv(name, raising=False)
    assert (
        main(["advise", *RESNET, "--world-size", "4", "--save", str(tmp_path / "costs.json")]) == 1
    )
    assert "--save keeps what is measured" in capsys.readouterr().err
    assert main(["advise", *RESNET, "--world-size", "4", "--quick"]) == 1
    assert "--quick is of measuring" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "bits"),
    [
        ("1Gbit", 1e9),
        ("100mbit", 1e8),
        ("2.5 Gbps", 2.5e9),
        ("25G", 2.5e10),
        ("64kbit", 64e3),
        ("1e9bit/s", 1e9),
    ],
)
def test_bandwidths_are_read(text, bits):
    assert bandwidth(text) == pytest.approx(bits)


@pytest.mark.parametrize(
    ("text", "seconds"), [("50us", 5e-5), ("80ms", 0.08), ("1.5 s", 1.5), ("10ns", 1e-8)]
)
def test_times_are_read(text, seconds):
    assert duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["fast", "-1Gbit", "0bit", "1GB", "1..2G", "1e999Gbit", ""])
def test_what_is_no_bandwidth_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError):
        bandwidth(text)


@pytest.mark.parametrize("text", ["ms", "-1ms", "1..s", "1e999s", "5 min", ""])
def test_what_is_no_time_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError):
        duration(text)


@pytest.mark.parametrize(
    ("option", "text", "said"),
    [
        ("--bandwidth", "10", "'10' has no unit: write 10Gbit or 10Mbit"),
        ("--bandwidth", "1e9", "'1e9' has no unit"),
        ("--backward", "80", "'80' has no unit: write 80us or 80ms or 80s"),
        ("--latency", "50", "'50' has no unit: write 50us"),
    ],
)
@pytest.mark.parametrize("command", ["advise", "simulate"])
def test_a_number_without_a_unit_is_refused_and_the_unit_is_said(
    capsys, command, option, text, said
):
    with pytest.raises(SystemExit) as ended:
        main([command, "--model", "resnet50", option, text])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_what_nobody_has_said_is_told_as_assumed(capsys, tmp_path):
    assert main(["advise", "--model", "resnet50", "--world-size", "4", *QUICK]) == 0
    printed = capsys.readouterr().out
    for words in (
        "the backward pass takes 52.6 ms, as 32 samples do at 10 Tflop/s (--backward)",
        "the rest of a step takes 26.3 ms, half of the backward pass (--forward)",
        "a node's link has 1 Gbit/s (--bandwidth)",
        "a message between nodes takes 50 us (--latency)",
        "selecting and coding take what one core of a server's processor takes",
        "every rank has a node of its own (--ranks-per-node)",
    ):
        assert f"  {words}" in printed
    assert (
        main(
            [
                "simulate",
                "--model",
                "resnet50",
                "--world-size",
                "2",
                "--output",
                str(tmp_path),
                "--json",
            ]
        )
        == 0
    )
    assumed = json.loads(capsys.readouterr().out)["assumed"]
    assert "the backward pass takes 52.6 ms, as 32 samples do at 10 Tflop/s (--backward)" in assumed
    assert "a node's link has 1 Gbit/s or 10 Gbit/s (--bandwidth)" in assumed
    assert "inside a node every rank has 100 Gbit/s, and a message takes 5 us (--costs)" in assumed


def test_what_was_said_is_not_told_as_assumed(capsys, tmp_path):
    costs, model = tmp_path / "costs.json", tmp_path / "model.json"
    line = {"start_s": 1e-3, "byte_s": 8e-8}
    lines = {"allgather": line, "allreduce": line}
    costs.write_text(json.dumps({"work": {"entry_s": 1e-9}, "lines": lines}))
    model.write_text(Profile((Layer("a", 10**6, 0.01),), other_s=0.005).to_json())
    told = ["--model", str(model), "--apart", "--costs", str(costs), "--ranks-per-node", "1"]
    assert advised(capsys, *told, "--world-size", "2", *QUICK)["assumed"] == []
    described = [
        *RESNET,
        "--forward",
        "40ms",
        "--bandwidth",
        "1Gbit",
        "--latency",
        "10us",
        "--ranks-per-node",
        "1",
    ]
    assumed = advised(capsys, *described, "--world-size", "2", *QUICK)["assumed"]
    assert [each.split()[0] for each in assumed] == ["one", "selecting", "a"]


def test_a_model_that_tells_no_time_needs_one(capsys, tmp_path):
    """It would be predicted for a backward pass of a second, which nobody has said."""
    model = tmp_path / "model.json"
    model.write_text(json.dumps([{"name": "a", "numel": 10**6}]))
    assert main(["advise", "--model", str(model), "--world-size", "2", *QUICK]) == 1
    assert "say --backward" in capsys.readouterr().err
    found = advised(
        capsys, "--model", str(model), "--world-size", "2", "--backward", "10ms", *QUICK
    )
    assert found["dense"]["compute_s"] == pytest.approx(0.015)


def test_a_simulation_as_json_is_printed_and_is_the_file(tmp_path, capsys):
    assert (
        main(["simulate", *RESNET, "--world-size", "2", "--output", str(tmp_path), "--json"]) == 0
    )
    printed = capsys.readouterr()
    assert json.loads(printed.out) == json.loads((tmp_path / "simulation.json").read_text())
    assert printed.err == "" and [path.name for path in tmp_path.iterdir()] == ["simulation.json"]


def test_a_tables_numbers_end_in_one_line_and_its_words_begin_in_one():
    drawn = table(
        ("way", "ms"), [["dense", "1,255.7"], ["fp16", "6.0"]], left=("way",), title="steps"
    )
    assert drawn.splitlines() == [
        "steps",
        "way         ms",
        "-----  -------",
        "dense  1,255.7",
        "fp16       6.0",
    ]
