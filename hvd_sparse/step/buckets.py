"""Buckets: groups of tensors whose entries are sent in one message."""

from __future__ import annotations

from collections.abc import Sequence

from hvd_sparse.checks import count_from_density
from hvd_sparse.composition import PLANNED
from hvd_sparse.configuration import Configuration
from hvd_sparse.errors import InvalidOption
from hvd_sparse.schedules.contract import UNKNOWN_DENSITY
from hvd_sparse.types import INDEX_LIMIT, TensorSpec

BUCKET_BYTES = 64 * 1024
"""Expected bytes of a full bucket. For longer messages, the cost of starting a collective is
negligible."""

MOST_GROUPS = 2**53
"""Largest number of groups, because ``_equal`` uses float64, which has all integers up to this."""


def one_per_tensor(
    specs: Sequence[TensorSpec], configuration: Configuration
) -> list[tuple[int, ...]]:
    return [(i,) for i, spec in enumerate(specs) if configuration.is_sparse(spec.shape, spec.numel)]


def merge_small(specs: Sequence[TensorSpec], configuration: Configuration) -> list[tuple[int, ...]]:
    """Return buckets of neighbouring tensors. Tensors are added to a bucket until it is expected to
    send ``BUCKET_BYTES`` or more. The model's last tensors are in the first bucket, because most
    backward passes compute gradients in this order."""
    plan: list[tuple[int, ...]] = []
    members: list[int] = []
    filled = 0.0
    for (position,) in reversed(one_per_tensor(specs, configuration)):
        joined = [specs[i] for i in (position, *members)]
        if members and (filled >= BUCKET_BYTES or why_not_merged(joined, configuration)):
            plan.append(tuple(sorted(members)))
            members, filled = [], 0.0
        members.append(position)
        filled += expected_bytes(configuration, specs[position])
    if members:
        plan.append(tuple(sorted(members)))
    return plan


def grouped(specs: Sequence[TensorSpec], configuration: Configuration) -> list[tuple[int, ...]]:
    """Return the buckets for the option ``groups``. Each bucket is a tuple of its tensors'
    positions. A compressed tensor that no group names has its own bucket. Raises InvalidOption for
    unknown names."""
    groups = configuration.groups
    if groups is None and configuration.hides:
        return one_per_tensor(specs, configuration)  # each layer has its own density
    if groups is None or groups == PLANNED:  # until there is a plan
        return merge_small(specs, configuration)
    each = one_per_tensor(specs, configuration)
    if isinstance(groups, int):
        return _equal(specs, configuration, [position for (position,) in each], groups)
    positions = {spec.key: position for position, spec in enumerate(specs)}
    unknown = [name for names in groups for name in names if name not in positions]
    if unknown:
        raise InvalidOption(
            f"groups names {', '.join(map(repr, unknown))}, but no tensor has this name; there "
            f"are: {', '.join(positions)}"
        )
    compressed = {position for (position,) in each}
    named = [
        tuple(sorted(positions[name] for name in names if positions[name] in compressed))
        for names in groups
    ]
    taken = {position for bucket in named for position in bucket}
    return [bucket for bucket in named if bucket] + [
        bucket for bucket in reversed(each) if bucket[0] not in taken
    ]


def _equal(
    specs: Sequence[TensorSpec], configuration: Configuration, positions: list[int], groups: int
) -> list[tuple[int, ...]]:
    """Return at most ``groups`` buckets of neighbouring tensors, of about equal expected bytes."""
    members = [specs[position] for position in reversed(positions)]
    sizes = [expected_bytes(configuration, spec) for spec in members]
    total, filled, groups = sum(sizes), 0.0, min(groups, MOST_GROUPS)
    plan: dict[int, list[int]] = {}  # most are empty if there are more groups than tensors
    for position, size in zip(reversed(positions), sizes):
        group = min(groups - 1, int(groups * (filled + size / 2) / total))
        plan.setdefault(group, []).append(position)
        filled += size
    return [tuple(sorted(members)) for members in plan.values()]


def check_merged(
    specs: Sequence[TensorSpec], buckets: Sequence[tuple[int, ...]], configuration: Configuration
) -> None:
    """Raise InvalidOption if ``select_over`` is "group" and the tensors of some bucket cannot be
    joined into one vector."""
    for members in buckets:
        reason = why_not_merged([specs[position] for position in members], configuration)
        if reason is not None:
            raise InvalidOption(
                f"select_over is 'group', but {reason}: give groups that separate these tensors, "
                "or use select_over='tensor'"
            )


def why_not_merged(members: Sequence[TensorSpec], configuration: Configuration) -> str | None:
    if configuration.select_over != "group":
        return None
    first, numel = members[0], sum(spec.numel for spec in members)
    for other in members:
        if other.accumulator != first.accumulator:
            return (
                f"tensors {first.key!r} and {other.key!r} of one group are accumulated in "
                f"{first.accumulator} and {other.accumulator}"
            )
    if numel >= INDEX_LIMIT:
        return (
            f"the {len(members)} tensors of a group from {first.key!r} to {members[-1].key!r} "
            f"have {numel} entries together, more than the {INDEX_LIMIT - 1} that indices of 32 "
            "bits allow"
        )
    return None


def expected_bytes(configuration: Configuration, spec: TensorSpec, step: int = 0) -> float:
    density, numel = configuration.density(step, spec) or UNKNOWN_DENSITY, spec.numel
    width = spec.accumulator.itemsize
    return count_from_density(numel, density) * configuration.codec.entry_bytes(
        numel, density, width
    )
