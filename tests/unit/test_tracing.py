"""Timelines: ours, Horovod's, and both on one clock."""

import json
import os
import stat

import pytest
from programs import run_python

from hvd_sparse.cli import main
from hvd_sparse.cli.timeline import merge_traces, read_trace
from hvd_sparse.errors import InvalidOption
from hvd_sparse.tracing import SETTING, START, Span, Spans, TraceFile, follow, path_of

HOROVOD = """[
{"name": "process_name", "ph": "M", "pid": 0, "args": \
{"start_time_since_epoch_in_micros":1795299382427932}},
{"name": "process_sort_index", "ph": "M", "pid": 0, "args": {"sort_index": 0}},
{"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "allgather.hvd_sparse.e4ac9105.0"}},
{"ph": "B", "name": "NEGOTIATE_ALLGATHER", "ts": 100, "pid": 1},\
{"ph": "X", "name": "0", "ts": 101, "pid": 1, "dur": 0},
{"ph": "E", "ts": 140, "pid": 1},"""
"""As Horovod 0.28.1 writes it; its end lacks."""


def test_a_file_is_a_trace_at_any_time(tmp_path):
    trace = TraceFile(tmp_path / "a.json", 3)
    began_s = trace._start_s
    trace.listen("x", Span("select", ('a "quoted" name',), began_s + 1.0, began_s + 3.0, None))
    trace.listen("x", Span("exchange", ("a", "b"), began_s + 2.0, began_s + 2.5, 0))
    trace.flush()
    before_its_end = read_trace(tmp_path / "a.json")
    trace.close()
    trace.listen("x", Span("select", ("too late",), 0.0, 0.0, None))
    events = json.loads((tmp_path / "a.json").read_text())
    assert events == before_its_end == read_trace(tmp_path / "a.json")
    spans = {event["name"]: event for event in events if event["ph"] == "X"}
    select, exchange = spans["select"], spans["exchange"]
    assert (select["ts"], select["dur"], exchange["dur"]) == (1e6, 2e6, 5e5)
    assert select["tid"] != exchange["tid"] and {event["pid"] for event in events} == {3}


FULL_DISK = """
import logging, os, resource, sys
from hvd_sparse import tracing

logging.basicConfig(level=logging.WARNING, format="%(message)s")
spans = tracing.Spans()
trace = tracing.follow(spans, "session", 0)
for step in range(400):
    if step == 100:
        size = os.stat(tracing.path_of(sys.argv[1], 0)).st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size + 20))
    spans.tell("select", ("a",), spans.now())
    trace.flush()
print("step", step)
"""


def test_a_full_disk_ends_the_timeline_and_nothing_else(tmp_path):
    path = tmp_path / "trace.json"
    found = run_python("-c", FULL_DISK, path, **{SETTING: str(path)})
    assert (found.returncode, found.stdout) == (0, "step 399\n"), found.stderr
    said = found.stderr.splitlines()
    assert len(said) == 1 and "training continues" in said[0], said
    assert "trace.0.json' cannot be written any more: File too large" in said[0]
    names = {event["name"] for event in read_trace(tmp_path / "trace.0.json")}
    assert {"clock", "select"} <= names


def make_link(path):
    (path.parent / "precious").write_text("precious")
    path.symlink_to("precious")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (os.mkfifo, "No such device"),
        (make_link, "it is a symbolic link"),
        (
            lambda path: os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 7)),
            "No space left on device|Permission denied",
        ),
    ],
    ids=["pipe", "link", "full-device"],
)
def test_what_is_no_file_is_refused_by_name_and_left_as_it_is(tmp_path, monkeypatch, make, words):
    monkeypatch.delenv("HOROVOD_ELASTIC", raising=False)
    monkeypatch.setenv(SETTING, str(tmp_path / "a.json"))
    try:
        make(tmp_path / "a.0.json")
    except PermissionError:
        pytest.skip("devices are root's to make")
    before = {name: os.lstat(tmp_path / name)[:7] for name in os.listdir(tmp_path)}
    refusal = rf"{SETTING} is .*a\.0\.json' cannot be written: .*({words})"
    with pytest.raises(InvalidOption, match=refusal):
        follow(Spans(), "x", 0)
    assert {name: os.lstat(tmp_path / name)[:7] for name in os.listdir(tmp_path)} == before


@pytest.mark.parametrize(
    "setting", [".", "..", "/", "./", "folder/", "a/..", "nul\0", "no folder/b.json"]
)
def test_what_is_no_path_of_a_file_is_refused_by_name(tmp_path, monkeypatch, setting):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "environ", {SETTING: setting})
    with pytest.raises(InvalidOption, match=r"HVD_SPARSE_TIMELINE is .* cannot be written"):
        follow(Spans(), "x", 0)
    assert os.listdir(tmp_path) == []


def test_of_a_timeline_that_was_cut_off_the_whole_events_are_read(tmp_path):
    path, whole = tmp_path / "horovod.json", json.loads(HOROVOD.rstrip(",") + "]")
    first, *others = map(json.dumps, whole)
    text = f"[\n{first}"
    for number, event in enumerate(others, 1):
        for cut in range(len(event)):
            path.write_text(f"{text},\n{event[:cut]}")
            assert read_trace(path) == whole[:number]
        text += f",\n{event}"


def test_a_broken_event_loses_no_other_event(tmp_path, capsys):
    whole, *others = HOROVOD.splitlines()
    (tmp_path / "a.json").write_text("\n".join([whole, *others[:2], others[2][:40], *others[3:]]))
    kept = json.loads((whole + "".join(others[:2] + others[3:])).rstrip(",") + "]")
    assert read_trace(tmp_path / "a.json") == kept and len(kept) == 5
    assert "left out: 1" in capsys.readouterr().err
    events = json.loads(HOROVOD.rstrip(",") + "]")
    for number, time in ((3, '"ts": 100'), (4, '"ts": 101')):  # these two are in one line
        (tmp_path / "a.json").write_text(HOROVOD.replace(time, '"ts": 1 0'))
        assert read_trace(tmp_path / "a.json") == events[:number] + events[number + 1 :]
        assert "left out: 1" in capsys.readouterr().err
    (tmp_path / "a.json").write_text(HOROVOD[:-9] + "\n]\n")
    assert len(read_trace(tmp_path / "a.json")) == 5 and not capsys.readouterr().err


def test_files_are_merged_on_one_clock_and_no_processes_are_mixed_up(tmp_path, capsys):
    trace = TraceFile(tmp_path / "ours.json", 1)
    trace.listen("x", Span("select", ("a",), trace._start_s + 1.0, trace._start_s + 3.0, None))
    trace.close()
    (tmp_path / "horovod.json").write_text(HOROVOD)
    start_us = read_trace(tmp_path / "ours.json")[0]["args"]["start_time_since_epoch_in_micros"]
    files = [str(tmp_path / "horovod.json"), str(tmp_path / "ours.json")]
    assert main(["timeline", *files, "-o", str(tmp_path / "both.json")]) == 0
    assert "events of 2 files" in capsys.readouterr().out
    events = json.loads((tmp_path / "both.json").read_text())
    at = {event["name"]: event["ts"] for event in events if event["ph"] in "BX"}
    horovods_us = 1795299382427932 + 100
    assert at["select"] - at["NEGOTIATE_ALLGATHER"] == start_us + 1_000_000 - horovods_us
    assert min(at.values()) >= 0
    pids = {event["name"]: event["pid"] for event in events if "ts" in event and "name" in event}
    assert pids["select"] == 0 and pids["NEGOTIATE_ALLGATHER"] == 1


def test_what_is_no_timeline_or_tells_no_start_is_refused(tmp_path, capsys):
    (tmp_path / "text").write_text("nothing of the kind")
    with pytest.raises(InvalidOption, match="is not a timeline"):
        read_trace(tmp_path / "text")
    with pytest.raises(InvalidOption, match="'a' has no start time"):
        merge_traces({"a": [{"ph": "B", "ts": 1, "pid": 0}]})
    assert main(["timeline", str(tmp_path / "none"), "-o", str(tmp_path / "out")]) == 1
    assert "cannot be read: No such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    "field", [{"args": None}, {"args": {START: "now"}}, {"ts": "late"}, {"pid": [1]}]
)
def test_an_event_whose_fields_are_wrong_is_refused_by_name(tmp_path, field, capsys):
    path = tmp_path / "a.json"
    events = [{"ph": "M", "pid": 0, "args": {START: 1}}, {"ph": "B", "ts": 1, "pid": 0, **field}]
    path.write_text(json.dumps(events))
    assert main(["timeline", str(path), "-o", str(tmp_path / "out")]) == 1
    assert "event 2 of timeline" in capsys.readouterr().err


def test_every_rank_has_its_own_file(monkeypatch):
    monkeypatch.delenv("HOROVOD_ELASTIC", raising=False)
    assert path_of("a/b.json", 3).as_posix() == "a/b.3.json"
    assert path_of("a/{rank}/b", 3).as_posix() == "a/3/b"
    monkeypatch.setenv("HOROVOD_ELASTIC", "1")
    assert path_of("b.json", 3) != path_of("b.json", 2)
    assert path_of("b.json", 3).name.startswith("b.3.")
    monkeypatch.delenv(SETTING, raising=False)
    spans = Spans()
    assert follow(spans, "x", 0) is None
    assert spans.now() == 0.0, "nobody asked for a timeline"
