"""``build``, with which every named method creates its compressor, and the common options."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable
from typing import Any, ClassVar, Generic, NoReturn, Protocol, TypeVar, cast

from hvd_sparse.checks import check_choice, check_whole
from hvd_sparse.configuration import Configuration
from hvd_sparse.density_rule import Density
from hvd_sparse.errors import InvalidOption
from hvd_sparse.optimizer_memory import Handover, Rates
from hvd_sparse.registry import EXCHANGES, SELECTORS
from hvd_sparse.schedules.learning_rate import LearningRate
from hvd_sparse.types import Optimizer

logger = logging.getLogger("hvd_sparse")


class HandedOver(Protocol):
    """The part of a frontend's compressor that ``Builder.build`` uses with an optimizer."""

    is_forewarned: bool

    def take_over(self, optimizer: Optimizer) -> None:
        """Apply the optimizer's momentum or moments before the selection."""

    def follow(self, rates: Rates) -> None:
        """Let densities follow the optimizer's learning rate."""


Compressor = TypeVar("Compressor", bound=HandedOver)
"""The frontend's compressor, which Horovod accepts as ``compression``."""
Function = TypeVar("Function", bound=Callable[..., object])


LEAST_DENSITY, MOST_DENSITY = 0.002, 0.01
TIMES_SENT = 5
"""How often an entry is to be sent in a run, where that lies between these densities."""
MOST_LOOKS = 1_000
"""Steps of a schedule that are looked at for its mean."""
CODEC_OF_RUNS = "sign_mean"
"""Default codec with ``steps=``: at equal bytes, more entries are worth more than exact values."""


def of_paper(key: str) -> Callable[[Function], Function]:
    """Return a decorator that adds the citation key of its paper to a named method, and lets
    methods with a density accept ``steps`` in its place."""

    def mark(method: Function) -> Function:
        marked = method
        if "density" in inspect.signature(method).parameters:

            @functools.wraps(method)
            def with_density(*args: Any, **options: Any) -> object:
                if options.get("steps") is not None and options.get("density") is None:
                    options["density"] = density_for(options["steps"])
                return method(*args, **options)

            marked = cast(Function, with_density)
        marked.paper = key  # type: ignore[attr-defined]
        return marked

    return mark


def density_for(steps: int) -> float:
    """Return the default density of a run: max(0.002, 5 / steps), at most 0.01.

    Examples
    --------
    >>> [density_for(steps) for steps in (100, 1_000, 100_000)]
    [0.01, 0.005, 0.002]
    """
    check_whole(steps, "steps", 1)
    return min(MOST_DENSITY, max(LEAST_DENSITY, TIMES_SENT / steps))


def too_few(density: float, steps: int) -> str:
    """Return why the mean density of a run is low, and the one that would do; "" if it is not."""
    wanted = min(MOST_DENSITY, TIMES_SENT / steps)
    if density >= wanted * (1 - 1e-6):  # but for rounding
        return ""
    times = wanted * steps
    return (
        f"density {density:g} sends an entry about {density * steps:.2g} times in a run of {steps} "
        f"steps, and about {times:.2g} times are wanted: {wanted:.2g} would do "
        "(docs/guide/accuracy.md)"
    )


def _mean_density(configuration: Configuration, steps: int) -> float | None:
    """Return the mean density of a run; None if it is not known in advance."""
    if configuration.rule is not None:
        return None
    at = range(0, steps, max(1, steps // MOST_LOOKS))
    known = [density for density in map(configuration.density, at) if density is not None]
    return sum(known) / len(known) if known else None


def is_as_published(variant: str, method: str) -> bool:
    """Return whether a method's variant is "paper"; InvalidOption unless that or "ours"."""
    check_choice(variant, f"variant of {method}", ("ours", "paper"))
    return variant == "paper"


def add_dense_warmup(options: dict[str, object], density: Density, steps: int) -> None:
    """Add a schedule with dense first steps to the options, if there are any such steps;
    InvalidOption if there is a schedule."""
    if not steps:
        return
    if options.get("schedule") is not None:
        raise InvalidOption(
            f"warmup_steps is {steps} and schedule is {options['schedule']!r}: both define the "
            "start of the training; leave out one of them, for example warmup_steps=0"
        )
    options["schedule"] = {"id": "dense_warmup", "value": density, "warmup_steps": steps}


class Builder(Generic[Compressor]):
    """Base class of all methods: makes compressors, named or freely combined.

    ``params`` are the frontend's: see its ``Compression``. Every method also takes the options of
    ``Configuration`` and those below.

    Parameters
    ----------
    density : fraction of the entries to send, in (0, 1]. Or one for each tensor: a mapping of names
        and globs, for example ``{"*": 0.001, "fc.*": 0.01}``, where exact names take precedence
        over globs and close globs over wide ones, or a function of name and shape. Or "hiding"
        (PyTorch): measured in the first steps, as much of each layer as the backward pass can hide,
        at least one entry in 1,000 ("hiding:300": in 300)
    codec : encoding of the entries, "index_value" by default; adacomp takes "ternary", ef_sign
        "one_bit", stc "sign_mean", strom "sign_index" and terngrad "two_bit", as in their papers
    optimizer : the torch or Keras SGD, Adam, AdamW, NAdam or Muon that is then given to Horovod. A
        memory does its work before the selection, on every rank, because it goes wrong on rare
        entries; the optimizer applies the result. The memory then takes momentum, betas, weight
        decay and the like from the tensor's parameter group at every step, and sends nothing and
        keeps all in a step at learning rate 0. Not for ``terngrad`` and ``signsgd``, which have no
        residual. None by default
    steps : number of steps in the run, with ``optimizer``. It replaces ``density`` by max(0.002, 5
        / steps), at most 0.01, as the mean of a density that follows the learning rate (schedule
        "learning_rate"), and the codec by "sign_mean", unless they are given
    scheduler : the PyTorch learning-rate scheduler that the density follows; a copy of it is
        stepped to find the mean. Keras schedules are found in the optimizer
    min_numel : tensors with fewer entries go dense; 1024 by default
    compress_1d : also compress tensors of one dimension (biases, norms), which otherwise go dense
    process_set : the one given to Horovod; ``hvd.global_process_set`` by default
    name : part of every collective's name; by default made from the tensors' names and shapes and
        the order of creation, so the same on all ranks. Two live compressors need different names
    engine : id of the kernels; the fastest installed one by default
    wire : "host", or "device" to send messages from the gradients' accelerator, which needs PyTorch
        and a Horovod built with NCCL; by default "auto", the device where possible
    rollback : undo a failed step completely, for a second buffer of the residual's size; without it
        the gradient of a failed step stays in the residual; True by default
    allow_dense : run a step dense, residual included, if that moves no more bytes; True by default
    groups : number of messages for the compressed tensors, or lists of the names that share one
        (PyTorch); by default small neighbours do. "planned" measures the first steps and the
        network, then uses the fastest groups. In TensorFlow, Horovod's groups are the messages
    select_over : "tensor", or "group" to select once from all tensors of a message, as ``mgs``
        does: the density holds for the group, and its tensors compete (exchange "allgather")
    max_gathered_bytes : bound of the bytes of all ranks' messages for a tensor; a density that
        needs more runs dense, and entries found beyond it stay in the residual; None, the default,
        sets no bound
    clip_grad_norm : bound of the norm of all gradients together, before the selection, like torch's
        ``clip_grad_norm_`` (PyTorch; under Horovod with ``optimizer``); None, the default, sets no
        bound
    check_replicas_every : steps between comparisons of the applied gradients' checksums; 0, the
        default, for never
    telemetry : writers of records: "tensorboard", "jsonl", "wandb", "mlflow", a mapping with such
        an "id" and options, or a function of a record; one or a list.  True measures residuals at
        every step for ``stats()`` only; False by default
    telemetry_every : steps from one record to the next; 100 by default
    on_nonfinite : "propagate", the default: NaN or Inf on any rank makes that tensor's gradient NaN
        on all ranks, and the step is undone; "raise": an error on all ranks with rank, tensor and
        count
    grad_scaler : the loss scaler: torch's ``GradScaler``, a Keras ``LossScaleOptimizer``, or a
        callable that returns the scale. Residuals are kept in unscaled units. None by default
    timeout_s : seconds after which an unfinished collective is an error, 600 by default; None waits
        forever

    Examples
    --------
    With PyTorch, where ``model`` and ``optimizer`` are the program's own::

        compression = Compression.ldte_bs(model.named_parameters(), density=0.001)
        optimizer = hvd.DistributedOptimizer(optimizer, compression=compression)
    """

    def __init_subclass__(cls, **options: object) -> None:
        """Give every method a ``compress`` that raises InvalidOption with the remedy, for programs
        that pass Horovod the method itself instead of its result."""
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
        """Raise InvalidOption, because Horovod was given this class instead of a compressor."""
        raise InvalidOption(
            "compression=Compression gives Horovod the class itself: call one of its methods, as "
            "in compression=Compression.ldte_bs(params, density=0.001), where params are the "
            "parameters that Horovod trains"
        )

    decompress = compress

    @classmethod
    def _create(
        cls, params: object, configuration: Configuration, process_set: object, grad_scaler: object
    ) -> Compressor:
        raise NotImplementedError

    @classmethod
    def _read_optimizer(cls, optimizer: object) -> Handover:
        """Return the memory that replaces the momentum or moments of the frontend's optimizer."""
        raise NotImplementedError

    @classmethod
    def _foresee(cls, optimizer: object, scheduler: object, steps: int | None) -> Rates:
        """Return the learning rates of a run, as far as they are known in advance."""
        raise NotImplementedError

    _plans_groups: ClassVar[bool] = False
    """Whether the frontend supports ``groups="planned"``."""

    @classmethod
    def build(
        cls,
        params: object,
        *,
        selector: object,
        process_set: object = None,
        grad_scaler: object = None,
        optimizer: object = None,
        steps: Any = None,
        scheduler: object = None,
        **options: object,
    ) -> Compressor:
        """Create a compressor from any compatible parts.

        Parameters
        ----------
        params : the tensors to compress
        selector : the selector, as an id, a mapping ``{"id": ..., option: value}`` or an object
        process_set, grad_scaler, optimizer, steps, scheduler : see ``Builder``
        options : ``memory``, ``codec``, ``exchange`` and ``schedule``, in the same forms as the
            selector, and the common options above

        Raises
        ------
        UnknownName : an id is unknown
        InvalidOption : an option is unknown or invalid, or the parts are incompatible
        """
        return cls._build(
            lambda configuration: cls._create(params, configuration, process_set, grad_scaler),
            selector,
            options,
            optimizer,
            steps,
            scheduler,
        )

    @classmethod
    def _build(
        cls,
        create: Callable[[Configuration], Compressor],
        selector: object,
        options: dict[str, object],
        optimizer: object,
        steps: Any,
        scheduler: object,
    ) -> Compressor:
        handover = None if optimizer is None else cls._read_optimizer(optimizer)
        if handover is not None:
            options["memory"] = handover.join(options.get("memory"))
        if steps is not None:
            _take_steps(steps, options, optimizer, selector)
        configuration = Configuration.create(selector=selector, **options)
        rates = cls._rates_of(configuration, handover, optimizer, steps, scheduler)
        compressor = create(configuration)
        if handover is not None:
            compressor.is_forewarned = True
            if handover.memories:
                compressor.take_over(optimizer)
            if rates is not None:
                compressor.follow(rates)
        return compressor

    @classmethod
    def _rates_of(
        cls,
        configuration: Configuration,
        handover: Handover | None,
        optimizer: object,
        steps: Any,
        scheduler: object,
    ) -> Rates | None:
        """Return the rates that densities follow, or None; and warn if they are low for the run."""
        mean = None if steps is None else _mean_density(configuration, steps)
        low = "" if mean is None else too_few(mean, steps)
        if low:
            logger.warning("%s", low)
        schedule = configuration.schedule
        if isinstance(schedule, LearningRate):
            if handover is None or not handover.memories:
                raise InvalidOption(
                    "schedule is 'learning_rate', and no optimizer is handed over whose rate it "
                    "could follow: give optimizer=, of SGD, Adam, AdamW, NAdam or Muon, or another "
                    "schedule"
                )
            rates = cls._foresee(optimizer, scheduler, schedule.steps)
            # A scheduler that is not stepped once per step has other rates at the steps.
            rates.is_checked = steps == schedule.steps
            return rates
        if scheduler is not None:
            raise InvalidOption(
                f"scheduler is {type(scheduler).__name__}, and the density does not follow the "
                "learning rate: leave it out, or give steps= and no schedule"
            )
        return None

    @classmethod
    def from_config(
        cls,
        params: object,
        config: dict[str, object],
        *,
        process_set: object = None,
        grad_scaler: object = None,
        optimizer: object = None,
        scheduler: object = None,
    ) -> Compressor:
        """Create a compressor from the ``config()`` of another one.

        Parameters
        ----------
        params : the tensors to compress
        config : the other compressor's ``config()``
        process_set, grad_scaler : see ``Builder``
        optimizer, scheduler : if the other compressor was created with them
        """
        return cls.build(
            params,
            process_set=process_set,
            grad_scaler=grad_scaler,
            optimizer=optimizer,
            scheduler=scheduler,
            **config,
        )


def _take_steps(
    steps: int, options: dict[str, object], optimizer: object, selector: object
) -> None:
    """Add the schedule and the codec that are the defaults with ``steps=`` to the options."""
    check_whole(steps, "steps", 1)
    if optimizer is None:
        raise InvalidOption(
            f"steps is {steps} but optimizer is missing, and the density follows its learning "
            "rate: give optimizer=, or density= and no steps"
        )
    if not hasattr(SELECTORS.resolve(selector), "density"):
        raise InvalidOption(
            f"steps is {steps}, but this selector has no density that steps could set: leave steps "
            "out"
        )
    if options.get("schedule") is None:
        options["schedule"] = {"id": "learning_rate", "steps": steps}
    exchange = EXCHANGES.resolve(options.get("exchange", "allgather"))
    if not exchange.shares_indices:  # it has no codec
        options.setdefault("codec", CODEC_OF_RUNS)


def _refusal(name: str) -> Callable[..., NoReturn]:
    """Return a ``compress`` that raises InvalidOption and names the call to make instead."""

    def compress(*_: object) -> NoReturn:
        raise InvalidOption(
            f"compression=Compression.{name} gives Horovod the method itself: call it, as in "
            f"compression=Compression.{name}(params, ...), where params are the parameters that "
            "Horovod trains"
        )

    return compress
