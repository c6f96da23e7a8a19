"""A report compares runs in one file that fetches nothing."""

import html
import json
import os
import re

import pytest
import worlds
from unit.test_telemetry import record
from worlds import configure, tensors

from hvd_sparse.cli import main
from hvd_sparse.cli.report import read_run, read_runs
from hvd_sparse.errors import InvalidOption
from hvd_sparse.telemetry.jsonl import JsonLines
from hvd_sparse.tracing import START

SPECS = tensors(*((8 * row, 12) for row in range(1, 15)))
STEPS = 12
NAMES = ("sparse <b>", "topk $x_1$", "dense")


def train(path, method, **options):
    configuration, shapes = configure(method, 0.1, **options), {s.key: s.shape for s in SPECS}
    about = {"world_size": 2, "config": configuration.describe(), "shapes": shapes}
    told = [("run", about), ("metrics", {"loss": 1.0, "test_accuracy": 0.9})]
    given = [JsonLines(str(path))], STEPS, configuration, 3, SPECS, told
    worlds.run(2, lambda collective: record(collective, *given))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    paths = [folder / f"{number}.jsonl" for number in range(3)]
    train(paths[0], "ldte_bs")
    train(paths[1], "topk")
    sink = JsonLines(str(paths[2])).open()
    for step in range(STEPS + 1):
        sink.log(step=step, loss=1 / (step + 1), bytes_sent=1000.0)
    sink.close()
    return paths


def drawn(folder, *runs):
    pytest.importorskip("matplotlib", reason="draws the pictures")
    output = folder / "report.html"
    assert main(["report", *map(str, runs), "-o", str(output)]) == 0
    return output.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def text(files, tmp_path_factory):
    named = [f"{name}={path}" for name, path in zip(NAMES, files)]
    return drawn(tmp_path_factory.mktemp("report"), *named)


def test_every_run_every_chart_and_every_layer_is_there(text):
    for name in NAMES:
        assert text.count(html.escape(name)) >= 2, "in the legends and in the table"
    assert "<b>" not in text
    for title in (
        "loss over step",
        "loss over seconds",
        "test accuracy over step",
        "bytes sent over seconds",
        "density by layer",
        "residual norm by layer",
        "seconds per step",
    ):
        assert f">{title}</text>" in text
    for spec in SPECS:
        assert text.count(f">{spec.key}</text>") == 2, "by density and by residual"


def test_the_page_names_nothing_that_is_elsewhere(text):
    # Names of XML's own, which are no addresses to fetch from.
    text = re.sub(r' xmlns(:\w+)?="[^"]*"', "", text)
    assert not re.search(r"https?:|//[a-z]|<script|<link|<img|@import|url\((?!#)", text)
    assert len(text) < 2_000_000


def test_what_an_exchange_does_not_know_is_said_in_its_place(tmp_path):
    path = tmp_path / "x.jsonl"
    train(path, "topk", exchange="gtopk")
    assert drawn(tmp_path, path).count(">no run recorded this value</text>") == 2


def test_a_run_has_the_same_colour_in_all_pictures(tmp_path):
    for name, value in {"a": None, "b": 1.0}.items():
        record = line("metrics", 1, 0.1, loss=value)
        (tmp_path / f"{name}.jsonl").write_text(record)
    text = drawn(tmp_path, tmp_path)
    assert "#ff7f0e" in text and "#1f77b4" not in text, "the second colour, for the second run"


def test_no_input_and_no_records_are_replaced(tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="draws the pictures")
    metrics, trace = line("metrics", 1, 0.1, loss=1.0), json.dumps([{"args": {START: 1}}])
    for name, text in {"a.jsonl": metrics, "b.jsonl": metrics, "a": metrics, "t": trace}.items():
        (tmp_path / name).write_text(text)
    os.link(tmp_path / "a", tmp_path / "link.html")
    for command in ("report a.jsonl -o b.jsonl", "report a -o link.html", "timeline t -o t"):
        verb, given, option, output = command.split()
        arguments = [str(tmp_path / given), option, str(tmp_path / output)]
        assert main([verb, *arguments]) == 1, command
        assert f"{output}' would replace" in capsys.readouterr().err
    assert (tmp_path / "a").read_text() == metrics and (tmp_path / "t").read_text() == trace


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="stands for a full disk")
def test_an_output_that_cannot_be_written_is_named(files, capsys):
    pytest.importorskip("matplotlib", reason="draws the pictures")
    assert main(["report", str(files[2]), "-o", "/dev/full"]) == 1
    assert "'/dev/full' cannot be written: No space left on device" in capsys.readouterr().err


def line(event, step, seconds, **content):
    return json.dumps({"event": event, "step": step, "seconds": seconds, "time": 0, **content})


def step(number, seconds, **fields):
    whole = {"step_s": 1, "total": {"bytes_sent": 1}, "tensors": {}}
    return line("step", number, seconds, **{**whole, **fields})


FIRST = [line("run", 0, 0.0), *(line("metrics", s, s / 10, loss=1.0) for s in (10, 20, 30))]
AGAIN = line("metrics", 30, 1.5, loss=2.0)


@pytest.mark.parametrize(
    ("began", "then", "steps", "losses", "seconds", "step_s"),
    [
        (20, [AGAIN, '{"event": "st'], [10, 20, 30], [1.0, 1.0, 2.0], [1.0, 2.0, 3.5], 2.5 / 20),
        (
            0,  # it loads its state after its first record
            [AGAIN, line("metrics", 40, 2.5, loss=3.0)],
            [10, 20, 30, 40],
            [1.0, 1.0, 2.0, 3.0],
            [1.0, 2.0, 3.5, 4.5],
            3.5 / 30,
        ),
        (20, [step(21, 0.5)], [10, 20], [1.0, 1.0], [1.0, 2.0], 1.5 / 11),
    ],
    ids=["from where it began", "from its first metrics", "before it has metrics of its own"],
)
def test_a_restart_replaces_the_records_of_the_steps_that_it_repeats(
    tmp_path, began, then, steps, losses, seconds, step_s
):
    path = tmp_path / "run.jsonl"
    path.write_text("\n".join([*FIRST, line("run", began, 0.0, name="then"), *then]))
    run = read_run("x", path)
    assert run.curve("loss", "step") == (steps, losses)
    assert run.curve("loss", "seconds")[0] == seconds
    assert run.step_s == pytest.approx(step_s) and run.about["name"] == "then"


def test_a_restart_replaces_metrics_by_their_own_numbers_of_steps(tmp_path):
    """They may be ahead of the compressor's number, which leaves out dense steps of ``auto``."""
    path = tmp_path / "run.jsonl"
    first = [line("run", 0, 0.0), step(1, 0.1), line("metrics", 40, 1.0, loss=4.0)]
    first += [step(10, 1.2), line("metrics", 60, 1.5, loss=6.0)]
    first += [step(40, 2.0), line("metrics", 80, 2.0, loss=8.0)]
    then = [line("run", 20, 0.0), step(21, 0.5), line("metrics", 80, 1.0, loss=1.0)]
    path.write_text("\n".join([*first, *then]))
    run = read_run("x", path)
    assert run.curve("loss", "step") == ([40, 60, 80], [4.0, 6.0, 1.0])
    assert run.curve("bytes_sent", "step", "step")[0] == [1, 10, 21]
    assert run.curve("loss", "seconds")[0] == [1.0, 1.5, 2.5]


def test_a_restart_without_a_compressor_goes_on_from_where_it_began(tmp_path):
    path = tmp_path / "run.jsonl"
    first = [line("metrics", s, s / 10, loss=1.0, bytes_sent=5.0) for s in (10, 20, 30)]
    then = [line("metrics", s, s / 10 - 1.5, loss=2.0, bytes_sent=7.0) for s in (20, 30, 30)]
    path.write_text("\n".join([*first, *then, line("metrics", 30, 1.6, total=0.5)]))
    run = read_run("x", path)
    assert run.curve("loss", "step") == ([10, 20, 30], [1.0, 2.0, 2.0])
    assert run.curve("loss", "seconds")[0] == [1.0, 1.5, 2.5]
    assert run.bytes_sent("step") == ([10, 20, 30], [50, 120, 190])
    assert run.curve("total", "step") == ([30], [0.5])


def test_an_incomplete_line_before_a_restart_loses_only_itself(tmp_path, capsys):
    path = tmp_path / "run.jsonl"
    path.write_text(line("metrics", 1, 0.1, loss=1.0) + '\n{"event": "metr')
    for step in (2, 3):
        sink = JsonLines(str(path)).open()
        sink.log(step=step, loss=1.0)
        sink.close()
    assert read_run("x", path).curve("loss", "step")[0] == [1, 2, 3]
    assert "line 2 of run" in capsys.readouterr().err and len(path.read_text().splitlines()) == 4


def test_bytes_add_up_over_intervals(files):
    run = read_run("x", files[0])
    places, values = run.bytes_sent("step")
    assert places == [1, 3, 6, 9, 12]
    a_step = [each["total"]["bytes_sent"] for each in run.of("step")]
    assert values[-1] == pytest.approx(sum(n * b for n, b in zip((1, 2, 3, 3, 3), a_step)))
    assert read_run("x", files[2]).bytes_sent("step")[1][-1] == 12_000


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "has no records: train at least one step"),
        ("nonsense\nmore\n", "line 1 of run .* is not a record"),
        ('{"event": "metrics", "seconds": 1}', "line 1 of run .*not a record .KeyError.'step'"),
        (line("other", 1, 1), "the event 'other' is unknown"),
        (step(1, 1, tensors=[1]), "line 1 of run .* is not a record"),
        (step(1, 1, total={}), "'bytes_sent'"),
        (step(1, 1, step_s=None), "'step_s' is None, not a number"),
        (step(1, 1, tensors={"a": {"density_achieved": "x"}}), "'density_achieved' is 'x', not a"),
        (line("metrics", 1, 1, loss="low"), "'loss' is 'low', not a number"),
        (
            "\n".join(line("run", 0, 1, name=name) for name in "GD"),
            "records of two compressors, 'G' and 'D'",
        ),
        (b"\xff\xfe", "line 1 of run .* is not a record"),
        (None, "cannot be read: No such file"),
    ],
)
def test_what_is_no_run_is_refused_by_name(tmp_path, content, words, capsys):
    path = tmp_path / "run.jsonl"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert main(["report", str(path)]) == 1
    assert re.search(words, capsys.readouterr().err)


def test_folders_are_looked_into_and_names_told_apart(files):
    assert [run.name for run in read_runs([str(files[0].parent)])] == ["0", "1", "2"]
    (files[0].parent / "empty").mkdir()
    with pytest.raises(InvalidOption, match=r"Is a directory; give \.jsonl files or their folder"):
        read_runs([str(files[0].parent / "empty")])
    with pytest.raises(InvalidOption, match="runs are called '0': give one of them another name"):
        read_runs([str(files[0]), str(files[0])])
    assert [run.name for run in read_runs([str(files[0]), f"again={files[0]}"])] == ["0", "again"]


def test_a_path_may_contain_an_equals_sign(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("lr=0.1.jsonl", "x.jsonl"):
        (tmp_path / name).write_text(line("metrics", 1, 0.1, loss=1.0))
    given = ["lr=0.1.jsonl", "slow=lr=0.1.jsonl", "plain=x.jsonl", "a=b=x.jsonl"]
    assert [run.name for run in read_runs(given)] == ["lr=0.1", "slow", "plain", "a=b"]
    with pytest.raises(InvalidOption, match=r"'lr=0\.2\.jsonl' cannot be read: No such file"):
        read_runs(["slow=lr=0.2.jsonl"])


def test_a_path_that_is_too_long_is_refused_and_a_name_in_another_encoding_is_drawn(
    tmp_path, capsys
):
    pytest.importorskip("matplotlib", reason="draws the pictures")
    for given in ("a" * 300, f"name={'a' * 300}"):
        assert main(["report", given]) == 1
        assert "cannot be read: File name too long" in capsys.readouterr().err
    (tmp_path / "x.jsonl").write_text(line("metrics", 1, 0.1, loss=1.0))
    given = f"caf\udce9={tmp_path / 'x.jsonl'}"
    assert main(["report", given, "-o", str(tmp_path / "caf\udce9.html")]) == 0
    assert "caf?" in (tmp_path / "caf\udce9.html").read_text(encoding="utf-8")
    assert "caf?.html in a browser" in capsys.readouterr().out
