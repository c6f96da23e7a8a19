"""``python -m benchmarks``: what it lists, and quick runs of benches."""

import json
import os
import signal
import threading
from pathlib import Path

import pytest
from harness import LIMIT_S
from plain import run_plain
from programs import run_python, run_quick_bench

from benchmarks.__main__ import BENCHES, PROGRAMS
from benchmarks._limited import run_limited
from hvd_sparse.registry import CODECS

pytestmark = pytest.mark.full


def test_the_benches_are_listed_without_being_loaded():
    listed = run_python("-m", "benchmarks", "--help")
    assert listed.returncode == 0
    for name in (*BENCHES, *PROGRAMS):
        assert f"  {name} " in listed.stdout


@pytest.mark.parametrize(("bench", "module"), [("select", "torch"), ("codecs", "matplotlib")])
def test_without_its_packages_the_error_names_the_missing_one(tmp_path, bench, module):
    done = run_plain(tmp_path, bench, module="benchmarks")
    assert done.returncode == 1, done.stderr
    assert f"{bench}: No module named '{module}'; scripts/setup installs" in done.stderr


def test_an_interrupt_ends_what_a_bench_has_started(tmp_path):
    began, here = tmp_path / "began", threading.get_ident()
    script = f"echo $$ >{began}; exec sleep 1000"
    timer = threading.Timer(1.0, lambda: signal.pthread_kill(here, signal.SIGINT))
    # Whoever started pytest may have had interrupts ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            run_limited(["sh", "-c", script], os.environ, LIMIT_S)
    finally:
        signal.signal(signal.SIGINT, before)
    assert not began.exists() or not Path(f"/proc/{began.read_text().strip()}").exists()


def test_select_times_everybody_and_prints_every_line(tmp_path):
    printed, folder = run_quick_bench("select", tmp_path, "torch", "matplotlib", "rich")
    assert (folder / "selecting.png").read_bytes().startswith(b"\x89PNG")
    page = (folder / "selecting.md").read_text()
    assert page in printed and "no figure here means anything" in page
    document = json.loads((folder / "selecting.json").read_text())
    assert document["quick"] is True
    for line in document["lines"]:
        times = line["milliseconds"]
        assert 0 < times["low"] <= times["median"] <= times["high"]
        assert f"## {line['section']}" in page and f"| {line['what']} | " in page


def test_codecs_measures_the_frames_of_every_codec(tmp_path):
    printed, folder = run_quick_bench("codecs", tmp_path, "matplotlib", "rich")
    page = (folder / "codecs.md").read_text()
    assert page in printed and all(f"| `{id}` | " in page for id in CODECS)
    assert (folder / "codecs.png").read_bytes().startswith(b"\x89PNG")
    sizes = {}
    for cost in json.loads((folder / "codecs.json").read_text())["costs"]:
        sizes[cost["codec"], cost["density"]] = cost["bytes_per_entry"]
        assert cost["encode_ns"] > 0 and cost["decode_ns"] > 0
        if cost["codec"] == "index_value":
            assert cost["bytes_per_entry"] == pytest.approx(8 + 32 / cost["count"])
            assert cost["ratio"] == 1
    for density in (0.001, 0.01):
        packed, plain = (sizes[f"{id} float32", density] for id in ("golomb", "block16"))
        assert packed < plain < sizes["index_value", density]
