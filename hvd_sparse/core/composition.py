"""Which parts cannot be joined: by what they declare, never by their names."""

from __future__ import annotations

from typing import Any

from ..errors import InvalidOption


def check_composition(selector: Any, memory: Any, codec: Any, schedule: Any) -> None:
    """InvalidOption for parts that would silently do something else than their papers say."""
    is_rounded = not codec.is_exact and not (codec.is_exact_for_signs and selector.changes_values)
    is_biased = selector.changes_values and not selector.is_unbiased
    if (is_rounded or is_biased) and not memory.keeps_rounding:
        raise InvalidOption(
            f"{selector.id} with {codec.id} sends other values than were accumulated, and memory {memory.id} forgets the "
            "difference at every step: use memory='error_feedback'"
        )
    if selector.needs_gradient and not memory.adds_gradient:
        raise InvalidOption(
            f"{selector.id} compares the gradient with the residual it is added to, and memory {memory.id} adds something "
            "else: use memory='error_feedback'"
        )
    if schedule is not None and not hasattr(selector, "density"):
        raise InvalidOption(f"{selector.id} decides by itself how much is sent: leave out schedule {schedule.id}")
