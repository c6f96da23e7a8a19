"""``python -m benchmarks``: what it lists, and quick runs of benches."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from plain import run_plain
from programs import run_python, run_quick_bench

from benchmarks.__main__ import BENCHES, PROGRAMS

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.full


def test_the_benches_are_listed_without_being_loaded():
    listed = run_python("-m", "benchmarks", "--help")
    assert listed.returncode == 0
    for name in (*BENCHES, *PROGRAMS):
        assert f"  {name} " in listed.stdout


@pytest.mark.parametrize("name", [*(module for module, _ in BENCHES.values()), *PROGRAMS])
def test_every_bench_is_there(name):
    place = ROOT / "benchmarks" / name.replace(".", "/")
    assert place.with_suffix(".py").exists() or place.is_dir()


def test_a_bench_that_does_not_exist_is_an_error():
    done = run_python("-m", "benchmarks", "nothing")
    assert done.returncode == 2 and "invalid choice: 'nothing'" in done.stderr


def test_without_its_packages_the_error_says_what_to_install(tmp_path):
    done = run_plain(tmp_path, "select", module="benchmarks")
    assert done.returncode == 1 and "pip install -e" in done.stderr, done.stderr


@pytest.fixture(scope="module")
def selecting(tmp_path_factory):
    """The document and the page of a quick run."""
    folder = tmp_path_factory.mktemp("select")
    printed, _ = run_quick_bench("select", folder, "torch", "matplotlib", "rich")
    assert (folder / "selecting.png").read_bytes().startswith(b"\x89PNG")
    page = (folder / "selecting.md").read_text()
    assert page in printed and "no figure here means anything" in page
    return json.loads((folder / "selecting.json").read_text()), page


def test_select_times_everybody_and_prints_every_line(selecting):
    document, page = selecting
    assert document["quick"] is True
    for line in document["lines"]:
        times = line["milliseconds"]
        assert 0 < times["low"] <= times["median"] <= times["high"]
        assert f"## {line['section']}" in page and f"| {line['what']} | " in page


def test_select_judges_what_there_are_goals_for(selecting):
    judged = [line for line in selecting[0]["lines"] if line["goal"]]
    assert {(line["what"], line["goal"]) for line in judged} >= {
        *(("ldte_bs", "≤ 1.3"), ("topk", "≤ 2.5"), ("ldte_bs, rollback", "≤ 1.6")),
        *(("16 payloads", "≤ 1.5"), ("torch.topk", "≥ 30"), ("Gaussian-k", "≥ 15")),
    }
    for line in judged:
        found = (line["times_ours"] or line["times_floor"])["median"]
        sign, limit = line["goal"].split()
        is_met = found <= float(limit) if sign == "≤" else found >= float(limit)
        assert (line["is"] == "met") is is_met


def test_a_template_is_given_all_that_it_asks_for(tmp_path):
    jinja2 = pytest.importorskip("jinja2", reason="pages are templates")
    from benchmarks import _page

    with pytest.raises(jinja2.UndefinedError, match="is undefined"):
        _page.write(tmp_path / "codecs", "codecs.md", {"numel": 8, "rounds": 1}, {})
    assert not list(tmp_path.iterdir())


def test_a_row_of_a_list_is_a_line_of_the_json(tmp_path):
    pytest.importorskip("jinja2", reason="pages are templates")
    from benchmarks import _page

    text = _page.json_by_line({"quick": False}, {"rows": [{"a": 1}, {"a": [2, 3]}]})
    assert json.loads(text) == {"quick": False, "rows": [{"a": 1}, {"a": [2, 3]}]}
    assert '{"a": [2, 3]}' in text.splitlines()
