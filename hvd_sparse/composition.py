"""Checks that the chosen selector, memory, codec, exchange and schedule work together. The checks
read attributes of these parts, never their ids, so they also cover parts that users register."""

from __future__ import annotations

from typing import Union

from hvd_sparse.checks import check_choice, check_whole
from hvd_sparse.codecs.contract import Codec
from hvd_sparse.density_rule import DensityRule
from hvd_sparse.errors import InvalidOption
from hvd_sparse.exchanges.contract import Exchange
from hvd_sparse.memories.contract import Memory
from hvd_sparse.schedules.contract import Schedule
from hvd_sparse.selectors.contract import Selector


def check_composition(
    selector: Selector, memory: Memory, codec: Codec, schedule: Schedule | None
) -> None:
    is_rounded = not codec.is_exact and not (codec.is_exact_for_signs and selector.changes_values)
    is_biased = selector.changes_values and not (selector.is_unbiased or memory.counts_votes)
    if memory.counts_votes and not selector.sends_votes:
        raise InvalidOption(
            f"memory {memory.id} counts votes, and selector {selector.id} sends values: use "
            "memory='error_feedback', or selector='sign_vote'"
        )
    if (is_rounded or is_biased) and not memory.keeps_rounding:
        raise InvalidOption(
            f"{selector.id} with {codec.id} does not send the accumulated values exactly, and "
            f"memory {memory.id} drops the difference at every step: use memory='error_feedback'"
        )
    if selector.needs_gradient and not (memory.adds_gradient or memory.finishes):
        raise InvalidOption(
            f"selector {selector.id} compares the gradient with the residual to which it is "
            f"added, but memory {memory.id} does not add the gradient itself: use "
            "memory='error_feedback'"
        )
    if schedule is not None and not hasattr(selector, "density"):
        raise InvalidOption(
            f"{selector.id} chooses its own density: leave out schedule {schedule.id}"
        )
    asked, ends = getattr(selector, "density", None), getattr(schedule, "value", None)
    if None not in (asked, ends) and asked != ends:
        raise InvalidOption(
            f"density is {asked!r} and schedule {schedule.id} has value {ends!r}: "  # type: ignore
            "give the density once, by density, and leave value out of the schedule"
        )


def check_exchange(
    exchange: Exchange,
    selector: Selector,
    memory: Memory,
    codec: Codec,
    schedule: Schedule | None,
    rollback: object,
) -> None:
    if exchange.needs_count and schedule is None:
        raise InvalidOption(
            f"exchange {exchange.id} needs a density to limit the number of entries, but selector "
            f"{selector.id} has none: use exchange='allgather'"
        )
    if exchange.shares_indices and selector.changes_values:
        raise InvalidOption(
            f"exchange {exchange.id} sends all ranks' accumulated values at one rank's indices, "
            f"and selector {selector.id} sends other values: use exchange='allgather'"
        )
    if exchange.shares_indices and not codec.is_exact:
        raise InvalidOption(
            f"exchange {exchange.id} sums exact values, so codec {codec.id} would have no effect: "
            "leave out the codec"
        )
    # The exchange returns entries after the residual was stored. If the residual were stored in 16
    # bits, adding these entries would round it a second time.
    stored = getattr(memory, "residual", "float32")
    returns_entries = exchange.settles_later and not exchange.shares_indices
    if returns_entries and stored != "float32":
        raise InvalidOption(
            f"exchange {exchange.id} returns entries to the residual after it was written, and a "
            f"residual in {stored} would be rounded twice: use memory='error_feedback' in float32"
        )
    if exchange.sums_first and not memory.adds_gradient:
        raise InvalidOption(
            f"exchange {exchange.id} sums gradients before they are added to the residual, but "
            f"memory {memory.id} transforms them first: use memory='error_feedback', without "
            "optimizer="
        )
    if exchange.sums_first and not rollback:
        raise InvalidOption(
            f"exchange {exchange.id} sums gradients before they are added to the residual, so "
            "with rollback=False a failed step's gradients would be lost: use "
            "exchange='allgather', or leave out rollback=False"
        )


def check_gathered(limit: int | None, memory: Memory) -> None:
    if limit is None:
        return
    check_whole(limit, "max_gathered_bytes", 1)
    if not memory.keeps_rounding:
        raise InvalidOption(
            f"max_gathered_bytes is {limit}, and memory {memory.id} keeps no residual, so entries "
            "above this limit may be lost: use memory='error_feedback', or leave out "
            "max_gathered_bytes"
        )


Groups = Union[int, str, tuple[tuple[str, ...], ...], None]
"""The option ``groups`` after its check: a number of groups, "planned", lists of names, or None."""

PLANNED = "planned"
"""Value of the option ``groups`` with which the groups are planned from measurements."""


def check_select_over(select_over: object, exchange: Exchange, selector: Selector) -> None:
    """Raise InvalidOption for an unknown value of ``select_over``, and for "group" if the exchange
    or the selector works on one tensor at a time."""
    check_choice(select_over, "select_over", ("tensor", "group"))
    if select_over == "tensor":
        return
    if exchange.settles_later or exchange.sums_first:
        raise InvalidOption(
            f"select_over is 'group', and exchange {exchange.id} selects tensor by tensor: use "
            "exchange='allgather', or select_over='tensor'"
        )
    if selector.needs_gradient:
        raise InvalidOption(
            f"select_over is 'group', and selector {selector.id} compares every tensor's gradient "
            "with its residual: use another selector, or select_over='tensor'"
        )


def check_measured(option: str, exchange: Exchange) -> None:
    """Raise InvalidOption if the exchange starts collectives after the backward pass, because these
    are not measured. The message starts with ``option``, which needs the measurements."""
    if not exchange.is_one_allgather:
        raise InvalidOption(
            f"{option}, and exchange {exchange.id} starts collectives after the backward pass, "
            "which are not measured: use exchange='allgather'"
        )


def check_hiding(groups: object, select_over: object) -> None:
    if groups == PLANNED:
        raise InvalidOption(
            "density is 'hiding' and groups is 'planned', and both measure the first steps: leave "
            "groups out, or give the groups that a planned run found (compressor.plan.groups)"
        )
    if select_over != "tensor":
        raise InvalidOption(
            "density is 'hiding' and select_over is 'group', where tensors compete for one "
            "density: use select_over='tensor'"
        )


def refuse_hiding(rule: DensityRule | None, why: str) -> None:
    """Raise InvalidOption if the density is "hiding", with which a run measures its densities.
    Called where densities cannot be measured; ``why`` is the reason, for the message."""
    if rule is not None and rule.c_max is not None:
        raise InvalidOption(
            f"density is 'hiding', and {why}: give a number, or the densities by name that a "
            "PyTorch run found (compressor.hiding.densities)"
        )


def check_groups(groups: object) -> Groups:
    """Check the option ``groups``, and return it with tuples in place of lists."""
    if groups is None or (isinstance(groups, str) and groups == PLANNED):
        return groups
    if isinstance(groups, int) and not isinstance(groups, bool) and groups >= 1:
        return groups
    if isinstance(groups, (list, tuple)) and all(
        isinstance(names, (list, tuple)) for names in groups
    ):
        made = tuple(tuple(names) for names in groups)
        flat = [name for names in made for name in names]
        if all(isinstance(name, str) for name in flat) and len(set(flat)) == len(flat):
            return made
    raise InvalidOption(
        f"groups is {groups!r}: give a number of messages, lists of tensor names (each name "
        "once), or 'planned'; None merges small neighbouring tensors"
    )
