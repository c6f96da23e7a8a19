"""``python -m benchmarks codecs``: a quick run has every codec, and its bytes are those of the
codecs."""

from __future__ import annotations

import json

import pytest
from programs import run_quick_bench

from hvd_sparse.registry import CODECS

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    return run_quick_bench("codecs", tmp_path_factory.mktemp("bench"), "matplotlib", "rich")


def test_every_codec_is_in_the_table_and_the_picture(quick):
    printed, folder = quick
    page = (folder / "codecs.md").read_text()
    assert page in printed
    assert all(f"| `{id}` | " in page for id in CODECS)
    assert "entropy bound + 4 bytes" in page and "pairs of int64 and float32" in page
    assert (folder / "codecs.png").read_bytes().startswith(b"\x89PNG")


def test_its_figures_are_those_of_the_frames(quick):
    """8 bytes an entry and a header; times above zero; index_value is once itself."""
    document = json.loads((quick[1] / "codecs.json").read_text())
    assert document["quick"] is True
    for cost in document["costs"]:
        assert cost["encode_ns"] > 0 and cost["decode_ns"] > 0
        if cost["codec"] == "index_value":
            assert cost["bytes_per_entry"] == pytest.approx(8 + 32 / cost["count"])
            assert cost["ratio"] == 1
    sizes = {(c["codec"], c["density"]): c["bytes_per_entry"] for c in document["costs"]}
    for density in (0.001, 0.01):
        packed, plain = (sizes[f"{id} float32", density] for id in ("golomb", "block16"))
        assert packed < plain < sizes["index_value", density]
