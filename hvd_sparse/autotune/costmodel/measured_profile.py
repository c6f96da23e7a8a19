"""From what a run has seen of its own steps to a profile, and from a plan back to buckets of
tensors."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from hvd_sparse.autotune.costmodel.instance import Plan, check_plan, groups
from hvd_sparse.autotune.costmodel.profile import Layer, Profile
from hvd_sparse.configuration import Configuration
from hvd_sparse.errors import InvalidOption
from hvd_sparse.types import TensorSpec


def measured_profile(
    specs: Sequence[TensorSpec],
    ready_s: Mapping[str, Sequence[float]],
    configuration: Configuration,
    other_s: float = 0.0,
) -> Profile:
    """The profile of a model whose gradients were seen to become ready.

    Parameters
    ----------
    specs : the registered tensors
    ready_s : by key, seconds from the start of the backward pass to the gradient, a number for
        every step that was timed, with nothing but the backward pass at work in between; tensors
        that are missing had no gradient, and are left out
    configuration : says which tensors are compressed
    other_s : of a step outside the backward pass

    Returns
    -------
    Profile   by the medians over the steps.  Ranks measure differently: one rank's profile is for all

    Raises
    ------
    InvalidOption   no tensor was seen, or times of a tensor that is not registered
    """
    unknown = sorted(set(ready_s) - {spec.key for spec in specs})
    if unknown:
        raise InvalidOption(
            f"gradients of {', '.join(unknown)} were timed, and are not among the registered "
            "tensors"
        )
    median_s = {key: statistics.median(times) for key, times in ready_s.items() if times}
    # of equal times the tensor that was registered last comes first: backward passes go that way
    seen = sorted(
        (median_s[spec.key], -position, spec)
        for position, spec in enumerate(specs)
        if spec.key in median_s
    )
    layers, before_s = [], 0.0
    for at_s, _, spec in seen:
        is_sparse = configuration.is_sparse(spec.shape, spec.numel)
        layers.append(Layer(spec.key, spec.numel, max(0.0, at_s - before_s), is_sparse))
        before_s = max(before_s, at_s)
    return Profile(tuple(layers), other_s)


def planned_buckets(
    plan: Plan, profile: Profile, specs: Sequence[TensorSpec]
) -> list[tuple[int, ...]]:
    """Positions of the tensors that travel together, as ``core.step.buckets`` has them.

    Parameters
    ----------
    plan : of the compressed layers of the profile
    specs : the registered tensors.  Those that are compressed though the profile has no time for
        them are no concern of the plan: who has such tensors adds buckets for them

    Returns
    -------
    a bucket a group, in the order of the backward pass; its positions ascend
    """
    positions = {spec.key: position for position, spec in enumerate(specs)}
    layers = profile.compressed.layers
    missing = [layer.name for layer in layers if layer.name not in positions]
    if missing:
        raise InvalidOption(
            "the profile has layers that are not among the registered tensors: "
            f"{', '.join(missing)}"
        )
    return [
        tuple(sorted(positions[layer.name] for layer in layers[start:stop]))
        for start, stop in groups(check_plan(plan, len(layers)))
    ]
