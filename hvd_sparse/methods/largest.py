"""Methods that send the k largest entries, found exactly, from a sample or by a search."""

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
    """Methods that send the k largest entries, found exactly, from a sample or by a search."""

    @classmethod
    @of_paper("aji2017sparse")
    def topk(cls, params: object, *, density: Density, **options: object) -> Compressor:
        """Exact top-k of every tensor, with error feedback; the baseline.  Paper: aji2017sparse.

        Left out: one threshold for all tensors, which the paper uses for networks with layer
        normalisation; ``select_over="group"`` is similar.

        Parameters
        ----------
        density : fraction of the entries to send, in (0, 1], or by tensor
        """
        return cls.build(params, selector=TopK(density), **options)

    @classmethod
    @of_paper("shi2020mgs")
    def mgs(cls, params: object, *, density: Density, **options: object) -> Compressor:
        """MGS-SGD: one top-k selection from each group of layers.  Paper: shi2020mgs.

        The first steps measure the arrival of gradients and the costs of selections and messages.
        Layers are then merged into the groups with the shortest predicted step, and planned again
        if steps take much longer or shorter. TensorFlow needs ``groups="planned"`` and a program
        that calls ``replan``; otherwise the groups are those given to Horovod. Departs: the plan is
        optimal, while the paper's greedy choice may not be (docs/results/planning.md); residuals
        are kept by tensor, so that none is lost when groups change.

        Left out: planning in DDP, whose buckets are the groups.

        Parameters
        ----------
        density : fraction of every group's entries to send, in (0, 1], or by tensor
        """
        options.setdefault("groups", PLANNED if cls._plans_groups else None)
        return cls.build(params, selector=TopK(density), select_over="group", **options)

    @classmethod
    @of_paper("alabi2012fast")
    def radix_select(cls, params: object, *, density: Density, **options: object) -> Compressor:
        """Exact top-k by a radix search, with error feedback.  Paper: alabi2012fast.

        Left out: the paper's implementation on GPUs.

        Parameters
        ----------
        density : fraction of the entries to send, in (0, 1], or by tensor
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

        Entries are sent as indices and values, as in the authors' later code.

        Left out: the paper's encoding (use ``codec="run16"``); its warm-up (use
        ``schedule={"id": "exponential_warmup", ...}``); clipping by the norm over all tensors;
        ``clip_norm`` bounds the norm of each tensor instead.

        Parameters
        ----------
        density : fraction of the entries to send, in (0, 1], or by tensor
        optimizer : as for every method; without it, ``momentum``, ``nesterov`` and ``weight_decay``
            are used, and the program's optimizer must have no momentum or weight decay
        momentum, nesterov, masking, weight_decay, clip_norm : see ``MomentumCorrection``
        sample_density : see ``DgcSampled``
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
        """RedSync: trimmed top-k, or a threshold search with reuse.  Paper: fang2019redsync.

        ``variant="paper"`` is the paper's quantized form: with momentum correction, it sends the
        largest entries of one sign on one step and those of the other sign on the next, as indices
        and one mean.

        Left out: the choice between dense, trimmed and searched by a tensor's size (use
        ``min_numel`` and ``search``); the dense first epochs (use
        ``schedule={"id": "dense_warmup", ...}``); exact values for the output layer.

        Parameters
        ----------
        density : fraction of the entries to send, in (0, 1], or by tensor
        variant : "ours", which sends values of both signs, without momentum correction unless
            ``optimizer`` is given; or "paper"
        search : use the threshold search
        optimizer : as for every method; without it, "paper" corrects a momentum of 0.9, and the
            program's optimizer must have no momentum
        """
        selector: object = RedsyncSearch(density) if search else RedsyncTrimmed(density)
        if is_as_published(variant, "redsync"):
            selector = RedsyncSigns(density, search=search)
            options.setdefault("codec", "sign_index")
            kinds = () if optimizer is None else cls._read_optimizer(optimizer).memories
            if optimizer is None or MomentumCorrection in kinds:
                options.setdefault("memory", "momentum_correction")
        return cls.build(params, selector=selector, optimizer=optimizer, **options)
