"""What the workers of all frontends share, without any framework: many named cases in one
launch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from harness import report

Case = Callable[[str], Any]

SPARSE_ONLY: dict[str, Any] = {"allow_dense": False, "min_numel": 1, "compress_1d": True}
"""Every tensor that has an entry is compressed at every step."""


class Cases(dict[str, Case]):
    """Functions by name, in the order of their definition, which is the order in which all ranks
    run them."""

    def __call__(self, function: Case) -> Case:
        self[function.__name__] = function
        return function


SCRIPT = (
    ["sparse"] * 3
    + ["dense"] * 3
    + ["fp16"] * 2
    + ["sparse"] * 3
    + ["fp16"] * 2
    + ["sparse", "dense", "sparse"]
)
"""Ways of a run that changes them often."""


class Scripted:
    """Says what it was told to say, in the place of a trial."""

    verdict = None
    is_timed = True
    ways = ("sparse", "dense", "fp16")

    def __init__(self, script: Sequence[str]) -> None:
        self.left = list(script)
        self.told: list[float | None] = []

    def describe(self) -> list[str]:
        return self.left

    def next(self, last_s: float | None, agree: Any) -> str:
        self.told.append(last_s)
        return self.left.pop(0)


def caught(function: Any, *arguments: Any) -> str:
    """The error that a call raises, with its class."""
    try:
        function(*arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def run_cases(cases: Mapping[str, Case], rank: int, meet: Callable[[], Any]) -> dict[str, Any]:
    """Run every case on this rank and report: what it measured, or its error; return the report.

    A case is given its own name, which its compressor bears, so that cases do not meet in each
    other's collectives. Results are reported after every case: when one hangs, those before it are
    known.
    """
    results: dict[str, Any] = {}
    for name, function in cases.items():
        try:
            results[name] = {"measured": function(name)}
        except Exception as error:
            results[name] = {"error": f"{type(error).__name__}: {error}"}
        report(rank, results)
        meet()
    return results
