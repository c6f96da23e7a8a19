"""The list of mutants: parts of which one function has a deliberate fault, and for each the check
that must fail."""

import contextlib
import pkgutil
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock

from conformance import mutants_of_kernels
from conformance import mutants_of_parts as faults
from conformance.codec_checks import check_codec
from conformance.exchange_checks import check_exchange, check_range_of
from conformance.fused_checks import check_kernels
from conformance.fuzzing import check_reader
from conformance.memory_checks import check_memory
from conformance.mutants_of_stacks import BROKEN_STACKS
from conformance.pass_checks import check_few_passes_where_no_threshold_is, check_passes_on_all
from conformance.replay_checks import check_replays
from conformance.selector_checks import check_everything, check_selector
from conformance.stack_checks import check_stack_reading

from hvd_sparse.errors import SparseError
from hvd_sparse.kernels.contract import Kernels


@dataclass(frozen=True)
class Mutant:
    """``change`` makes another function of the one that is at ``where``."""

    kind: str
    name: str
    check: Callable[[Any], None]
    part: Any
    where: str = ""
    change: Callable[[Any], Any] | None = None

    def __str__(self):
        return f"{self.kind}: {self.name}"

    def made(self):
        """Return a context in which the function is changed."""
        if self.change is None:
            return contextlib.nullcontext()
        return mock.patch(self.where, self.change(pkgutil.resolve_name(self.where)))


class Engine(Kernels):
    """The kernels to change; the checks compare them with the reference, which stays right."""

    def __repr__(self):  # in the ids of tests, which must be equal in all of pytest's processes
        return "Engine()"


ENGINE = Engine()


def check_stack_reading_often(function):
    """Check up to ten times. These mutants crash only if two threads run at the same time, which is
    rare when other processes use the cores."""
    for _ in range(10):
        check_stack_reading(function)


CHECKS = (
    ("selector", check_selector, faults.OF_SELECTORS),
    ("selector", check_everything, faults.OF_LIMITS),
    ("selector", check_passes_on_all, faults.OF_PASSES),
    ("selector", check_few_passes_where_no_threshold_is, faults.OF_STANDSTILLS),
    ("memory", check_memory, faults.OF_MEMORIES),
    ("codec", check_codec, faults.OF_CODECS),
    ("codec", check_reader, faults.OF_READERS),
    ("exchange", check_exchange, faults.OF_EXCHANGES),
    ("range", check_range_of, faults.OF_RANGES),
    ("replay", check_replays, faults.OF_REPLAYS),
    ("stack", check_stack_reading_often, BROKEN_STACKS),
)
MUTANTS = [
    Mutant("kernel", name, check_kernels, ENGINE, f"{__name__}.Engine.{kernel}", change)
    for kernel, changes in mutants_of_kernels.FAULTS.items()
    for name, change in changes.items()
] + [
    Mutant(kind, name, check, *broken)
    for kind, check, listed in CHECKS
    for name, broken in listed.items()
]


def caught(mutant):
    """Return the name of the check that fails and its message; None if no check fails."""
    with mutant.made():
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
