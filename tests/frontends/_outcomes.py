"""Reading one case's measurements out of a launch in which many cases ran."""

from __future__ import annotations

from typing import Any

from harness import Outcome

ULP = {"float32": 2.0**-23, "float64": 2.0**-52, "float16": 2.0**-10, "bfloat16": 2.0**-7}
"""Distance from 1 to the next number of each dtype."""


def measured(outcome: Outcome, case: str) -> list[Any]:
    """What a case measured, by rank; fails with the case's errors, or with the output if it was not
    reached."""
    found = [(result or {}).get(case) for result in outcome.results]
    assert None not in found, f"{case} did not end on every rank\n{outcome.end}"
    errors = [f"rank {rank}: {each['error']}" for rank, each in enumerate(found) if "error" in each]
    assert not errors, "; ".join(errors)
    return [each["measured"] for each in found]
