"""Parts that would silently do something else than their papers say cannot be joined."""

import cases
import numpy as np
import pytest
from distributions import draw

from hvd_sparse.configuration import Configuration
from hvd_sparse.errors import InvalidOption
from hvd_sparse.registry import CODECS, MEMORIES, SELECTORS


@pytest.mark.parametrize("memory", cases.MEMORIES, ids=str)
def test_selectors_and_memories_join_where_their_declarations_allow_it(memory):
    for selector in cases.SELECTORS:
        chosen, kept = selector.create(SELECTORS, density=0.1), memory.create(MEMORIES)
        assert chosen.is_unbiased == (selector.id == "terngrad")
        forgets = chosen.changes_values and not kept.keeps_rounding and not chosen.is_unbiased
        if kept.counts_votes:
            forgets = not chosen.sends_votes
        mistakes = chosen.needs_gradient and not (kept.adds_gradient or kept.finishes)
        if forgets or mistakes:
            with pytest.raises(InvalidOption, match=r"use memory='error_feedback'"):
                Configuration.create(selector=chosen, memory=kept)
        else:
            assert Configuration.create(selector=chosen, memory=kept).selector == chosen


@pytest.mark.parametrize("codec", cases.CODECS, ids=str)
def test_a_codec_that_rounds_needs_a_memory_that_keeps_the_rounding(codec):
    for selector in cases.SELECTORS:
        chosen, made = selector.create(SELECTORS, density=0.1), codec.create(CODECS)
        is_exact = made.is_exact or (made.is_exact_for_signs and chosen.changes_values)
        is_refused = not is_exact or (chosen.changes_values and not chosen.is_unbiased)
        assert Configuration.create(selector=chosen, codec=made).codec == made
        if is_refused:
            with pytest.raises(InvalidOption, match=r"use memory='error_feedback'"):
                Configuration.create(selector=chosen, codec=made, memory="none")
        else:
            assert Configuration.create(selector=chosen, codec=made, memory="none").codec == made


@pytest.mark.parametrize(
    "codec", [case for case in cases.CODECS if case.create(CODECS).is_exact_for_signs], ids=str
)
def test_selectors_of_signs_are_sent_bit_for_bit_by_codecs_of_signs(codec):
    for selector in cases.SELECTORS:
        chosen, made = selector.create(SELECTORS, density=0.1), codec.create(CODECS)
        for dtype in ("float32", "float64"):
            vector = draw("laplace", 2_000, dtype)
            selection = chosen.select(vector, rng=np.random.default_rng(0))
            decoded = made.decode(made.encode(selection))
            assert decoded.indices.tolist() == selection.indices.tolist()
            is_same = decoded.values.tobytes() == selection.values.tobytes()
            assert is_same or not chosen.changes_values


@pytest.mark.parametrize("schedule", cases.SCHEDULES, ids=str)
def test_a_schedule_is_refused_by_a_selector_that_decides_by_itself(schedule):
    for selector in cases.SELECTORS:
        chosen = selector.create(SELECTORS, density=schedule.options.get("value", 0.1))
        described = {"id": schedule.id, **schedule.options}
        if hasattr(chosen, "density"):
            assert Configuration.create(selector=chosen, schedule=described).density(0) is not None
        else:
            with pytest.raises(InvalidOption, match="leave out schedule"):
                Configuration.create(selector=chosen, schedule=described)
            assert Configuration.create(selector=chosen).density(0) is None
