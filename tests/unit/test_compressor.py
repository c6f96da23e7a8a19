"""What both frontends' compressors have in common: names and identity."""

from __future__ import annotations

import copy
import gc
import pickle

import pytest
import worlds
from compressors import SPECS, NumpyCompressor
from worlds import configure, tensors

from hvd_sparse.errors import InvalidOption
from hvd_sparse.frontend.compressor import Compressor, say_alone


def test_two_live_compressors_of_one_name_are_refused_with_the_remedies(make):
    make(configure(name="twin"))
    with pytest.raises(
        InvalidOption, match=r"two compressors have the name 'twin'.*name=.*close\(\)"
    ):
        make(configure(name="twin"))


def test_compressors_of_equal_models_have_names_of_their_own(make):
    """By the order in which they are made, whatever has become of those before."""
    first, second = make(), make()
    assert len({first.name, second.name, make().name}) == 3
    second.close()
    again = make()
    assert again.name == second.name
    second.close()
    assert len({first.name, again.name, make().name}) == 3
    del again
    gc.collect()


def test_names_by_default_do_not_depend_on_when_garbage_is_collected(make):
    """Ranks do not collect it at the same time."""

    def dropped():
        return worlds.run(1, lambda c: NumpyCompressor(c, configure("ldte_bs", 0.1)).name)[0]

    names = [dropped()]
    gc.collect()
    names += [dropped(), dropped()]
    assert len(set(names)) == 3


def test_process_sets_have_names_of_their_own():
    class Placed(NumpyCompressor):
        def __init__(self, collective, place):
            Compressor.__init__(self, configure("ldte_bs", 0.1), place, 1)
            self._take_name(SPECS)

    made = [Placed(None, place) for place in ("numpy.0", "numpy.1", "numpy.2", "numpy.0")]
    names = [compressor.name for compressor in made]
    for compressor in made:
        compressor.close()
    assert names == [names[0], f"{names[0]}.set1", f"{names[0]}.set2", f"{names[0]}.1"]


def test_a_given_name_is_free_when_nothing_refers_to_its_compressor_but_itself(make):
    """As compressors are part of circles, Python alone would let go of them some time later."""

    def drop(collective):
        compressor = NumpyCompressor(collective, configure(name="circle"))
        compressor.itself = compressor

    gc.disable()
    try:
        worlds.run(1, drop)
        assert make(configure(name="circle")).name == "circle"
    finally:
        gc.enable()


def test_closing_does_not_free_a_name_that_another_took_since(make):
    old = make(configure(name="taken"))
    old.close()
    make(configure(name="taken"))
    old.close()
    with pytest.raises(InvalidOption, match="two compressors"):
        make(configure(name="taken"))


def test_the_default_name_is_the_models(make):
    first = make()
    first.close()
    assert make().name == first.name
    assert make(specs=tensors((30, 4), (10,))).name != first.name


def test_compressors_compare_and_hash_by_identity(make):
    """Horovod's TensorFlow cache keys on them."""
    one, other = make(configure(name="one")), make(configure(name="other"))
    assert one == one and one != other and len({one, other}) == 2


def test_compressors_meet_for_the_handshake_by_the_order_of_their_first_meetings_under_any_name(
    make,
):
    _unused, other, one = (make(configure(name=name)) for name in ("unused", "other", "one"))
    first, second = ordinals_of(one, other)
    assert second == first + 1


def test_in_another_world_compressors_meet_by_the_order_of_their_meetings_there(make):
    closed, one, other, later = (make(configure(name=name)) for name in "abcd")
    ordinals_of(closed, other, one)
    closed.close()
    assert ordinals_of(one, other, later) == [0, 1, 2]
    assert ordinals_of(one) == [0]  # a worker was lost at once, and all begin again
    assert ordinals_of(one, other, later) == [0, 1, 2]


def ordinals_of(*compressors):
    names = [compressor._meeting_place() for compressor in compressors]
    assert all(name.startswith("hvd_sparse.handshake.numpy.") for name in names)
    return [int(name.rsplit(".", 1)[1]) for name in names]


@pytest.mark.parametrize("take", [pickle.dumps, copy.copy, copy.deepcopy])
def test_pickling_and_copying_are_refused_with_the_remedy(make, take):
    with pytest.raises(
        InvalidOption, match=r"cannot be pickled or copied: .*state_dict\(\).*from_config"
    ):
        take(make())


def test_repr_stats_and_config_say_what_the_compressor_is(make):
    compressor = make(configure("ldte_bs", 0.1, name="generator"))
    for word in (
        "NumpyCompressor(",
        "LdteBs(density=0.1",
        "ErrorFeedback(residual=",
        "IndexValue()",
        "rollback=True",
        "'generator'",
    ):
        assert word in repr(compressor)
    stats = compressor.stats()
    assert (stats["name"], stats["density_asked"], stats["steps"]) == ("generator", 0.1, 0)
    assert compressor.config() == compressor.configuration.describe()


@pytest.mark.parametrize(("elastic", "warnings"), [("", 1), ("1", 0)])
def test_a_world_of_one_is_warned_of_once_unless_it_may_grow(
    make, monkeypatch, caplog, elastic, warnings
):
    monkeypatch.setenv("HOROVOD_ELASTIC", elastic)
    say_alone.cache_clear()
    make(configure(name="one")), make(configure(name="other"))
    assert [record.getMessage()[:12] for record in caplog.records] == ["world size 1"] * warnings
