"""Methods whose ranks agree on indices, by their exchange or by shared random numbers."""

from __future__ import annotations

from hvd_sparse.density_rule import Density
from hvd_sparse.errors import InvalidOption
from hvd_sparse.exchanges.gtopk import GTopK
from hvd_sparse.exchanges.oktopk import OkTopK
from hvd_sparse.memories.error_feedback import ErrorFeedback
from hvd_sparse.memories.low_pass import LowPass
from hvd_sparse.methods.builder import (
    Builder,
    Compressor,
    add_dense_warmup,
    is_as_published,
    of_paper,
)
from hvd_sparse.selectors.chunk_max import ChunkMax
from hvd_sparse.selectors.chunked import Chunked
from hvd_sparse.selectors.random_k import RandomK
from hvd_sparse.selectors.reused_threshold import ReusedThreshold
from hvd_sparse.selectors.topk import TopK

OKTOPK_WARMUP = 512
"""Number of dense first steps in Ok-Topk's code for VGG-16; it has 128 for an LSTM, 0 for BERT."""


class AgreedMethods(Builder[Compressor]):
    """Methods whose ranks agree on indices, by their exchange or by shared random numbers."""

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
    ) -> Compressor:
        """ScaleCom: ranks in turn select the top k for all ranks.  Paper: chen2020scalecom.

        The paper selects chunk by chunk, and trains the first 1 to 10 % of the epochs dense, as
        with ``variant="paper"``.

        Left out: the rule that sets the density of a layer by its arithmetic operations; chunk
        lengths other than 1 / density.

        Parameters
        ----------
        density : fraction of the entries to send, in (0, 1], or by tensor
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
        selector = ChunkMax(density) if chunk_wise else TopK(density)
        memory = ErrorFeedback() if beta == 1 else LowPass(beta)
        options.setdefault("exchange", "shared_index")
        return cls.build(params, selector=selector, memory=memory, **options)

    @classmethod
    @of_paper("shi2019gtopk")
    def gtopk(
        cls, params: object, *, density: Density, conserving: bool = True, **options: object
    ) -> Compressor:
        """gTop-k: merge selections along a tree, and cut each merge to k.  Paper: shi2019gtopk.

        Nothing is left out; ``conserving=False`` is the paper's rule.

        Parameters
        ----------
        density : fraction of the entries to apply, in (0, 1], or by tensor
        conserving : keep entries in a residual that the paper's rule loses: those that a merge has
            cut at an index that is applied
        """
        return cls.build(params, selector=TopK(density), exchange=GTopK(conserving), **options)

    @classmethod
    @of_paper("li2022oktopk")
    def oktopk(
        cls,
        params: object,
        *,
        density: Density,
        variant: str = "ours",
        period: int = 32,
        warmup_steps: int | None = None,
        **options: object,
    ) -> Compressor:
        """Ok-Topk: ranks sum regions, and the k largest sums are applied.  Paper: li2022oktopk.

        The authors' code trains the first steps dense, as with ``variant="paper"``.

        Left out: regions of equal numbers of local selections, found by an allreduce (regions here
        follow the applied entries); balancing before the last collective (here each rank sends a
        bounded number of entries).

        Parameters
        ----------
        density : fraction of the entries to apply, in (0, 1], or by tensor
        variant : "ours", or "paper", which sets ``warmup_steps=512``, the authors' for VGG-16
        period : steps between exact evaluations of the local and the global threshold
        warmup_steps : number of dense first steps; None for the variant's default
        """
        published = is_as_published(variant, "oktopk")
        default = OKTOPK_WARMUP if published else 0
        add_dense_warmup(options, density, default if warmup_steps is None else warmup_steps)
        selector = ReusedThreshold(density, period=period)
        return cls.build(params, selector=selector, exchange=OkTopK(period=period), **options)

    @classmethod
    @of_paper("sun2019csc")
    def chunked(
        cls, params: object, *, density: Density, chunk_length: int = 512, **options: object
    ) -> Compressor:
        """Send the chunks with the largest norms, summed over all ranks.  Paper: sun2019csc.

        Left out: the paper's momentum correction (use ``optimizer=``) and its density that falls in
        the first epochs (use ``schedule=``).

        Parameters
        ----------
        density : fraction of the chunks to send, in (0, 1], or by tensor
        chunk_length : entries per chunk
        """
        options.setdefault("exchange", "shared_index")
        return cls.build(params, selector=Chunked(density, chunk_length), **options)

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
    ) -> Compressor:
        """Send entries at random positions, with error feedback.  Paper: stich2018sparsified.

        Left out: the learning rate inside the residual, which is left to the optimizer.

        Parameters
        ----------
        density : fraction of the entries to send, in (0, 1], or by tensor
        shared_seed : draw the same positions on all ranks, so that an allreduce of values suffices
        seed : seed of the random positions
        """
        if shared_seed:
            options.setdefault("exchange", "shared_index")
        return cls.build(
            params, selector=RandomK(density, shared_seed=shared_seed, seed=seed), **options
        )
