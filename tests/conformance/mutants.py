"""The list of mutants, which are parts with a deliberate fault, and for each the check that must
fail."""

import contextlib
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
from conformance.codec_checks import check_codec
from conformance.exchange_checks import check_exchange, check_range_of
from conformance.fused_checks import check_kernels
from conformance.fuzzing import check_reader
from conformance.memory_checks import check_memory
from conformance.mutants_of_kernels import BROKEN_KERNELS
from conformance.mutants_of_parts import BROKEN_CODECS, BROKEN_EXCHANGES, BROKEN_MEMORIES
from conformance.mutants_of_selectors import BROKEN_SELECTORS, RESTLESS, endless_search
from conformance.mutants_of_stacks import BROKEN_STACKS
from conformance.pass_checks import check_few_passes_where_no_threshold_is, check_passes_on_all
from conformance.replay_checks import check_replays
from conformance.selector_checks import check_selector
from conformance.stack_checks import check_stack_reading

from hvd_sparse.codecs import _bits, _values, index_value, sign_index
from hvd_sparse.codecs.bitmap import Bitmap
from hvd_sparse.codecs.block16 import Block16
from hvd_sparse.codecs.index_value import IndexValue
from hvd_sparse.codecs.sign_index import SignIndex
from hvd_sparse.errors import SparseError
from hvd_sparse.exchanges import gtopk, hierarchical, oktopk, shared_index
from hvd_sparse.exchanges.allgather import AllGatherExchange
from hvd_sparse.exchanges.context import ExchangeContext
from hvd_sparse.exchanges.gtopk import GTopK
from hvd_sparse.exchanges.hierarchical import Hierarchical
from hvd_sparse.exchanges.oktopk import OkTopK
from hvd_sparse.exchanges.shared_index import SharedIndex
from hvd_sparse.selectors import _search as search
from hvd_sparse.selectors import ldte_bs
from hvd_sparse.selectors.ldte_bs import LdteBs
from hvd_sparse.selectors.topk import TopK
from hvd_sparse.step import receiver
from hvd_sparse.wire import frame as _frame
from hvd_sparse.wire.carrier import CarrierLayout
from hvd_sparse.wire.message import split_messages


@dataclass(frozen=True)
class Mutant:
    kind: str
    name: str
    check: Callable[[Any], None]
    part: Any
    patch: tuple[Any, str, Any] | None = None

    def __str__(self):
        return f"{self.kind}: {self.name}"


def _made(kind, check, broken):
    for name, part in broken.items():
        yield Mutant(kind, name, check, part)


def _patched(kind, broken):
    for name, rest in broken.items():
        yield Mutant(kind, name, *rest)


def anything_goes(*_):
    """Stand for a check that accepts everything."""


def any_padding(packed, width, count):
    assert width == 1
    return np.unpackbits(packed, bitorder="little")[:count]


def any_half(codes):
    return codes.view("f2").astype("f4")


def any_messages(self, joined, senders=None):
    return split_messages(joined, range(self.world_size) if senders is None else senders)


BROKEN_SEARCHES = {
    f"{step}: bracket not narrowed": (
        check_selector, LdteBs(0.1, search=step), (search.Bracket, "narrow", lambda *_: None)
    )
    for step in search.STEPS
} | {
    "limit on passes forgotten": (
        check_selector, LdteBs(0.1, search="bisection", max_passes=3),
        (ldte_bs, "search_threshold", endless_search),
    ),
} | {
    f"{name}: goes on where counts stand still": (
        check_few_passes_where_no_threshold_is, part, (search, "STANDSTILLS", 99)
    )
    for name, part in (("ldte_bs", LdteBs(0.001)), ("topk", TopK(0.001)))
}  # fmt: skip
BLIND_READERS = {
    "checksum not looked at": (check_codec, IndexValue(), (_frame, "crc32", lambda *_: 0)),
    "NaN let in": (check_reader, Block16("float16"), (_values, "half_values", any_half)),
    "padding let in": (check_reader, Bitmap(), (_bits, "unpack", any_padding)),
    "any magnitude let in": (check_reader, SignIndex(), (sign_index, "need", anything_goes)),
    "any order let in": (
        check_reader, IndexValue(), (index_value, "need_ascending", anything_goes)
    ),
}  # fmt: skip
BLIND = {
    f"{module.__name__.rsplit('.', 1)[-1]}: not looked at": (
        check_range_of, part, (module, name, seen)
    )
    for part, module, name, seen in (
        (AllGatherExchange(), receiver, "_check_range", anything_goes),
        (GTopK(), gtopk, "is_finite", lambda x: True),
        (OkTopK(), oktopk, "is_finite", lambda x: True),
        (Hierarchical(ranks_per_node=5), hierarchical, "is_finite", lambda x: True),
    )
}  # fmt: skip
LATE = {
    f"{name}: step not looked at": (check_replays, part, (receiver_of, method, seen))
    for name, part, receiver_of, method, seen in (
        ("message", AllGatherExchange(), ExchangeContext, "read", any_messages),
        ("carrier", AllGatherExchange(), CarrierLayout, "_refuse_step", anything_goes),
        ("sum", SharedIndex(), shared_index, "_check_step", anything_goes),
    )
}


def check_stack_reading_often(function):
    """Check up to ten times. These mutants crash only if two threads run at the same time, which is
    rare when other processes use the cores."""
    for _ in range(10):
        check_stack_reading(function)


MUTANTS = (
    *_made("kernel", check_kernels, BROKEN_KERNELS),
    *_made("selector", check_selector, BROKEN_SELECTORS),
    *_made("selector", check_passes_on_all, RESTLESS),
    *_patched("search", BROKEN_SEARCHES),
    *_made("memory", check_memory, BROKEN_MEMORIES),
    *_made("codec", check_codec, BROKEN_CODECS),
    *_patched("codec", BLIND_READERS),
    *_made("exchange", check_exchange, BROKEN_EXCHANGES),
    *_patched("range", BLIND),
    *_patched("replay", LATE),
    *_made("stack", check_stack_reading_often, BROKEN_STACKS),
)


def caught(mutant):
    """Return the name of the check that fails and its message; None if no check fails."""
    patched = mock.patch.object(*mutant.patch) if mutant.patch else contextlib.nullcontext()
    with patched:
        try:
            mutant.check(mutant.part)
        except (AssertionError, RuntimeWarning, SparseError) as error:
            frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
            checks = [
                name
                for name in frames
                if name.startswith(("check_", "assert_")) or name == "untouched"
            ]
            words = str(error).splitlines()
            return f"{checks[-1]}{': ' + words[0] if words else ''}"
    return None
