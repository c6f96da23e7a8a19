"""Named methods: each paper as a choice of five parts, with the authors' defaults.

Both frontends' ``Compression`` inherit these, so that an option means the same in both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NoReturn, Protocol, TypeVar

from hvd_sparse.configuration import Configuration
from hvd_sparse.errors import InvalidOption
from hvd_sparse.exchanges.gtopk import GTopK
from hvd_sparse.exchanges.oktopk import OkTopK
from hvd_sparse.memories.adam_correction import AdamCorrection
from hvd_sparse.memories.error_feedback import ErrorFeedback
from hvd_sparse.memories.low_pass import LowPass
from hvd_sparse.memories.momentum_correction import MomentumCorrection
from hvd_sparse.optimizer_memory import Handover
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
from hvd_sparse.untyped import Optimizer


class HandedOver(Protocol):
    """The part of a frontend's compressor that ``Methods.build`` asks for an optimizer's sake."""

    is_forewarned: bool

    def take_over(self, optimizer: Optimizer) -> None:
        """Do an optimizer's work from now on."""


Compressor = TypeVar("Compressor", bound=HandedOver)
"""The frontend's compressor: an object that Horovod takes as ``compression``."""


class Methods(Generic[Compressor]):
    """Base of the frontends' ``Compression``: one method a paper, and two to compose freely.

    ``params`` are the frontend's: see its ``Compression``. Every method also takes the options of
    ``Configuration`` and those below.

    Parameters
    ----------
    codec : encoding of the entries, "index_value" by default; adacomp takes "ternary", ef_sign
        "one_bit", stc "sign_mean", strom "sign_index" and terngrad "two_bit", as in their papers
    optimizer : the one that is then given to Horovod: a memory does the work of a torch or Keras
        SGD, Adam or AdamW before the selection, on every rank for itself, where it sees gradients
        and not rare entries; the optimizer applies what arrives. Not for ``terngrad``, which keeps
        nothing back; None by default
    min_numel : tensors with fewer entries go dense; 1024 by default
    compress_1d : also compress tensors of one dimension (biases, norms), which else go dense
    process_set : the one given to Horovod; ``hvd.global_process_set`` by default
    name : part of every collective's name; by default made from the tensors' names and shapes, and
        from the order in which compressors are made, the same on all ranks. Two live compressors
        must not be given the same
    engine : id of the kernels; the best that is installed by default
    rollback : a failed step leaves no trace, for a second buffer of the residual's size; without it
        the gradient of a failed step stays in the residual; True by default
    allow_dense : where dense moves no more bytes, the step runs dense, residual included; True by
        default
    groups : how many messages the compressed tensors travel in, or lists of the names of those that
        travel together (PyTorch); by default small neighbours do; "planned" measures the first
        steps and the network, and takes the quickest groups from then on. In TensorFlow, groups
        given to Horovod are messages
    select_over : "tensor", or "group" to select once from all tensors that travel together, as
        MGS-SGD does: the density holds for the group, and its tensors compete (exchange
        "allgather"; in TensorFlow a group of Horovod's)
    max_gathered_bytes : bytes that all ranks' messages about a tensor may come to on every rank;
        where the density asks for more it runs dense, and further entries that a method finds stay
        in the residual; None, the default, sets no bound
    check_replicas_every : after how many steps ranks compare checksums of the applied gradients; 0,
        the default, for never
    telemetry : send the norm of the residual along (one more pass); False by default
    on_nonfinite : "propagate", the default: NaN or Inf on any rank makes that tensor's gradient NaN
        on all ranks, and the step leaves no trace; "raise" makes it an error on all ranks, with
        rank, tensor and count
    grad_scaler : the scaler of the loss: torch's ``GradScaler``, a Keras ``LossScaleOptimizer``, or
        a callable that returns the scale; residuals are kept in unscaled units; None by default
    timeout_s : seconds after which a collective that did not finish is an error, 600 by default;
        None waits for ever

    Examples
    --------
    With PyTorch, where ``model`` and ``optimizer`` are the program's own::

        compression = Compression.ldte_bs(model.named_parameters(), density=0.001)
        optimizer = hvd.DistributedOptimizer(optimizer, compression=compression)
    """

    def __init_subclass__(cls, **options: object) -> None:
        """Let every method that is given to Horovod without a call answer with the remedy."""
        super().__init_subclass__(**options)
        for base in cls.__mro__:
            for name, member in vars(base).items():
                if (
                    isinstance(member, classmethod)
                    and name not in ("compress", "decompress")
                    and name[0] != "_"
                ):
                    member.__func__.compress = _refusal(name)  # type: ignore[attr-defined]

    @classmethod
    def compress(cls, *_: object) -> NoReturn:
        """Raise InvalidOption: Horovod was given this class, and not what one of its methods
        returns."""
        raise InvalidOption(
            "compression=Compression gives Horovod the class itself: call one of its methods, as "
            "in compression=Compression.ldte_bs(params, density=0.001), where params are those "
            "that Horovod trains"
        )

    decompress = compress

    @classmethod
    def _create(
        cls, params: object, configuration: Configuration, process_set: object, grad_scaler: object
    ) -> Compressor:
        """Return the frontend's compressor for a configuration."""
        raise NotImplementedError

    @classmethod
    def _read_optimizer(cls, optimizer: object) -> Handover:
        """Return what a memory has to do in the place of the frontend's optimizer."""
        raise NotImplementedError

    @classmethod
    def build(
        cls,
        params: object,
        *,
        selector: object,
        process_set: object = None,
        grad_scaler: object = None,
        optimizer: object = None,
        **options: object,
    ) -> Compressor:
        """Return a compressor of freely composed parts.

        Parameters
        ----------
        params : the tensors to compress
        selector : a part, as an id, a mapping ``{"id": ..., option: value}`` or an object
        process_set : the one given to Horovod
        grad_scaler : the scaler of the loss
        optimizer : the one that is then given to Horovod, if a memory is to do its work
        options : ``memory``, ``codec``, ``exchange`` and ``schedule``, given like the selector, and
            the common options, above

        Raises
        ------
        UnknownName : no part has that id
        InvalidOption : an option is unknown or wrong, or the parts cannot be joined
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
        params: object,
        config: dict[str, object],
        *,
        process_set: object = None,
        grad_scaler: object = None,
        optimizer: object = None,
    ) -> Compressor:
        """Return a compressor like the one whose ``config()`` is given.

        Parameters
        ----------
        params : the tensors to compress
        config : of the other compressor
        process_set : the one given to Horovod
        grad_scaler : the scaler of the loss
        optimizer : the one whose work the memory does, if the other compressor was made with one
        """
        return cls.build(
            params, process_set=process_set, grad_scaler=grad_scaler, optimizer=optimizer, **config
        )

    @classmethod
    def ldte_bs(
        cls,
        params: object,
        *,
        density: float,
        search: str = "log_count",
        tolerance: tuple[float, float] = (0.8, 1.3),
        max_passes: int = 16,
        warm_start: bool = True,
        **options: object,
    ) -> Compressor:
        """LDTE-BS: a Laplace threshold estimate, corrected by binary search.  Paper: chen2021ldte.

        In a steady state the search starts from the tensor's last threshold, so that the fit speaks
        at cold starts and misses alone. ``search="bisection", warm_start=False`` is the nearest to
        the paper, which fits at every step.

        Parameters
        ----------
        density : part of the entries sent, in (0, 1]
        search, tolerance, max_passes, warm_start : as in ``selectors.ldte_bs.LdteBs``
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
    def ldte(
        cls, params: object, *, density: float, cap: float = 8.0, **options: object
    ) -> Compressor:
        """LDTE: the Laplace threshold estimate alone.  Paper: chen2021ldte.

        Parameters
        ----------
        density : part of the entries asked for, in (0, 1]; the estimate decides the count sent
        cap : bounds the count sent at cap * k
        """
        return cls.build(params, selector=Ldte(density, cap=cap), **options)

    @classmethod
    def topk(cls, params: object, *, density: float, **options: object) -> Compressor:
        """Exact top-k of every tensor, with error feedback: the yardstick.  Paper: aji2017sparse.

        Parameters
        ----------
        density : part of the entries sent, in (0, 1]
        """
        return cls.build(params, selector=TopK(density), **options)

    @classmethod
    def radix_select(cls, params: object, *, density: float, **options: object) -> Compressor:
        """Exact top-k by the digits of bit patterns, with error feedback.  Paper: alabi2012fast.

        Parameters
        ----------
        density : part of the entries sent, in (0, 1]
        """
        return cls.build(params, selector=RadixSelect(density), **options)

    @classmethod
    def dgc(
        cls,
        params: object,
        *,
        density: float,
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

        The entries travel as in the authors' later code, as indices and values; ``codec="run16"``
        is the paper's wire. ``schedule`` takes the warm-up.

        Parameters
        ----------
        density : part of the entries sent, in (0, 1]
        optimizer : as for every method; without it ``momentum``, ``nesterov`` and ``weight_decay``
            hold, and the optimizer must have none of its own
        momentum, nesterov, masking, weight_decay, clip_norm : as in ``MomentumCorrection``
        sample_density : as in ``DgcSampled``
        """
        memory: object = MomentumCorrection(momentum, nesterov, masking, weight_decay, clip_norm)
        if optimizer is not None and isinstance(
            cls._read_optimizer(optimizer).memory, AdamCorrection
        ):
            memory = AdamCorrection(clip_norm=clip_norm)
        selector = DgcSampled(density, sample_density=sample_density)
        return cls.build(params, selector=selector, memory=memory, optimizer=optimizer, **options)

    @classmethod
    def redsync(
        cls, params: object, *, density: float, search: bool = False, **options: object
    ) -> Compressor:
        """RedSync: trimmed top-k, or its threshold search with reuse.  Paper: fang2019redsync.

        Left out: the alternation of signs with quantized values. The paper's momentum correction is
        ``optimizer=``, or ``memory="momentum_correction"``.

        Parameters
        ----------
        density : part of the entries sent, in (0, 1]
        search : use the threshold search
        """
        selector = RedsyncSearch(density) if search else RedsyncTrimmed(density)
        return cls.build(params, selector=selector, **options)

    @classmethod
    def gaussian_k(
        cls, params: object, *, density: float, variant: str = "paper", **options: object
    ) -> Compressor:
        """Threshold from a fitted normal distribution.  Paper: shi2019understanding.

        With error feedback. Both tails share the density; the paper's Algorithm 1 takes the
        one-sided quantile.

        Parameters
        ----------
        density : part of the entries asked for, in (0, 1]
        variant : "paper" or "improved", as in ``GaussianK``
        """
        return cls.build(params, selector=GaussianK(density, variant=variant), **options)

    @classmethod
    def adacomp(
        cls, params: object, *, bin_length: int | None = None, **options: object
    ) -> Compressor:
        """AdaComp: the entries that could become their bin's largest, as signs.  Paper:
        chen2018adacomp.

        Parameters
        ----------
        bin_length : entries a bin; None takes the paper's for the kind of layer
        """
        options.setdefault("codec", "ternary")
        return cls.build(params, selector=AdaComp(bin_length), **options)

    @classmethod
    def sidco(
        cls,
        params: object,
        *,
        density: float,
        distribution: str = "exponential",
        stages: int = 1,
        **options: object,
    ) -> Compressor:
        """SIDCo: a threshold from fits of the tail, in stages.  Paper: abdelmoniem2021sidco.

        Parameters
        ----------
        density : part of the entries asked for, in (0, 1]
        distribution, stages : as in ``Sidco``
        """
        return cls.build(
            params, selector=Sidco(density, distribution=distribution, stages=stages), **options
        )

    @classmethod
    def scalecom(
        cls,
        params: object,
        *,
        density: float,
        beta: float = 1.0,
        chunk_wise: bool = False,
        **options: object,
    ) -> Compressor:
        """ScaleCom: a leader's top k, in turns, and all ranks' values there.  Paper:
        chen2020scalecom.

        Left out: the paper's first epochs run dense, which is ``schedule={"id": "dense_warmup",
        ...}``.

        Parameters
        ----------
        density : part of the entries sent, in (0, 1]
        beta : of the low-pass filtered residual, in (0, 1]; 1 is error feedback, the authors take
            0.1 for large batches
        chunk_wise : the leader takes the largest entry of every 1 / density entries, in one pass,
            instead of the top k
        """
        selector = ChunkMax(density) if chunk_wise else TopK(density)
        memory = ErrorFeedback() if beta == 1 else LowPass(beta)
        options.setdefault("exchange", "shared_index")
        return cls.build(params, selector=selector, memory=memory, **options)

    @classmethod
    def gtopk(
        cls, params: object, *, density: float, conserving: bool = True, **options: object
    ) -> Compressor:
        """gTop-k: a tree of merges, each cut to k.  Paper: shi2019gtopk.

        Parameters
        ----------
        density : part of the entries applied, in (0, 1]
        conserving : lose nothing, where the paper's rule loses entries that are cut on the way at
            indices that are applied
        """
        return cls.build(params, selector=TopK(density), exchange=GTopK(conserving), **options)

    @classmethod
    def oktopk(
        cls, params: object, *, density: float, period: int = 32, **options: object
    ) -> Compressor:
        """Ok-Topk: sums by regions, of which the k largest are applied.  Paper: li2022oktopk.

        Left out: the paper's first steps run dense, which is ``schedule={"id": "dense_warmup",
        ...}``.

        Parameters
        ----------
        density : part of the entries applied, in (0, 1]
        period : steps between exact evaluations of the local and the global threshold
        """
        selector = ReusedThreshold(density, period=period)
        return cls.build(params, selector=selector, exchange=OkTopK(period=period), **options)

    @classmethod
    def chunked(
        cls, params: object, *, density: float, chunk_length: int = 512, **options: object
    ) -> Compressor:
        """Whole chunks, the same on all ranks, by norms summed over the ranks.  Paper: sun2019csc.

        Parameters
        ----------
        density : part of the chunks sent, in (0, 1]
        chunk_length : entries a chunk
        """
        options.setdefault("exchange", "shared_index")
        return cls.build(params, selector=Chunked(density, chunk_length), **options)

    @classmethod
    def random_k(
        cls,
        params: object,
        *,
        density: float,
        shared_seed: bool = False,
        seed: int = 0,
        **options: object,
    ) -> Compressor:
        """Entries at random positions, with error feedback.  Paper: stich2018sparsified.

        Parameters
        ----------
        density : part of the entries sent, in (0, 1]
        shared_seed : the same positions on all ranks, so that values alone travel, in a sum
        seed : of the draws
        """
        if shared_seed:
            options.setdefault("exchange", "shared_index")
        return cls.build(
            params, selector=RandomK(density, shared_seed=shared_seed, seed=seed), **options
        )

    @classmethod
    def strom(
        cls, params: object, *, threshold: float, max_density: float = 0.1, **options: object
    ) -> Compressor:
        """Signs of the entries above a fixed threshold; the remainder stays.  Paper:
        strom2015scalable.

        Parameters
        ----------
        threshold : in units of the accumulated gradient
        max_density : part of a tensor that is sent at most
        """
        options.setdefault("codec", "sign_index")
        selector = FixedThreshold(threshold, max_density=max_density, signs_only=True)
        return cls.build(params, selector=selector, **options)

    @classmethod
    def stc(cls, params: object, *, density: float, **options: object) -> Compressor:
        """Sparse ternary compression: signs of the top k, and their mean.  Paper: sattler2019stc.

        Parameters
        ----------
        density : part of the entries sent, in (0, 1]
        """
        options.setdefault("codec", "sign_mean")
        return cls.build(params, selector=Stc(density), **options)

    @classmethod
    def ef_sign(cls, params: object, **options: object) -> Compressor:
        """All signs and one magnitude, with error feedback.  Paper: karimireddy2019error."""
        options.setdefault("codec", "one_bit")
        return cls.build(params, selector=EfSign(), **options)

    @classmethod
    def terngrad(
        cls, params: object, *, clip: float | None = 2.5, seed: int = 0, **options: object
    ) -> Compressor:
        """Stochastic ternary gradients, without memory.  Paper: wen2017terngrad.

        Parameters
        ----------
        clip : in standard deviations; None does not clip
        seed : of the draws
        """
        options.setdefault("memory", "none")
        options.setdefault("codec", "two_bit")
        return cls.build(params, selector=TernGrad(clip, seed=seed), **options)


def _refusal(name: str) -> Callable[..., NoReturn]:
    """Return the ``compress`` of a method that was given to Horovod uncalled: it raises the
    remedy."""

    def compress(*_: object) -> NoReturn:
        raise InvalidOption(
            f"compression=Compression.{name} gives Horovod the method itself: call it, as in "
            f"compression=Compression.{name}(params, ...), where params are those that Horovod "
            "trains"
        )

    return compress


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
