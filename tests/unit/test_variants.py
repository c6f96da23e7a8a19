"""Methods: ``variant="paper"``, spellings of methods and densities, and their pages."""

import argparse
import doctest
import inspect
import re

import numpy as np
import pytest
from compressors import Made
from harness import ROOT

from examples import spelling
from examples.spelling import SpelledMethod, density_argument, read_method
from hvd_sparse.configuration import Configuration
from hvd_sparse.errors import InvalidOption, UnknownName
from hvd_sparse.methods import METHODS, Methods
from hvd_sparse.registry import SELECTORS
from hvd_sparse.selectors.contract import Context


def test_the_examples_of_spellings_print_what_they_say():
    assert doctest.testmod(spelling).failed == 0


def made(method, **options):
    return getattr(Made, method)("p", density=0.01, **options).configuration


PUBLISHED = {
    "ldte_bs": {"selector": {"id": "ldte_bs", "search": "bisection", "warm_start": False}},
    "gaussian_k": {"selector": {"id": "gaussian_k", "variant": "paper"}},
    "redsync": {
        "selector": {"id": "redsync_signs", "search": False},
        "memory": "momentum_correction",
        "codec": "sign_index",
    },
    "oktopk": {
        "selector": {"id": "reused_threshold"},
        "exchange": "oktopk",
        "schedule": {"id": "dense_warmup", "value": 0.01, "warmup_steps": 512},
    },
    "scalecom": {
        "selector": {"id": "chunk_max"},
        "exchange": "shared_index",
        "schedule": {"id": "dense_warmup", "value": 0.01, "warmup_steps": 30},
    },
}
GIVEN = {"scalecom": {"warmup_steps": 30}}
DEFINED = {"topk": "selector", "mgs": "select_over", "dgc": "memory"}
DEFINED |= {"gtopk": "exchange", "oktopk": "exchange"}


@pytest.mark.parametrize(("method", "option"), DEFINED.items())
def test_an_option_that_the_method_defines_is_refused_by_name(method, option):
    words = f"^{option} is 'mine', but {method} defines the {option}: leave it out, or combine"
    with pytest.raises(InvalidOption, match=words):
        made(method, **{option: "mine"})


def test_scalecom_has_one_memory():
    assert made("scalecom", memory="momentum_feedback").memory.id == "momentum_feedback"
    with pytest.raises(InvalidOption, match=r"^beta is 0\.1 and memory is 'low_pass': both set"):
        made("scalecom", beta=0.1, memory="low_pass")


@pytest.mark.parametrize("method", PUBLISHED)
def test_the_papers_variant_is_its_parts_ours_is_not_and_another_is_refused(method):
    expected = dict(PUBLISHED[method])
    expected["selector"] = {"density": 0.01, **expected["selector"]}
    given = GIVEN.get(method, {})
    published = made(method, variant="paper", **given)
    assert published == Configuration.create(**expected)
    assert published != made(method, variant="ours", **given)
    assert made(method, variant="ours") == made(method)
    with pytest.raises(InvalidOption, match=r"variant.*'theirs'.*ours.*paper"):
        made(method, variant="theirs", **given)


def test_what_is_said_comes_before_the_variant():
    selector = made("ldte_bs", variant="paper", search="log_count").selector
    assert (selector.search, selector.warm_start) == ("log_count", False)
    assert made("redsync", variant="paper", memory="error_feedback").memory.id == "error_feedback"
    assert made("redsync", variant="paper", codec="golomb").codec.id == "golomb"
    assert made("redsync", variant="paper", search=True).selector.search
    assert made("oktopk", variant="paper", warmup_steps=7).density(6) == 1.0
    assert made("oktopk", variant="paper", warmup_steps=7).density(7) == 0.01
    assert made("scalecom", variant="paper", warmup_steps=0, chunk_wise=False).selector.id == "topk"


def test_dense_epochs_of_unknown_length_are_asked_for():
    with pytest.raises(InvalidOption, match=r"scalecom .* warmup_steps is missing"):
        made("scalecom", variant="paper")


@pytest.mark.parametrize("method", ["oktopk", "scalecom"])
def test_a_schedule_and_a_warm_up_are_not_both_taken(method):
    schedule = {"id": "constant", "value": 0.01}
    with pytest.raises(InvalidOption, match="warmup_steps is 5 and schedule is"):
        made(method, warmup_steps=5, schedule=schedule)
    assert made(method, variant="paper", warmup_steps=0, schedule=schedule).density(0) == 0.01


def test_a_method_is_read_with_its_options():
    assert read_method("topk") == SpelledMethod("topk")
    text = "ldte_bs,tolerance=(0.9,1.1),warm_start=False,codec={'id': 'golomb', 'values': 'int8'}"
    codec = {"id": "golomb", "values": "int8"}
    options = {"tolerance": (0.9, 1.1), "warm_start": False, "codec": codec}
    assert read_method(text) == SpelledMethod("ldte_bs", options)


@pytest.mark.parametrize("text", ["topk,", "topk,clip", "topk,clip=", "topk,=1", "topk,2=1"])
def test_what_is_no_option_is_refused(text):
    with pytest.raises(InvalidOption, match=r"is no option: write OPTION=VALUE"):
        read_method(text)


def test_an_unknown_method_is_refused_with_the_nearest():
    with pytest.raises(UnknownName, match=r"'ldtebs' \(did you mean 'ldte_bs'\?\)"):
        read_method("ldtebs,variant=paper")


def test_the_signs_of_redsync_take_turns_and_are_sent_as_their_mean():
    """From the state that steps leave, as a compressor has it."""
    selector = SELECTORS.create("redsync_signs", density=0.4)
    x, memo, sent = np.array([5.0, -1.0, 1.0, -4.0, 2.0, 3.0, -2.0], np.float32), None, []
    for _ in range(3):
        found = selector.find(x, Context(memo=memo))
        memo = found.memo
        sent.append((found.selection.indices.tolist(), found.selection.values.tolist()))
    assert sent == [([0, 5], [4.0, 4.0]), ([3, 6], [-3.0, -3.0]), ([0, 5], [4.0, 4.0])]


def test_a_side_without_entries_sends_nothing_and_gives_the_turn_on():
    selector = SELECTORS.create("redsync_signs", density=0.5, search=True)
    x = np.array([-3.0, -1.0], np.float64)
    first = selector.find(x, Context())
    assert first.selection.count == 0
    assert selector.find(x, Context(memo=first.memo)).selection.indices.tolist()[0] == 0


def test_gaussian_ks_algorithm_1_asks_one_tail_for_all_entries():
    x = np.random.default_rng(0).standard_normal(200_000).astype(np.float32)
    ours, paper = (
        SELECTORS.create("gaussian_k", density=0.01, variant=variant, cap=100.0).select(x).count
        for variant in ("ours", "paper")
    )
    assert 0.95 < ours / 2_000 < 1.05
    # 2.326 lets 4,000 through; times 1.5, nearly none; halved, 16,000, which the third round sends
    mean, std = x.mean(dtype=float), x.std(dtype=float, ddof=1)
    assert paper == np.count_nonzero(np.abs(x) >= 0.75 * (mean + 2.3263478740408408 * std))


def test_a_text_stands_for_a_density_or_is_refused():
    for text, expected in {"1": 1.0, "1e-3": 0.001, " hiding:300": "hiding:300"}.items():
        found = density_argument(text)
        assert found == expected and type(found) is type(expected)
    for text, words in {
        "": "give the fraction of entries to send",
        "2": r"in \(0, 1\]",
        "{'*': 1.5}": r"density for '\*' is 1.5",
    }.items():
        with pytest.raises(argparse.ArgumentTypeError, match=words):
            density_argument(text)


FOLDER = ROOT / "docs" / "methods"
SECTIONS = {path.stem: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md")}
TABLE = SECTIONS.pop("index")
COMMON = {"density", "optimizer", "options", "params"}


def test_every_method_has_a_page_and_a_place_in_the_table():
    assert set(SECTIONS) == set(METHODS)
    for method, paper in METHODS.items():
        (row,) = [row for row in TABLE.split("\n") if f"[`{method}`]({method}.md)" in row]
        assert paper in row


@pytest.mark.parametrize("method", METHODS)
def test_a_page_names_every_option_of_the_method(method):
    own = set(inspect.signature(getattr(Methods, method)).parameters) - COMMON
    for option in own:
        assert re.search(rf"`{option}\b|variant=", SECTIONS[method]), option
    assert ('`variant="paper"`' in SECTIONS[method]) is ("variant" in own)
