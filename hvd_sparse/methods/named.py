"""Named methods. Each combines a selector, memory, codec, exchange and schedule as a paper does.
The docstrings list what a method lacks of its paper, and what it does in another way."""

from __future__ import annotations

from hvd_sparse.checks import hint_of
from hvd_sparse.composition import PLANNED
from hvd_sparse.density_rule import Density
from hvd_sparse.errors import InvalidOption, UnknownName
from hvd_sparse.memories.momentum_correction import MomentumCorrection
from hvd_sparse.methods.builder import Builder, add_dense_warmup, is_as_published, of_paper
from hvd_sparse.types import Option, Value

OKTOPK_WARMUP = 512
"""Number of dense first steps in the authors' code of Ok-Topk for VGG-16. The code has 128 such
steps for an LSTM, and none for BERT."""


class Methods(Builder):
    """Base class of each frontend's ``Compression``, so that all frontends have the same methods.

    ``Builder`` explains ``params``, ``density``, ``optimizer`` and the common options.
    """

    @classmethod
    @of_paper("aji2017sparse")
    def topk(cls, params: object, *, density: Density, **options: object) -> Value:
        """Exact top-k of every tensor, with error feedback; the usual baseline.
        Paper: aji2017sparse.

        For networks with layer normalisation, the paper uses one threshold for all tensors. This
        method does not have this single threshold; ``select_over="group"`` is similar.
        """
        return cls.build(params, selector={"id": "topk", "density": density}, **options)

    @classmethod
    @of_paper("shi2020mgs", "select_over")
    def mgs(cls, params: object, *, density: Density, **options: object) -> Value:
        """MGS-SGD: one top-k selection from each group of layers.  Paper: shi2020mgs.

        The first steps measure when gradients are ready, and how long selections and messages take.
        Layers are then merged into the groups for which the shortest step is predicted. If steps
        later take much longer or shorter, the groups are planned again.

        In TensorFlow, planning needs ``groups="planned"`` and a program that calls ``replan``;
        otherwise the groups are those given to Horovod. Under DDP, DDP's buckets are the groups,
        and nothing is planned.

        Unlike in the paper, the plan is the best one by the measurements, which the paper's greedy
        choice may not find (docs/results/planning.md). Residuals belong to tensors instead of
        groups, so that they are kept when groups change.
        """
        options.setdefault("groups", PLANNED if cls._plans_groups else None)
        selector = {"id": "topk", "density": density}
        return cls.build(params, selector=selector, select_over="group", **options)

    @classmethod
    @of_paper("alabi2012fast")
    def radix_select(cls, params: object, *, density: Density, **options: object) -> Value:
        """Exact top-k by a radix search, with error feedback.  Paper: alabi2012fast.

        The paper's implementation for GPUs is not part of this package.
        """
        return cls.build(params, selector={"id": "radix_select", "density": density}, **options)

    @classmethod
    @of_paper("lin2018dgc", "memory")
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
    ) -> Value:
        """Deep gradient compression: sampled threshold and momentum correction.  Paper: lin2018dgc.

        Entries are sent as indices and values, as in the authors' later code.

        By default the method lacks these parts of the paper: its encoding (use ``codec="run16"``),
        its warm-up (use ``schedule={"id": "exponential_warmup", ...}``), and clipping by the norm
        over all tensors (use ``clip_grad_norm``; ``clip_norm`` bounds the norm of each tensor).

        Parameters
        ----------
        optimizer : as for every method. Without it, the method uses ``momentum``, ``nesterov`` and
            ``weight_decay``, and the program's optimizer must have no momentum or weight decay
        momentum, nesterov, masking, weight_decay, clip_norm : see ``MomentumCorrection``
        sample_density : fraction of the entries in the sample; see ``DgcSampled``
        """
        memory: object = MomentumCorrection(momentum, nesterov, masking, weight_decay, clip_norm)
        handover = None if optimizer is None else cls._read_optimizer(optimizer)
        if handover is not None and MomentumCorrection not in handover.memories:
            if not handover.memories and clip_norm is not None:
                raise InvalidOption(
                    f"clip_norm is {clip_norm!r}, and optimizer={handover.name} leaves dgc a "
                    "memory that does not clip: leave clip_norm out, or use SGD, Adam, AdamW, "
                    "NAdam or Muon"
                )
            memory = handover.memories[0](clip_norm=clip_norm) if handover.memories else None
        selector = {"id": "dgc_sampled", "density": density, "sample_density": sample_density}
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
    ) -> Value:
        """RedSync: trimmed top-k, or a threshold that is searched and used again.
        Paper: fang2019redsync.

        ``variant="paper"`` is the paper's quantized form, with momentum correction. It sends the
        largest entries of one sign on one step and those of the other sign on the next, as indices
        and one mean.

        The method lacks these parts of the paper: the rule by which a tensor's size decides between
        a dense exchange, trimmed top-k and a threshold search (use ``min_numel`` and ``search``),
        the dense first epochs (use ``schedule={"id": "dense_warmup", ...}``), and exact values for
        the output layer.

        Parameters
        ----------
        variant : "ours", which sends exact values of both signs, and applies momentum before the
            selection only if ``optimizer`` is given; or "paper"
        search : use the threshold search
        optimizer : as for every method. Without it, "paper" applies a momentum of 0.9 before the
            selection, and the program's optimizer must have no momentum
        """
        id = "redsync_search" if search else "redsync_trimmed"
        selector: dict[str, object] = {"id": id, "density": density}
        if is_as_published(variant, "redsync"):
            selector |= {"id": "redsync_signs", "search": search}
            options.setdefault("codec", "sign_index")
            kinds = () if optimizer is None else cls._read_optimizer(optimizer).memories
            if optimizer is None or MomentumCorrection in kinds:
                options.setdefault("memory", "momentum_correction")
        return cls.build(params, selector=selector, optimizer=optimizer, **options)

    @classmethod
    @of_paper("chen2021ldte")
    def ldte_bs(
        cls,
        params: object,
        *,
        density: Density,
        variant: str = "ours",
        search: str | None = None,
        tolerance: tuple[float, float] = (0.8, 1.3),
        max_passes: int = 16,
        warm_start: bool | None = None,
        **options: object,
    ) -> Value:
        """LDTE-BS: a Laplace threshold estimate, corrected by binary search.  Paper: chen2021ldte.

        The search starts from the threshold of the tensor's previous step. If there is none, for
        example on the first step, it starts from the estimate. The paper starts from the estimate
        at every step, and bisects.

        We had no access to the paper's bracket (the first interval of the search), tolerance and
        limit on bisections. Both variants use our own values.

        Parameters
        ----------
        variant : "ours", or "paper", which sets ``search="bisection", warm_start=False``
        search : how the next threshold is chosen: "log_count" or "bisection" (see
            ``selectors.ldte_bs.LdteBs``); None for the variant's default
        warm_start : whether the search starts from the previous threshold; None for the variant's
            default
        tolerance, max_passes : when the search ends; see ``selectors.ldte_bs.LdteBs``
        """
        published = is_as_published(variant, "ldte_bs")
        search = ("bisection" if published else "log_count") if search is None else search
        warm_start = not published if warm_start is None else warm_start
        selector = {
            "id": "ldte_bs",
            "density": density,
            "search": search,
            "tolerance": tolerance,
            "max_passes": max_passes,
            "warm_start": warm_start,
        }
        return cls.build(params, selector=selector, **options)

    @classmethod
    @of_paper("chen2021ldte")
    def ldte(
        cls, params: object, *, density: Density, cap: float = 8.0, **options: object
    ) -> Value:
        """LDTE: the Laplace threshold estimate without a search.  Paper: chen2021ldte.

        The paper finds key points of the distribution's curve by a relation between areas. We had
        no access to this relation. Here the threshold is computed from the fitted tail in closed
        form.

        Parameters
        ----------
        density : intended fraction of the entries; the sent number depends on the estimate
        cap : the number of sent entries is at most ``cap`` times the intended number
        """
        return cls.build(params, selector={"id": "ldte", "density": density, "cap": cap}, **options)

    @classmethod
    @of_paper("shi2019understanding")
    def gaussian_k(
        cls, params: object, *, density: Density, variant: str = "ours", **options: object
    ) -> Value:
        """Threshold from a fitted normal distribution, with error feedback.
        Paper: shi2019understanding.

        Each tail of the distribution gets half of the density, as in the authors' code. By their
        Algorithm 1, and ``variant="paper"``, each tail gets all of it (the one-sided quantile).

        In the authors' code the density falls from epoch to epoch. Here ``schedule`` does this.

        Parameters
        ----------
        variant : "ours", "paper" or "improved"; see ``GaussianK``
        """
        selector = {"id": "gaussian_k", "density": density, "variant": variant}
        return cls.build(params, selector=selector, **options)

    @classmethod
    @of_paper("abdelmoniem2021sidco")
    def sidco(
        cls,
        params: object,
        *,
        density: Density,
        distribution: str = "exponential",
        stages: int = 1,
        **options: object,
    ) -> Value:
        """SIDCo: a threshold from distributions fitted to the tail, in stages.
        Paper: abdelmoniem2021sidco.

        In the authors' code all tensors share one number of stages. Here each tensor has its own.

        Parameters
        ----------
        distribution : kind of the fitted distributions; see ``Sidco``
        stages : number of stages at the first step
        """
        fit = {"distribution": distribution, "stages": stages}
        return cls.build(params, selector={"id": "sidco", "density": density, **fit}, **options)

    @classmethod
    @of_paper("chen2020scalecom")
    def scalecom(
        cls,
        params: object,
        *,
        density: Density,
        variant: str = "ours",
        beta: float = 1.0,
        chunk_wise: bool | None = None,
        warmup_steps: int | None = None,
        **options: object,
    ) -> Value:
        """ScaleCom: ranks in turn select the top k for all ranks.  Paper: chen2020scalecom.

        The paper selects chunk by chunk, and runs the first 1 to 10 % of the epochs dense, as
        ``variant="paper"`` does.

        The method lacks these parts of the paper: the rule that derives a layer's density from its
        number of arithmetic operations, and chunk lengths other than 1 / density.

        Parameters
        ----------
        variant : "ours", or "paper", which sets ``chunk_wise`` and requires ``warmup_steps``
        beta : coefficient of the low-pass filtered residual, in (0, 1]; 1 is error feedback, and
            the authors use 0.1 for large batches
        chunk_wise : select the largest of every 1 / density entries, in one pass, instead of the
            top k; None for the variant's default
        warmup_steps : number of dense first steps
        """
        published = is_as_published(variant, "scalecom")
        if published and warmup_steps is None:
            raise InvalidOption(
                'variant="paper" of scalecom starts with dense steps, 1 to 10 % of the epochs, but '
                "warmup_steps is missing: give a number, for example warmup_steps=steps_per_epoch"
            )
        add_dense_warmup(options, density, warmup_steps or 0)
        chunk_wise = published if chunk_wise is None else chunk_wise
        selector = {"id": "chunk_max" if chunk_wise else "topk", "density": density}
        if beta != 1:
            if "memory" in options:
                raise InvalidOption(
                    f"beta is {beta!r} and memory is {options['memory']!r}: both set scalecom's "
                    "memory, so leave out one of them"
                )
            options["memory"] = {"id": "low_pass", "beta": beta}
        options.setdefault("exchange", "shared_index")
        return cls.build(params, selector=selector, **options)

    @classmethod
    @of_paper("shi2019gtopk", "exchange")
    def gtopk(
        cls, params: object, *, density: Density, conserving: bool = True, **options: object
    ) -> Value:
        """gTop-k: merge the ranks' selections along a tree, and keep k entries of every merge.
        Paper: shi2019gtopk.

        The method has all parts of the paper; ``conserving=False`` is its rule for dropped entries.

        Parameters
        ----------
        conserving : keep in a residual those entries that the paper's rule loses; see ``GTopK``
        """
        selector = {"id": "topk", "density": density}
        exchange = {"id": "gtopk", "conserving": conserving}
        return cls.build(params, selector=selector, exchange=exchange, **options)

    @classmethod
    @of_paper("li2022oktopk", "exchange")
    def oktopk(
        cls,
        params: object,
        *,
        density: Density,
        variant: str = "ours",
        period: int = 32,
        warmup_steps: int | None = None,
        **options: object,
    ) -> Value:
        """Ok-Topk: each rank sums the entries of one region, and the k largest sums are applied.
        Paper: li2022oktopk.

        The authors' code runs the first steps dense, as ``variant="paper"`` does.

        Two parts differ from the paper. In the paper, an allreduce finds regions with equally many
        locally selected entries; here regions have equally many of the entries that the previous
        step applied. The paper balances the entries between ranks before the last collective; here
        each rank sends a bounded number of entries.

        Parameters
        ----------
        variant : "ours", or "paper": ``warmup_steps=512``, the authors' number for VGG-16
        period : number of steps between exact evaluations of the local and the global threshold
        warmup_steps : number of dense first steps; None for the variant's default
        """
        published = is_as_published(variant, "oktopk")
        default = OKTOPK_WARMUP if published else 0
        add_dense_warmup(options, density, default if warmup_steps is None else warmup_steps)
        selector = {"id": "reused_threshold", "density": density, "period": period}
        exchange = {"id": "oktopk", "period": period}
        return cls.build(params, selector=selector, exchange=exchange, **options)

    @classmethod
    @of_paper("sun2019csc")
    def chunked(
        cls, params: object, *, density: Density, chunk_length: int = 512, **options: object
    ) -> Value:
        """Send the chunks for which the sum of all ranks' L1 norms is largest.  Paper: sun2019csc.

        By default the method lacks these parts of the paper: momentum correction (use
        ``optimizer=`` and ``memory="momentum_correction"``), and a density that falls in the first
        epochs (use ``schedule=``).

        Parameters
        ----------
        density : fraction of the chunks to send
        chunk_length : entries per chunk
        """
        options.setdefault("exchange", "shared_index")
        selector = {"id": "chunked", "density": density, "chunk_length": chunk_length}
        return cls.build(params, selector=selector, **options)

    @classmethod
    @of_paper("stich2018sparsified")
    def random_k(
        cls,
        params: object,
        *,
        density: Density,
        shared_seed: bool = False,
        seed: int = 0,
        **options: object,
    ) -> Value:
        """Send entries at random positions, with error feedback.  Paper: stich2018sparsified.

        In the paper, gradients are multiplied by the learning rate before they are added to the
        residual. Here the optimizer applies the learning rate.

        Parameters
        ----------
        shared_seed : draw the same positions on all ranks, so that an allreduce of values suffices
        seed : seed of the random positions
        """
        if shared_seed:
            options.setdefault("exchange", "shared_index")
        draw = {"shared_seed": shared_seed, "seed": seed}
        return cls.build(params, selector={"id": "random_k", "density": density, **draw}, **options)

    @classmethod
    @of_paper("chen2018adacomp")
    def adacomp(cls, params: object, *, bin_length: int | None = None, **options: object) -> Value:
        """AdaComp: signs of the entries that may become the largest of their bin.
        Paper: chen2018adacomp.

        We had no access to the description of the paper's byte format of bins. Instead,
        ``codec="ternary"`` sends for every bin the number of its selected entries, then
        their positions and signs.

        Parameters
        ----------
        bin_length : entries per bin; None for the paper's lengths by kind of layer
        """
        options.setdefault("codec", "ternary")
        return cls.build(params, selector={"id": "adacomp", "bin_length": bin_length}, **options)

    @classmethod
    @of_paper("strom2015scalable")
    def strom(
        cls, params: object, *, threshold: float, max_density: float = 0.1, **options: object
    ) -> Value:
        """Signs of the entries above a fixed threshold, with error feedback.
        Paper: strom2015scalable.

        The method has all parts of the paper. Unlike the paper, it limits the number of sent
        entries, by ``max_density``.

        Parameters
        ----------
        threshold : the threshold, compared with the magnitudes of the accumulated gradient
        max_density : largest fraction of a tensor's entries that is sent
        """
        options.setdefault("codec", "sign_index")
        given = {"threshold": threshold, "max_density": max_density, "signs_only": True}
        return cls.build(params, selector={"id": "fixed_threshold", **given}, **options)

    @classmethod
    @of_paper("sattler2019stc")
    def stc(cls, params: object, *, density: Density, **options: object) -> Value:
        """Sparse ternary compression: signs of the top k, and their mean.  Paper: sattler2019stc.

        The method lacks these parts of the paper: local steps between exchanges (use
        ``LocalSteps``), and a server that compresses its updates to the workers.
        """
        options.setdefault("codec", "sign_mean")
        return cls.build(params, selector={"id": "stc", "density": density}, **options)

    @classmethod
    @of_paper("sattler2019sbc")
    def sbc(cls, params: object, *, density: Density, **options: object) -> Value:
        """Sparse binary compression: the largest entries of one sign, and their mean.
        Paper: sattler2019sbc.

        The method itself lacks the paper's delay, which is a number of local steps between
        exchanges; for a delay, use ``LocalSteps``.
        """
        options.setdefault("codec", "one_sign")
        return cls.build(params, selector={"id": "sbc", "density": density}, **options)

    @classmethod
    @of_paper("bernstein2019majority")
    def signsgd(cls, params: object, **options: object) -> Value:
        """Majority vote of the signs of all entries, without a residual.
        Paper: bernstein2019majority.

        For each entry, the optimizer receives +1 or -1, or 0 for a tie. So with plain SGD, every
        update that is not 0 has the size of the learning rate.

        The method lacks Signum's momentum, which each worker applies before the vote.
        """
        options.setdefault("memory", "majority_vote")
        options.setdefault("codec", "one_bit")
        return cls.build(params, selector="sign_vote", **options)

    @classmethod
    @of_paper("karimireddy2019error")
    def ef_sign(cls, params: object, **options: object) -> Value:
        """Signs of all entries and one magnitude, with error feedback.  Paper:
        karimireddy2019error.

        In the paper, gradients are multiplied by the learning rate before they are added to the
        residual. Here the optimizer applies the learning rate.
        """
        options.setdefault("codec", "one_bit")
        return cls.build(params, selector="ef_sign", **options)

    @classmethod
    @of_paper("wen2017terngrad")
    def terngrad(
        cls, params: object, *, clip: float | None = 2.5, seed: int = 0, **options: object
    ) -> Value:
        """Stochastic ternary gradients, without a residual.  Paper: wen2017terngrad.

        The sent signs are multiplied by a scale. In the paper, all ranks use the largest of their
        scales. Here every rank has its own scale.

        Parameters
        ----------
        clip : bound on magnitudes, in standard deviations; None for no clipping
        seed : seed of the random numbers
        """
        options.setdefault("memory", "none")
        options.setdefault("codec", "two_bit")
        return cls.build(params, selector={"id": "terngrad", "clip": clip, "seed": seed}, **options)


METHODS: dict[str, str] = {
    name: getattr(Methods, name).paper
    for name in sorted(dir(Methods))
    if hasattr(getattr(Methods, name), "paper")
}
"""Maps the name of each named method to the citation key of its paper."""


def check_method(name: Option) -> None:
    """Raise InvalidOption if ``name`` is no text, and UnknownName if it is not in ``METHODS``."""
    if not isinstance(name, str):
        raise InvalidOption(f"the method is {name!r}: give its name, for example 'ldte_bs'")
    if name not in METHODS:
        raise UnknownName(
            f"no method is called {name!r}{hint_of(name, METHODS)}; there are: {', '.join(METHODS)}"
        )
