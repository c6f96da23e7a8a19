"""``scripts/bench codecs``: a quick run prints what it writes, and its bytes are those of the
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


def test_every_codec_is_in_the_table_the_page_and_the_picture(quick):
    printed, folder = quick
    document = json.loads((folder / "codecs.json").read_text())
    page = (folder / "codecs.md").read_text()
    names = {cost["codec"] for cost in document["costs"]}
    assert {name.split()[0] for name in names} == set(CODECS)
    for name in names:
        assert name in printed
        assert f"`{name}`" in page
    assert (
        "entropy" in printed and "GRACE" in page and "DGC's authors' code, int32 + float16" in page
    )
    assert (folder / "codecs.png").read_bytes().startswith(b"\x89PNG")


def test_its_figures_are_the_ledgers(quick):
    """8 bytes an entry and a header; times above zero; index_value is once itself; recorded
    gradients in all codecs."""
    document = json.loads((quick[1] / "codecs.json").read_text())
    assert document["quick"] is True
    for cost in document["costs"]:
        assert cost["encode_ns"] > 0 and cost["decode_ns"] > 0
        if cost["codec"] == "index_value":
            assert cost["bytes_per_entry"] == pytest.approx(8 + 32 / cost["count"])
            assert cost["ratio"] == 1
    for totals in document["recorded"].values():
        assert totals["index_value"] == 8 * totals["entries"] + 32 * totals["frames"]
        assert totals["golomb float32"] < totals["block16 float32"] < totals["index_value"]
