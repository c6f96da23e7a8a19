"""The profile of a run's own steps, and the buckets of tensors of a plan for it."""

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
    """Return the profile of a model from the times at which its gradients became ready.

    Parameters
    ----------
    specs : the registered tensors
    ready_s : by key, seconds from the start of the backward pass to the gradient in every timed
        step, with nothing but the backward pass at work in between; tensors that are missing had no
        gradient, and are left out
    configuration : decides which tensors are compressed
    other_s : seconds of a step outside the backward pass

    Returns
    -------
    Profile
        By the medians over the steps.  Ranks measure differently, so all must take one rank's.

    Raises
    ------
    InvalidOption
        If no tensor was timed, or one that is not registered.
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
    """Return the buckets of a plan, as ``core.step.buckets`` has them.

    Parameters
    ----------
    plan : of the compressed layers of the profile
    profile : the layers
    specs : the registered tensors.  Compressed ones that the profile lacks are in no bucket: the
        caller adds buckets for them

    Returns
    -------
    A bucket for each group, in the order of the backward pass: positions of tensors, ascending

    Raises
    ------
    InvalidOption
        If a layer is not registered, or the plan does not fit the profile.
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
