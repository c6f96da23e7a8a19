"""Methods that send the k largest entries, found exactly, by a sample or by a search."""

from __future__ import annotations

from hvd_sparse.compatibility import PLANNED
from hvd_sparse.density_rule import Density
from hvd_sparse.memories.momentum_correction import MomentumCorrection
from hvd_sparse.methods.builder import Builder, Compressor, is_as_published, of_paper
from hvd_sparse.selectors.dgc_sampled import DgcSampled
from hvd_sparse.selectors.radix_select import RadixSelect
from hvd_sparse.selectors.redsync_search import RedsyncSearch
from hvd_sparse.selectors.redsync_signs import RedsyncSigns
from hvd_sparse.selectors.redsync_trimmed import RedsyncTrimmed
from hvd_sparse.selectors.topk import TopK


class LargestMethods(Builder[Compressor]):
    """Methods that send the k largest entries, found exactly, by a sample or by a search."""

    @classmethod
    @of_paper("aji2017sparse")
    def topk(cls, params: object, *, density: Density, **options: object) -> Compressor:
        """Exact top-k of every tensor, with error feedback: the yardstick.  Paper: aji2017sparse.

        Left out: one threshold for all tensors, which the paper takes for networks with layer
        normalisation; ``select_over="group"`` comes near it.

        Parameters
        ----------
        density : part of the entries sent, in (0, 1], or by tensor
        """
        return cls.build(params, selector=TopK(density), **options)

    @classmethod
    @of_paper("shi2020mgs")
    def mgs(cls, params: object, *, density: Density, **options: object) -> Compressor:
        """MGS-SGD: one top k from every group of merged layers, planned in the run.  Paper:
        shi2020mgs.

        The first steps measure when gradients come and what selections and messages take; then
        layers are merged so that a step ends earliest, and planned anew when steps take much longer
        or shorter. In TensorFlow with ``groups="planned"`` and a program that calls ``replan``;
        otherwise messages are the groups that Horovod is given there. Departs: the plan is the best
        one, where the paper's greedy choice may miss it (docs/results/planning.md); residuals
        are kept by tensor, so that none is lost when groups change.

        Left out: planning in DDP, whose buckets are the groups.

        Parameters
        ----------
        density : part of every group's entries sent, in (0, 1], or by tensor
        """
        options.setdefault("groups", PLANNED if cls._plans_groups else None)
        return cls.build(params, selector=TopK(density), select_over="group", **options)

    @classmethod
    @of_paper("alabi2012fast")
    def radix_select(cls, params: object, *, density: Density, **options: object) -> Compressor:
        """Exact top-k by the digits of bit patterns, with error feedback.  Paper: alabi2012fast.

        Left out: the GPU, for which the paper's selection is made.

        Parameters
        ----------
        density : part of the entries sent, in (0, 1], or by tensor
        """
        return cls.build(params, selector=RadixSelect(density), **options)

    @classmethod
    @of_paper("lin2018dgc")
    def dgc(
        cls,
        params: object,
        *,
        density: Density,
        optimizer: object = None,
        momentum: float = 0.9,
        nesterov: bool = False,
        masking: bool = True,
        weight_decay: float = 0.0,
        clip_norm: float | None = None,
        sample_density: float = 0.01,
        **options: object,
    ) -> Compressor:
        """Deep gradient compression: sampled threshold and momentum correction.  Paper: lin2018dgc.

        The entries travel as in the authors' later code, as indices and values.

        Left out: the paper's wire, which is ``codec="run16"``; its warm-up, which is
        ``schedule={"id": "exponential_warmup", ...}``; clipping by the norm over all tensors, in
        the place of which ``clip_norm`` bounds each tensor's.

        Parameters
        ----------
        density : part of the entries sent, in (0, 1], or by tensor
        optimizer : as for every method; without it ``momentum``, ``nesterov`` and ``weight_decay``
            hold, and the optimizer must have none of its own
        momentum, nesterov, masking, weight_decay, clip_norm : as in ``MomentumCorrection``
        sample_density : as in ``DgcSampled``
        """
        memory: object = MomentumCorrection(momentum, nesterov, masking, weight_decay, clip_norm)
        kinds = () if optimizer is None else cls._read_optimizer(optimizer).memories
        if kinds and MomentumCorrection not in kinds:
            memory = kinds[0](clip_norm=clip_norm)
        selector = DgcSampled(density, sample_density=sample_density)
        return cls.build(params, selector=selector, memory=memory, optimizer=optimizer, **options)

    @classmethod
    @of_paper("fang2019redsync")
    def redsync(
        cls,
        params: object,
        *,
        density: Density,
        variant: str = "ours",
        search: bool = False,
        optimizer: object = None,
        **options: object,
    ) -> Compressor:
        """RedSync: trimmed top-k, or its threshold search with reuse.  Paper: fang2019redsync.

        The paper's quantized form, ``variant="paper"``, has momentum correction, and sends the
        largest entries of one sign at a step and those of the other at the next, as indices and one
        mean.

        Left out: the choice by a tensor's size (dense, trimmed, searched), which is ``min_numel``
        and ``search``; the dense first epochs, which are ``schedule={"id": "dense_warmup", ...}``;
        values of the output layer that are not averaged.

        Parameters
        ----------
        density : part of the entries sent, in (0, 1], or by tensor
        variant : "ours", which sends values of both signs and corrects no momentum without
            ``optimizer``; or "paper"
        search : use the threshold search
        optimizer : as for every method; without it "paper" corrects a momentum of 0.9, and the
            optimizer must have none of its own
        """
        selector: object = RedsyncSearch(density) if search else RedsyncTrimmed(density)
        if is_as_published(variant, "redsync"):
            selector = RedsyncSigns(density, search=search)
            options.setdefault("codec", "sign_index")
            kinds = () if optimizer is None else cls._read_optimizer(optimizer).memories
            if optimizer is None or MomentumCorrection in kinds:
                options.setdefault("memory", "momentum_correction")
        return cls.build(params, selector=selector, optimizer=optimizer, **options)
