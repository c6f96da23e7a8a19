"""Stats and telemetry: figures are right; a writer that fails is named and ends nothing."""

import gc
import json
import re
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest
import worlds
from installed import is_installed
from programs import run_python
from worlds import configure, integers, normals, tensors

from hvd_sparse.configuration import Configuration
from hvd_sparse.errors import InvalidOption
from hvd_sparse.frontend import recorder as recorder_module
from hvd_sparse.frontend.recorder import Outlet, Recorder, union
from hvd_sparse.frontend.summary import summary_of
from hvd_sparse.registry import WRITERS
from hvd_sparse.step.session import Session
from hvd_sparse.step.stats import Stats
from hvd_sparse.step.tensor_state import BLOCK, EVERY, Departures
from hvd_sparse.telemetry.contract import Place, check_names, resolve_writers
from hvd_sparse.telemetry.jsonl import JsonLines
from hvd_sparse.tracing import Span
from hvd_sparse.types import TensorSpec
from hvd_sparse.wire.carrier import carrier_layout

SPECS = tensors((20, 5), (7,))
STEPS = 9


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """At the end of a recorder, the writers of a busy machine may take long."""
    monkeypatch.setattr(recorder_module, "LAST_S", worlds.TIMEOUT_S)


def record(
    collective, writers, steps=STEPS, configuration=None, every=4, specs=SPECS, told=(), bad=-1
):
    """``bad`` is the number of a step with NaN."""
    session = Session(configuration or configure(density=0.1), specs, collective)
    place = Place(collective.rank, collective.world_size)
    outlet = Outlet(writers, place)
    recorder = Recorder(session.step, every, outlet, list)
    for kind, content in told:
        recorder.put(kind, content)
    for step in range(steps):
        given = normals(specs, collective.rank, step)
        if step == bad:
            given["t0"][0, 0] = np.nan
        session.reduce(given)
    recorder.close()
    return session


def records_of(steps=STEPS, **options):
    heard = []

    def train(collective):
        session = record(collective, [heard.append], steps, **options)
        return session.step.stats.report(0.1)

    reports = worlds.run(2, train)
    return heard, reports[0]


def test_records_add_up_to_the_stats():
    heard, stats = records_of(steps=8)
    assert [each["step"] for each in heard] == [1, 4, 8]
    for name in ("sparse_steps", "passes", "fallbacks"):
        assert sum(each["total"][name] for each in heard) == stats[name]
        for key in ("t0", "t1"):
            told = sum(each["tensors"][key][name] for each in heard)
            assert told == stats["tensors"][key][name]
    for way in ("sent", "received"):
        told = sum(each["steps"] * each["total"][f"bytes_{way}"] for each in heard)
        assert told == pytest.approx(stats[f"bytes_{way}"])
    assert stats["bytes_received"] > stats["bytes_sent"]


def test_a_tensor_is_told_with_the_bytes_of_its_frames_and_its_own_density():
    """A frame is 32 bytes, and 8 an entry: 10 of 100 entries, 3 of 7; 2 ranks."""
    heard, _ = records_of(configuration=configure(density={"t0": 0.1, "t1": 0.5}))
    names = ("density_asked", "bytes_sent", "bytes_received")
    for each in heard:
        told = [[each["tensors"][key][name] for name in names] for key in ("t0", "t1")]
        assert told == [[0.1, 112, 2 * 112], [0.5, 56, 2 * 56]]
        assert each["total"]["density_asked"] is None


@pytest.mark.parametrize("over", ["tensor", "group"])
@pytest.mark.parametrize("codec", ["index_value", "chunk12"])
def test_norm_and_threshold_are_those_of_the_step(over, codec):
    heard = []

    def train(collective):
        configuration = configure(density=0.1, select_over=over, codec=codec)
        session = record(collective, [heard.append], 4, configuration)
        return float(np.linalg.norm(worlds.residuals(session)["t0"]))

    norms = worlds.run(2, train)
    last = heard[-1]["tensors"]["t0"]
    assert heard[-1]["step"] == 4
    assert last["residual_norm"] == pytest.approx(norms[0], rel=1e-6)
    assert last["threshold"] > 0 and 0 < last["contraction"] < 1
    assert last["density_asked"] == 0.1
    assert last["density_achieved"] == pytest.approx(0.1, abs=0.02)


def test_what_is_measured_now_and_then_is_what_is_measured_always():
    now_and_then, _ = records_of(steps=8)
    always, _ = records_of(steps=8, every=1)
    by_step = {each["step"]: each for each in always}
    assert len(always) == 8
    for each in now_and_then:
        for key, values in each["tensors"].items():
            for name in ("threshold", "residual_norm", "contraction", "staleness"):
                assert values[name] == by_step[each["step"]]["tensors"][key][name], (key, name)


@pytest.mark.parametrize("ends", [True, False])
def test_between_records_and_after_the_end_nothing_is_measured(ends):
    def train(collective):
        session, seen = Session(configure(density=0.1), SPECS, collective), []
        recorder = Recorder(session.step, 100, Outlet([print], Place()), list)
        for step in range(3) if ends else ():
            session.reduce(normals(SPECS, 0, step))
            seen.append((session.step.pipeline.observes, session.step.spans.is_heard))
        if not ends:
            session.driver.compress(0, np.ones(100, np.float32))
        recorder.close()
        return [*seen, (session.step.pipeline.observes, session.step.spans.is_heard)]

    first = [(True, True), (False, False), (False, False)] if ends else []
    assert worlds.run(1, train) == [[*first, (False, False)]]


def test_every_field_is_told_and_explained():
    docs = Path(__file__).parents[2] / "docs"
    page = (docs / "guide" / "watching.md").read_text(encoding="utf-8")
    _, _, table = page.partition("| field | meaning; None if unknown |\n")
    rows = table.partition("\n\n")[0].splitlines()[1:]
    documented = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    specs = [TensorSpec("a, b: c", (20, 5), "float32"), *SPECS]
    heard, _ = records_of(specs=specs)
    for each in heard:
        for values in (each["total"], *each["tensors"].values()):
            assert set(values) == documented
        spans = [each["total"][f"{kind}_s"] for kind in ("select", "encode", "exchange", "decode")]
        assert all(seconds > 0 for seconds in spans)
        assert each["tensors"]["a, b: c"]["exchange_s"] > 0, "of a name with separators"


@pytest.mark.parametrize("exchange", ["gtopk", "hierarchical"])
def test_what_an_exchange_does_not_know_is_none(exchange):
    heard, stats = records_of(configuration=configure(density=0.1, exchange=exchange))
    assert [each["step"] for each in heard] == [1, 4, 8]
    last = heard[-1]["tensors"]["t0"]
    assert last["bytes_sent"] is None and last["bytes_received"] is None
    assert heard[-1]["total"]["bytes_sent"] > 0 and stats["bytes_received"] > 0


def test_exchanges_that_overlap_are_counted_once():
    times = [(0.0, 2.0), (1.0, 3.0), (5.0, 6.0)]
    spans = [Span("exchange", ("a",), *both, bucket) for bucket, both in enumerate(times)]
    assert union([*spans, Span("select", ("a",), 0.0, 100.0, None)]) == 4.0
    assert union([]) is None


def test_a_step_that_failed_is_told_as_such_and_counts_nothing():
    heard, _ = records_of(2, every=1, bad=0)
    assert [each["is_finite"] for each in heard] == [False, True]
    assert [each["step"] for each in heard] == [0, 1]
    assert [each["total"]["sparse_steps"] for each in heard] == [0, 2]


def test_a_record_that_cannot_be_made_ends_records_and_not_the_training(caplog, monkeypatch):
    monkeypatch.setattr(Recorder, "_values", lambda *_: 1 / 0)
    heard, stats = records_of(every=1)
    assert heard == [] and stats["steps"] == STEPS
    (said,) = set(caplog.messages)  # of two ranks
    assert "a record could not be made" in said and "ZeroDivisionError" in said


@pytest.mark.parametrize("closes", [False, True])
def test_writers_keep_no_compressor_with_its_optimizer_alive(closes, world_of_one):
    torch = pytest.importorskip("torch")
    from torch.nn.parallel import DistributedDataParallel

    from hvd_sparse.ddp import register

    def train():
        model = DistributedDataParallel(torch.nn.Linear(8, 6))
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5)
        options = {"optimizer": optimizer, "scheduler": scheduler, "steps": 10, "min_numel": 1}
        handle = register(model, "topk", telemetry=[heard.append], **options)
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        if closes:
            handle.close()
        return weakref.ref(handle), weakref.ref(model.module.weight)

    heard = []
    left = train()
    gc.collect()
    assert [each() for each in left] == [None, None]
    assert [each["event"] for each in heard] == ["run", "step"]


def test_json_lines_hold_every_record_and_are_added_to(tmp_path):
    path = tmp_path / "new" / "run.jsonl"
    for _ in range(2):
        worlds.run(2, lambda c: record(c, [JsonLines(str(path))]))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 4, 8] * 2
    assert not (tmp_path / "new" / "run.1.jsonl").exists()  # rank 0 alone writes
    worlds.run(3, lambda c: record(c, [JsonLines(str(tmp_path / "run.jsonl"), all_ranks=True)]))
    written = {each.name for each in tmp_path.iterdir()} - {"new"}
    assert written == {"run.1.jsonl", "run.2.jsonl", "run.jsonl"}


def test_a_path_has_the_rank_in_it_and_may_be_an_address():
    assert Place(2, 3).path("a/{rank}/x.jsonl") == "a/2/x.jsonl"
    assert Place(2, 3).path("gs://bucket/run.d/") == "gs://bucket/run.2.d"
    assert Place(1, 3).path("s3://a.b/runs") == "s3://a.b/runs.1"


def scalars_of(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    events = EventAccumulator(str(folder), size_guidance={"tensors": 0, "scalars": 0})
    events.Reload()
    found = {
        tag: [(each.step, each.value) for each in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }
    for tag in events.Tags()["tensors"]:
        if tag != "hvd_sparse" and not tag.endswith("text_summary"):
            told = events.Tensors(tag)
            found[tag] = [(each.step, float(make_ndarray(each.tensor_proto))) for each in told]
    return found


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_tensorboard_reads_what_was_written(framework, tmp_path):
    if not (is_installed(framework) and is_installed("tensorboard")):
        pytest.skip(f"{framework} and tensorboard are not installed")
    from hvd_sparse.telemetry import tensorboard as boards

    board = {"torch": boards.torch_board, "tensorflow": boards.tensorflow_board}[framework]
    sink, heard = board(str(tmp_path)), []
    sink.write({"event": "run", "step": 0, "seconds": 0.0, "time": 0.0, "name": "x"})
    worlds.run(1, lambda c: record(c, [sink.write, heard.append]))
    sink.log(step=9, loss=0.5)
    sink.close()
    scalars = scalars_of(tmp_path)
    assert [step for step, _ in scalars["bytes_sent/total"]] == [1, 4, 8]
    wanted = [each["tensors"]["t0"]["residual_norm"] for each in heard]
    assert [value for _, value in scalars["residual_norm/t0"]] == pytest.approx(wanted)
    assert scalars["loss"] == [(9, 0.5)]


def test_a_writer_that_fails_is_named_once_and_the_others_go_on(caplog):
    heard = []

    def broken(_):
        raise OSError("the disk is full")

    worlds.run(1, lambda c: record(c, [broken, heard.append]))
    assert [each["step"] for each in heard] == [1, 4, 8]
    (said,) = caplog.messages
    assert re.search(r"broken \(0\) failed and is disabled.*OSError: the disk is full; make", said)


def test_a_writer_that_hangs_holds_nothing_up(caplog, monkeypatch):
    monkeypatch.setattr(recorder_module, "LAST_S", 0.2)
    monkeypatch.setattr(recorder_module, "MOST_WAITING", 2)
    over = threading.Event()
    try:
        worlds.run(1, lambda c: record(c, [lambda _: over.wait()], every=1))
        assert "behind by 2 records" in caplog.text and "did not end within 0.2 s" in caplog.text
    finally:
        over.set()


def test_a_place_that_cannot_be_written_is_an_error_before_the_first_step(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidOption, match=r"path of writer 'jsonl' is .*cannot be written"):
        WRITERS.create("jsonl", path=str(tmp_path / "file" / "run")).open()


def test_a_path_may_begin_in_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    JsonLines("~/x.jsonl").open().close()
    assert [path.name for path in tmp_path.iterdir()] == ["x.jsonl"]


def test_what_a_writers_package_raises_at_the_start_has_a_remedy(tmp_path):
    class Refuses(JsonLines):
        def open(self, place=Place()):  # noqa: B008 - frozen
            raise ConnectionError("no server")

    with pytest.raises(InvalidOption, match="'jsonl' cannot begin: ConnectionError: no server"):
        Outlet([Refuses(path=str(tmp_path / "x"))], Place())


@pytest.mark.parametrize("given", ["yes", 1, {"id": "x"}, ["jsonl", 3], [True], None, JsonLines])
def test_what_is_no_writer_is_refused_with_those_there_are(given):
    with pytest.raises(InvalidOption, match=r"telemetry is .*'jsonl', .*'tensorboard'"):
        resolve_writers(given)


def test_log_takes_integers_and_numbers_of_any_kind_and_refuses_all_else(tmp_path, make):
    compressor = make(configure(telemetry={"id": "jsonl", "path": str(tmp_path / "run.jsonl")}))
    compressor._start(0)
    silent = make()  # as a rank that does not write
    for log in (compressor.log, silent.log, JsonLines(str(tmp_path / "own.jsonl")).open().log):
        log(step=np.int64(3), loss=np.float32(0.25))
        log(step=np.array(4), loss=float("nan"))
        for step in ("four", "4", [4], 2.7, float("nan")):
            with pytest.raises(InvalidOption, match=r"step of log\(\) is .* an integer"):
                log(step=step, loss=0.5)
        for loss in ("much", np.ones(2)):
            with pytest.raises(InvalidOption, match="metric 'loss' is"):
                log(step=5, loss=loss)
        for name in ("event", "seconds", "time"):
            with pytest.raises(InvalidOption, match=f"metric '{name}' has the name of a field"):
                log(step=5, loss=0.5, **{name: 1.0})
    with pytest.raises(InvalidOption, match="metric 'step' has the name of a field"):
        check_names(["step"])
    compressor.close()
    for name in ("run", "own"):
        lines = map(json.loads, (tmp_path / f"{name}.jsonl").read_text().splitlines())
        told = [(each["step"], each["loss"]) for each in lines if each["event"] == "metrics"]
        assert told == [(3, 0.25), (4, None)]


MLFLOW = """
import json, sys
import mlflow, worlds
from hvd_sparse.frontend import recorder
from hvd_sparse.registry import WRITERS
from unit.test_telemetry import record

recorder.LAST_S = 600.0  # a busy machine is slow
store, heard = "file:" + sys.argv[1], []
told = [("run", {"name": "x", "config": {"codec": "x"}}), ("metrics", {"loss": 0.5})]
writer = WRITERS.create("mlflow", tracking_uri=store, experiment="tests")
worlds.run(1, lambda c: record(c, [writer, heard.append], told=told))
client = mlflow.MlflowClient()
(found,) = client.search_runs([client.get_experiment_by_name("tests").experiment_id])
norms = client.get_metric_history(found.info.run_id, "residual_norm/t0")
sinks = [writer.open(), writer.open()]
with mlflow.start_run():  # the program's own
    sinks.append(writer.open())
open_runs = client.search_runs([found.info.experiment_id], "attributes.status = 'RUNNING'")
for number, sink in enumerate(sinks):
    sink.log(1, loss=number)
    sink.close()
runs = client.search_runs([found.info.experiment_id])
print("found", json.dumps({
    "status": found.info.status,
    "norms": [(each.step, each.value) for each in norms],
    "loss": found.data.metrics["loss"],
    "files": [each.path for each in client.list_artifacts(found.info.run_id)],
    "open": len(open_runs),
    "losses": sorted((run.data.metrics["loss"], run.info.status) for run in runs),
    "wanted": [(r["step"], r["tensors"]["t0"]["residual_norm"]) for r in heard if "total" in r],
}))
"""


def printed_by(package, program, *arguments, **settings):
    if not is_installed(package):
        pytest.skip(f"{package} is not installed")
    done = run_python("-c", program, *arguments, **settings)
    assert done.returncode == 0 and "telemetry:" not in done.stderr, done.stderr
    return done.stdout


AT_THE_END = """
import weakref
from types import SimpleNamespace
import worlds
from unit.compressors import NumpyCompressor

telemetry = {"id": "wandb", "project": "tests", "mode": "offline"}
configuration = worlds.configure("topk", 0.1, telemetry=telemetry, telemetry_every=1)
first, second = (configuration.telemetry[0].open() for _ in range(2))
first.close()
(compressor,) = worlds.run(1, lambda c: NumpyCompressor(c, configuration))
compressor.watchdog = SimpleNamespace(rank=0, lagging=list, close=list)
weakref.finalize(compressor, compressor.watchdog.close)
compressor._record()
compressor.train(range(3))
second.log(9, of_the_second=0.25)
second.close()
compressor.log(loss=0.5)
"""


def test_weights_and_biases_holds_every_record_of_a_program_that_just_ends_offline(tmp_path):
    printed_by("wandb", AT_THE_END, WANDB_SILENT="true", WANDB_DIR=str(tmp_path))
    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    content = file.read_bytes()
    assert content.count(b"residual_norm/t0") >= 3, "a record of each step"
    assert b"hvd_sparse/step" in content and b"loss" in content
    assert b"of_the_second" in content, "the run goes on while a compressor logs to it"


def test_mlflow_holds_every_record_in_a_store_of_files(tmp_path):
    store = str(tmp_path / "runs")
    printed = printed_by("mlflow", MLFLOW, store, MLFLOW_ALLOW_FILE_STORE="true")
    (line,) = [each for each in printed.splitlines() if each.startswith("found ")]
    found = json.loads(line.removeprefix("found "))
    assert found["status"] == "FINISHED" and found["loss"] == 0.5
    assert found["norms"] == found["wanted"] and len(found["norms"]) == 3
    assert found["files"] == ["hvd_sparse.json"]
    assert found["open"] == 2
    assert found["losses"] == [[loss, "FINISHED"] for loss in (0, 0.5, 1, 2)]


# -- stats ----------------------------------------------------------------------------------------

CARRIER_BYTES = 8 * carrier_layout("float64", 2).size
HANDSHAKE_BYTES = 2 * 32 + 3  # a digest, hexadecimal, in quotes, and the end of a line


def train(collective, configuration, steps, draw=normals):
    session = Session(configuration, SPECS, collective)
    for step in range(steps):
        session.reduce(draw(SPECS, collective.rank, step))
    return session.step.stats.report(0.1)


def test_bytes_entries_and_densities_are_those_of_the_selections_and_what_the_world_saw():
    """A bucket of two: 32 + 2 * 4 + 4 bytes a message, 32 a frame, 8 an entry; topk at 0.1 takes 10
    of 100, and 1 of 7 (at least one is sent)."""
    submitted = []

    def script(collective):
        def note(kind, arguments, call):
            if collective.rank == 0:
                submitted.append(arguments[0].nbytes)
            return call()

        return train(worlds.Around(collective, note), configure(density=0.1), 4)

    report = worlds.run(2, script)[0]
    assert report["bytes_sent"] == sum(submitted) - HANDSHAKE_BYTES
    assert report["bytes_sent"] == report["payload_bytes"] + report["carrier_bytes"]
    assert report["payload_bytes"] == 4 * (44 + 2 * 32) + 8 * report["entries_sent"]
    assert report["carrier_bytes"] == 4 * 2 * CARRIER_BYTES
    assert report["dense_bytes"] == 0
    assert (report["steps"], report["sparse_steps"], report["dense_steps"]) == (4, 8, 0)
    assert (report["entries_sent"], report["entries_total"]) == (4 * 11, 4 * 107)
    assert report["density_achieved"] == pytest.approx(11 / 107)
    assert report["density_asked"] == 0.1
    assert report["tensors"]["t0"]["density_achieved"] == pytest.approx(0.1)
    assert report["tensors"]["t1"]["entries_sent"] == 4
    assert (report["contraction"], report["staleness"]) == (None, None), "there is no telemetry"
    assert json.loads(json.dumps(report)) == report


def test_dense_steps_count_their_bytes_and_no_entries():
    report = worlds.run(2, lambda c: train(c, configure(density=1.0, allow_dense=True), 3))[0]
    assert (report["sparse_steps"], report["dense_steps"]) == (0, 6)
    assert report["dense_bytes"] == 3 * 107 * 4
    assert (report["entries_sent"], report["density_achieved"]) == (0, None)


def test_a_summary_of_steps_without_compressed_tensors_shows_the_sum_of_their_bytes():
    stats = Stats(threading.RLock(), list)
    for _ in range(3):
        stats.count_bytes("dense", 1000)
    text = summary_of({"name": "all", **stats.report(None)}, {}, {})
    assert text.startswith(
        "hvd_sparse all, since it was made: 0 steps with compressed tensors; 3,000 bytes sent and "
        "3,000 received\n"
    )


def test_passes_and_fallbacks_of_the_search_and_steps_without_own_passes_are_counted():
    """Whole numbers have ties: no threshold reaches 10 of 100, and exact top-k ends the search."""
    one_pass = configure("ldte_bs", 0.1).describe()
    one_pass["selector"] |= {"max_passes": 1, "warm_start": False}
    report = worlds.run(1, lambda c: train(c, Configuration.create(**one_pass), 3, integers))[0]
    assert report["passes"] == sum(counts["passes"] for counts in report["tensors"].values()) > 0
    assert 0 < report["fallbacks"] <= report["passes"]
    assert report["one_pass"] == 0
    report = worlds.run(1, lambda c: train(c, configure("ldte_bs", 0.1), 3))[0]
    assert report["one_pass"] == sum(each["one_pass"] for each in report["tensors"].values()) > 0


@pytest.mark.parametrize("selector", ["topk", "ldte_bs"])
@pytest.mark.parametrize("codec", ["index_value", "block16"])
def test_telemetry_tells_what_is_kept_of_the_accumulated_and_how_long_it_waits(selector, codec):
    steps, key = 5, "t0"
    configuration = configure(selector, 0.1, codec=codec, telemetry=True)

    def script(collective):
        session = Session(configuration, SPECS, collective, average=False)
        kept = there = waited = count = 0.0
        last = np.full(100, -1)
        residual = np.zeros(100)
        for step in range(steps):
            given = normals(SPECS, step)
            accumulated = residual + given[key].reshape(-1)
            sent = session.reduce(given)[key].reshape(-1) != 0
            residual = worlds.residuals(session)[key].astype(np.float64)
            kept, there = kept + (residual**2).sum(), there + (accumulated**2).sum()
            waited, count = waited + (step - last[sent]).sum(), count + sent.sum()
            last[sent] = step
        return session.step.stats.report(0.1)["tensors"][key], kept / there, waited / count

    ((told, contraction, staleness),) = worlds.run(1, script)
    assert told["contraction"] == pytest.approx(contraction, rel=1e-5)
    assert told["staleness"] == pytest.approx(staleness)
    assert told["contraction_bound"] == pytest.approx(1 - told["density_achieved"])
    assert told["contraction_of_bells"] == pytest.approx((1 - told["density_achieved"]) ** 2)
    assert 0 < told["contraction"] <= told["contraction_bound"]
    assert told["staleness"] > 1


def test_a_part_of_a_large_tensor_stands_for_all_of_it():
    rng, numel, size = np.random.default_rng(0), 200_003, 1000
    departures, left_at = Departures(numel, -1, size), np.full(numel, -1)
    assert departures._left_at.size < numel / (EVERY - 1)
    often = np.arange(numel) % 3 == 0  # these leave more often
    chance = np.where(often, 5.0, 1.0) / np.where(often, 5.0, 1.0).sum()
    for step in range(400):
        indices = np.unique(rng.choice(numel, size, p=chance)).astype(np.uint32)
        if step % 100 == 99:
            wanted = (step - left_at[indices]).mean()
            assert departures.waited(indices, step) / indices.size == pytest.approx(wanted, rel=0.1)
        if step % 50 == 49:  # taken back
            departures.note(step, np.arange(numel, dtype=np.uint32))
            departures.drop(step)
        departures.note(step, indices)
        left_at[indices] = step
    unwatched = np.array([BLOCK], np.uint32)
    last = departures.waited(indices, 400) / indices.size
    assert departures.waited(unwatched, 400) == round(last)
