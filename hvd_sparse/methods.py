"""The named methods: each paper as a choice of five parts, with the authors' defaults.

Both frontends' ``Compression`` inherit these, so that an option means the same in both.
"""

from __future__ import annotations

from typing import Any

from hvd_sparse.configuration import Configuration
from hvd_sparse.core.step.handover import Handover
from hvd_sparse.exchanges.gtopk import GTopK
from hvd_sparse.exchanges.oktopk import OkTopK
from hvd_sparse.memories.adam_correction import AdamCorrection
from hvd_sparse.memories.error_feedback import ErrorFeedback
from hvd_sparse.memories.low_pass import LowPass
from hvd_sparse.memories.momentum_correction import MomentumCorrection
from hvd_sparse.selectors.adacomp import AdaComp
from hvd_sparse.selectors.chunk_max import ChunkMax
from hvd_sparse.selectors.chunked import Chunked
from hvd_sparse.selectors.dgc_sampled import DgcSampled
from hvd_sparse.selectors.ef_sign import EfSign
from hvd_sparse.selectors.fixed_threshold import FixedThreshold
from hvd_sparse.selectors.gaussian_k import GaussianK
from hvd_sparse.selectors.ldte import Ldte
from hvd_sparse.selectors.ldte_bs import LdteBs
from hvd_sparse.selectors.radix_select import RadixSelect
from hvd_sparse.selectors.random_k import RandomK
from hvd_sparse.selectors.redsync_search import RedsyncSearch
from hvd_sparse.selectors.redsync_trimmed import RedsyncTrimmed
from hvd_sparse.selectors.reused_threshold import ReusedThreshold
from hvd_sparse.selectors.sidco import Sidco
from hvd_sparse.selectors.stc import Stc
from hvd_sparse.selectors.terngrad import TernGrad
from hvd_sparse.selectors.topk import TopK


class Methods:
    """What ``Compression`` offers.  ``params`` are the frontend's: see its ``Compression``.

    Options that every method takes
    -------------------------------
    codec="index_value" : as which bytes the entries travel; methods whose paper has a wire of its
    own take that:
        adacomp "ternary", ef_sign "one_bit", stc "sign_mean", strom "sign_index", terngrad
        "two_bit"
    optimizer=None : the one that is then given to Horovod.  A torch or Keras SGD, Adam or AdamW
        does its work before the selection, on every rank for itself, where it sees gradients and
        not rare entries; the optimizer applies what arrives.  Not for ``terngrad``, which keeps
        nothing back
    min_numel=1024 : tensors with fewer entries go dense
    compress_1d=False : also compress tensors of one dimension (biases, norms), which else go dense
    process_set=hvd.global_process_set : the one given to Horovod
    name=None : part of every collective's name; by default made from the tensors' names and shapes
    engine=None : id of the kernels; the best that is installed by default
    rollback=True : a failed step leaves no trace, for a second buffer of the residual's size;
        without it the gradient of a failed step stays in the residual
    allow_dense=True : where dense moves no more bytes, the step runs dense, residual included
    groups=None : how many messages the compressed tensors travel in, or lists of the names of those
    that travel together
        (PyTorch); by default small neighbours do; "planned" measures the first steps and the
        network, and takes the quickest groups from then on.  In TensorFlow, groups given to Horovod
        are messages
    select_over="tensor" : "group" selects once from all tensors that travel together, as MGS-SGD
    does: the density holds
        for the group, and its tensors compete (exchange "allgather"; in TensorFlow a group of
        Horovod's)
    max_gathered_bytes=None : of a tensor, that the messages of all ranks may come to on every rank;
    where the density
        asks for more it runs dense, and what a method finds beyond it stays in the residual
    check_replicas_every=0 : after how many steps ranks compare checksums of what was applied; 0 for
    never telemetry=False : send the norm of the residual along (one more pass)
    on_nonfinite="propagate" : NaN or Inf on any rank makes that tensor's gradient NaN on all ranks,
    and the step leaves
        no trace; "raise" makes it an error on all ranks, with rank, tensor and count
    grad_scaler=None : what multiplies the loss: torch's ``GradScaler``, a Keras
    ``LossScaleOptimizer``, or a callable that
        returns the scale; residuals are kept in unscaled units
    timeout_s=600 : seconds after which a collective that did not finish is an error; None waits for
    ever
    """

    @classmethod
    def _create(
        cls, params: Any, configuration: Configuration, process_set: Any, grad_scaler: Any
    ) -> Any:
        raise NotImplementedError

    @classmethod
    def _read_optimizer(cls, optimizer: Any) -> Handover:
        """Return what a memory has to do in the place of the frontend's optimizer."""
        raise NotImplementedError

    @classmethod
    def build(
        cls,
        params: Any,
        *,
        selector: Any,
        process_set: Any = None,
        grad_scaler: Any = None,
        optimizer: Any = None,
        **options: Any,
    ) -> Any:
        """Compose freely.

        Parameters
        ----------
        params : the tensors to compress
        selector, memory, codec, exchange, schedule : parts, as an id, ``{"id": ..., option:
            value}`` or an object
        options : the common ones, above
        """
        handover = None if optimizer is None else cls._read_optimizer(optimizer)
        if handover is not None:
            options["memory"] = handover.join(options.get("memory"))
        configuration = Configuration.create(selector=selector, **options)
        compressor = cls._create(params, configuration, process_set, grad_scaler)
        if handover is not None:
            compressor.is_forewarned = True
            if handover.memory is not None:
                compressor.take_over(optimizer)
        return compressor

    @classmethod
    def from_config(
        cls,
        params: Any,
        config: dict[str, Any],
        *,
        process_set: Any = None,
        grad_scaler: Any = None,
        optimizer: Any = None,
    ) -> Any:
        """Return the compressor whose ``config()`` this is.

        optimizer : the one that its memory does the work of, if it was made with one
        """
        return cls.build(
            params, process_set=process_set, grad_scaler=grad_scaler, optimizer=optimizer, **config
        )

    @classmethod
    def ldte_bs(
        cls,
        params: Any,
        *,
        density: float,
        search: str = "log_count",
        tolerance: tuple[float, float] = (0.8, 1.3),
        max_passes: int = 16,
        warm_start: bool = True,
        **options: Any,
    ) -> Any:
        """LDTE-BS: a Laplace threshold estimate, corrected by binary search.  Paper: chen2021ldte.

        density : part of the entries sent, in (0, 1]; the others as in ``selectors.ldte_bs.LdteBs``

        In a steady state the search starts from the tensor's last threshold, so that the fit speaks
        at cold starts and misses alone.  ``search="bisection", warm_start=False`` is the nearest to
        the paper, which fits at every step.
        """
        selector = LdteBs(
            density,
            search=search,
            tolerance=tolerance,
            max_passes=max_passes,
            warm_start=warm_start,
        )
        return cls.build(params, selector=selector, **options)

    @classmethod
    def ldte(cls, params: Any, *, density: float, cap: float = 8.0, **options: Any) -> Any:
        """LDTE: the Laplace threshold estimate alone.  Paper: chen2021ldte.

        density : part of the entries asked for, in (0, 1]; the count sent is whatever the estimate
            gives, below cap * k
        """
        return cls.build(params, selector=Ldte(density, cap=cap), **options)

    @classmethod
    def topk(cls, params: Any, *, density: float, **options: Any) -> Any:
        """Exact top-k of every tensor, with error feedback: the yardstick.  Paper:
        aji2017sparse."""
        return cls.build(params, selector=TopK(density), **options)

    @classmethod
    def radix_select(cls, params: Any, *, density: float, **options: Any) -> Any:
        """Exact top-k by the digits of the bit patterns, with error feedback.  Paper:
        alabi2012fast."""
        return cls.build(params, selector=RadixSelect(density), **options)

    @classmethod
    def dgc(
        cls,
        params: Any,
        *,
        density: float,
        optimizer: Any = None,
        momentum: float = 0.9,
        nesterov: bool = False,
        masking: bool = True,
        weight_decay: float = 0.0,
        clip_norm: float | None = None,
        sample_density: float = 0.01,
        **options: Any,
    ) -> Any:
        """Deep gradient compression: sampled threshold, momentum correction, factor masking.
        Paper: lin2018dgc.

        optimizer : as for every method; without it ``momentum``, ``nesterov`` and ``weight_decay``
            hold, and the optimizer must have none of its own
        The others as in ``DgcSampled`` and ``MomentumCorrection``; ``schedule`` takes the warm-up.
        The entries travel as in the authors' later code, as indices and values; ``codec="run16"``
        is the paper's wire.
        """
        memory: Any = MomentumCorrection(momentum, nesterov, masking, weight_decay, clip_norm)
        if optimizer is not None and isinstance(
            cls._read_optimizer(optimizer).memory, AdamCorrection
        ):
            memory = AdamCorrection(clip_norm=clip_norm)
        selector = DgcSampled(density, sample_density=sample_density)
        return cls.build(params, selector=selector, memory=memory, optimizer=optimizer, **options)

    @classmethod
    def redsync(cls, params: Any, *, density: float, search: bool = False, **options: Any) -> Any:
        """RedSync: trimmed top-k or, with ``search``, its threshold search with reuse.  Paper:
        fang2019redsync.

        Left out: the alternation of signs with quantized values.  The paper's momentum correction
        is ``optimizer=``, or ``memory="momentum_correction"``.
        """
        selector = RedsyncSearch(density) if search else RedsyncTrimmed(density)
        return cls.build(params, selector=selector, **options)

    @classmethod
    def gaussian_k(
        cls, params: Any, *, density: float, variant: str = "paper", **options: Any
    ) -> Any:
        """A threshold from a fitted normal distribution, with error feedback.  Paper:
        shi2019understanding.

        Both tails share the density; the paper's Algorithm 1 takes the one-sided quantile.
        """
        return cls.build(params, selector=GaussianK(density, variant=variant), **options)

    @classmethod
    def adacomp(cls, params: Any, *, bin_length: int | None = None, **options: Any) -> Any:
        """AdaComp: the entries that could become their bin's largest, as signs.  Paper:
        chen2018adacomp."""
        options.setdefault("codec", "ternary")
        return cls.build(params, selector=AdaComp(bin_length), **options)

    @classmethod
    def sidco(
        cls,
        params: Any,
        *,
        density: float,
        distribution: str = "exponential",
        stages: int = 1,
        **options: Any,
    ) -> Any:
        """SIDCo: a threshold from staged fits of the tail, with error feedback.  Paper:
        abdelmoniem2021sidco."""
        return cls.build(
            params, selector=Sidco(density, distribution=distribution, stages=stages), **options
        )

    @classmethod
    def scalecom(
        cls,
        params: Any,
        *,
        density: float,
        beta: float = 1.0,
        chunk_wise: bool = False,
        **options: Any,
    ) -> Any:
        """ScaleCom: a leader's top k, in turns, and the sum of all ranks' values there.  Paper:
        chen2020scalecom.

        beta : of the low-pass filtered residual, in (0, 1]; 1 is error feedback, the authors take
            0.1 for large batches
        chunk_wise : the leader takes the largest entry of every 1 / density entries, in one pass,
            instead of the top k

        Left out: the paper's first epochs run dense, which is the schedule ``dense_warmup``.
        """
        selector = ChunkMax(density) if chunk_wise else TopK(density)
        memory = ErrorFeedback() if beta == 1 else LowPass(beta)
        options.setdefault("exchange", "shared_index")
        return cls.build(params, selector=selector, memory=memory, **options)

    @classmethod
    def gtopk(cls, params: Any, *, density: float, conserving: bool = True, **options: Any) -> Any:
        """gTop-k: a tree of merges, each cut to k.  Paper: shi2019gtopk.

        conserving : lose nothing, where the paper's rule loses what is cut on the way at indices
            that are applied
        """
        return cls.build(params, selector=TopK(density), exchange=GTopK(conserving), **options)

    @classmethod
    def oktopk(cls, params: Any, *, density: float, period: int = 32, **options: Any) -> Any:
        """Ok-Topk: sums by regions, of which the k largest are applied.  Paper: li2022oktopk.

        period : steps between exact evaluations of the local and the global threshold

        Left out: the paper's first steps run dense, which is the schedule ``dense_warmup``.
        """
        selector = ReusedThreshold(density, period=period)
        return cls.build(params, selector=selector, exchange=OkTopK(period=period), **options)

    @classmethod
    def chunked(
        cls, params: Any, *, density: float, chunk_length: int = 512, **options: Any
    ) -> Any:
        """Whole chunks, the same on all ranks, by norms summed over the ranks.  Paper:
        sun2019csc."""
        options.setdefault("exchange", "shared_index")
        return cls.build(params, selector=Chunked(density, chunk_length), **options)

    @classmethod
    def random_k(
        cls,
        params: Any,
        *,
        density: float,
        shared_seed: bool = False,
        seed: int = 0,
        **options: Any,
    ) -> Any:
        """Entries at random positions, with error feedback.  Paper: stich2018sparsified.

        shared_seed : the same positions on all ranks, so that values alone travel, in a sum
        """
        if shared_seed:
            options.setdefault("exchange", "shared_index")
        return cls.build(
            params, selector=RandomK(density, shared_seed=shared_seed, seed=seed), **options
        )

    @classmethod
    def strom(
        cls, params: Any, *, threshold: float, max_density: float = 0.1, **options: Any
    ) -> Any:
        """Signs of what exceeds a fixed threshold; the remainder stays.  Paper:
        strom2015scalable."""
        options.setdefault("codec", "sign_index")
        selector = FixedThreshold(threshold, max_density=max_density, signs_only=True)
        return cls.build(params, selector=selector, **options)

    @classmethod
    def stc(cls, params: Any, *, density: float, **options: Any) -> Any:
        """Sparse ternary compression: the signs of the top k, and their mean magnitude.  Paper:
        sattler2019stc."""
        options.setdefault("codec", "sign_mean")
        return cls.build(params, selector=Stc(density), **options)

    @classmethod
    def ef_sign(cls, params: Any, **options: Any) -> Any:
        """All signs and one magnitude, with error feedback.  Paper: karimireddy2019error."""
        options.setdefault("codec", "one_bit")
        return cls.build(params, selector=EfSign(), **options)

    @classmethod
    def terngrad(
        cls, params: Any, *, clip: float | None = 2.5, seed: int = 0, **options: Any
    ) -> Any:
        """Stochastic ternary gradients, without memory.  Paper: wen2017terngrad."""
        options.setdefault("memory", "none")
        options.setdefault("codec", "two_bit")
        return cls.build(params, selector=TernGrad(clip, seed=seed), **options)


METHODS = {
    "adacomp": "chen2018adacomp",
    "chunked": "sun2019csc",
    "dgc": "lin2018dgc",
    "ef_sign": "karimireddy2019error",
    "gaussian_k": "shi2019understanding",
    "gtopk": "shi2019gtopk",
    "ldte": "chen2021ldte",
    "ldte_bs": "chen2021ldte",
    "oktopk": "li2022oktopk",
    "radix_select": "alabi2012fast",
    "random_k": "stich2018sparsified",
    "redsync": "fang2019redsync",
    "scalecom": "chen2020scalecom",
    "sidco": "abdelmoniem2021sidco",
    "stc": "sattler2019stc",
    "strom": "strom2015scalable",
    "terngrad": "wen2017terngrad",
    "topk": "aji2017sparse",
}
"""Named methods and their papers."""
