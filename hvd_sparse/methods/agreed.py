"""Methods whose ranks agree on entries, by their exchange or by shared draws."""

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
"""Dense first steps of Ok-Topk's authors for VGG-16; 128 for an LSTM, none for BERT."""


class AgreedMethods(Builder[Compressor]):
    """Methods whose ranks agree on entries, by their exchange or by shared draws."""

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
        """ScaleCom: a leader's top k, in turns, and all ranks' values there.  Paper:
        chen2020scalecom.

        The paper selects chunk by chunk and trains the first 1 to 10 % of the epochs dense:
        ``variant="paper"``.

        Left out: the rule that gives layers densities by their arithmetic; chunks of another length
        than 1 / density.

        Parameters
        ----------
        density : part of the entries sent, in (0, 1], or by tensor
        variant : "ours", or "paper": ``chunk_wise``, and ``warmup_steps``, which must be given
        beta : of the low-pass filtered residual, in (0, 1]; 1 is error feedback, the authors take
            0.1 for large batches
        chunk_wise : the leader takes the largest entry of every 1 / density entries, in one pass,
            instead of the top k; None takes the variant's
        warmup_steps : dense first steps
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
        """gTop-k: a tree of merges, each cut to k.  Paper: shi2019gtopk.

        Nothing is left out; the paper's rule is ``conserving=False``.

        Parameters
        ----------
        density : part of the entries applied, in (0, 1], or by tensor
        conserving : lose nothing, where the paper's rule loses entries that are cut on the way at
            indices that are applied
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
        """Ok-Topk: sums by regions, of which the k largest are applied.  Paper: li2022oktopk.

        The authors' code trains its first steps dense: ``variant="paper"``.

        Left out: regions of the local selections, which the ranks agree on by a sum (these follow
        the applied entries); balancing before the last collective (an owner sends a bounded share).

        Parameters
        ----------
        density : part of the entries applied, in (0, 1], or by tensor
        variant : "ours", or "paper", which is ``warmup_steps=512``, the authors' for VGG-16
        period : steps between exact evaluations of the local and the global threshold
        warmup_steps : dense first steps; None takes the variant's
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
        """Whole chunks, the same on all ranks, by norms summed over the ranks.  Paper: sun2019csc.

        Left out: momentum correction of its own, which is ``optimizer=``, and the density that
        falls in the first epochs, which is a ``schedule``.

        Parameters
        ----------
        density : part of the chunks sent, in (0, 1], or by tensor
        chunk_length : entries a chunk
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
        """Entries at random positions, with error feedback.  Paper: stich2018sparsified.

        Left out: the learning rate inside the residual, which stays with the optimizer.

        Parameters
        ----------
        density : part of the entries sent, in (0, 1], or by tensor
        shared_seed : the same positions on all ranks, so that values alone travel, in a sum
        seed : of the draws
        """
        if shared_seed:
            options.setdefault("exchange", "shared_index")
        return cls.build(
            params, selector=RandomK(density, shared_seed=shared_seed, seed=seed), **options
        )
