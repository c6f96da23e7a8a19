"""Assumptions of ``advise`` and ``simulate``, in words, each with the option that replaces it."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence

from hvd_sparse.autotune.costmodel.architectures import ARCHITECTURES, FLOPS, SAMPLES
from hvd_sparse.autotune.costmodel.costs import Work
from hvd_sparse.autotune.costmodel.network import CALL_S, Network, Wire
from hvd_sparse.autotune.costmodel.profile import Profile
from hvd_sparse.autotune.costmodel.published import CPU
from hvd_sparse.cli import _settings


def of_model(options: argparse.Namespace, profile: Profile) -> list[str]:
    """Return the assumed times of a step, and the processor assumed for the backward pass."""
    found = []
    if options.backward is None and options.model in ARCHITECTURES:
        found.append(
            f"the backward pass takes {_ms(profile.backward_s)}, as {SAMPLES} samples do at "
            f"{FLOPS / 1e12:g} Tflop/s "
            "(--backward)"
        )
    if options.forward is None and not _settings.tells_forward(options):
        half = ", half of the backward pass" if profile.other_s else ""
        found.append(f"the rest of a step takes {_ms(profile.other_s)}{half} (--forward)")
    if not profile.is_apart:
        found.append(
            "one processor computes the gradients and selects from them (--apart if a GPU computes "
            "them)"
        )
    return found


def of_work(work: Work) -> list[str]:
    """Return the assumed costs of computing, where none were measured."""
    if work is not CPU:
        return []
    return [
        "selecting and coding take what one core of a server's processor takes (--costs, or launch "
        "it to measure)"
    ]


def of_networks(options: argparse.Namespace, networks: Iterable[Wire]) -> list[str]:
    """Return the assumed properties of networks that were neither measured nor described."""
    described = [network for network in networks if isinstance(network, Network)]
    if not described:
        return []
    found = []
    if options.bandwidth is None:
        rates = dict.fromkeys(f"{network.bandwidth_bit_s / 1e9:g} Gbit/s" for network in described)
        found.append(f"a node's link has {' or '.join(rates)} (--bandwidth)")
    if options.latency is None:
        found.append(f"a message between nodes takes {1e6 * _settings.LATENCY_S:g} us (--latency)")
    for network in [network for network in described if network.ranks_per_node > 1][:1]:
        rate, late = network.local_bandwidth_bit_s / 1e9, 1e6 * network.local_latency_s
        found.append(
            f"inside a node every rank has {rate:g} Gbit/s, and a message takes {late:g} us "
            "(--costs)"
        )
    found.append(
        f"a collective starts after {1e3 * CALL_S:g} ms, a cycle of Horovod's (--costs, or launch "
        "it to measure)"
    )
    return found


def in_lines(assumed: Sequence[str]) -> str:
    """Return the assumptions as lines of text."""
    return "\n".join(["assumed, as nobody has said otherwise:", *(f"  {each}" for each in assumed)])


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms"
