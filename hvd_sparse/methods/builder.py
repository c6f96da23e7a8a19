"""``Builder``, the base class of the methods: creates compressors, and lists the common options."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn, TypeVar, cast

from hvd_sparse.checks import check_choice, check_whole
from hvd_sparse.configuration import Configuration
from hvd_sparse.density_rule import Density
from hvd_sparse.errors import InvalidOption
from hvd_sparse.optimizer_memory import Handover, Rates
from hvd_sparse.registry import EXCHANGES, SELECTORS
from hvd_sparse.schedules.learning_rate import LearningRate
from hvd_sparse.types import Value

logger = logging.getLogger("hvd_sparse")


Function = TypeVar("Function", bound=Callable[..., object])


LEAST_DENSITY, MOST_DENSITY = 0.002, 0.01
TIMES_SENT = 5
"""Number of times that a run sends each entry, on average, at its default density, unless
``LEAST_DENSITY`` or ``MOST_DENSITY`` bounds this density."""
MOST_LOOKS = 1_000
"""Approximate number of steps at which a schedule's density is evaluated to compute its mean."""
CODEC_OF_RUNS = "sign_mean"
"""Default codec with ``steps=``. At the same number of bytes, sending more entries improves
accuracy more than sending exact values."""


def of_paper(key: str, *defines: str) -> Callable[[Function], Function]:
    """Return a decorator that adds a paper's citation key to a named method. ``defines`` has the
    options besides ``selector`` that the method itself sets, so that it raises InvalidOption if the
    program gives them. A method with an option ``density`` also accepts ``steps`` instead."""

    def mark(method: Function) -> Function:
        density = inspect.signature(method).parameters.get("density")

        @functools.wraps(method)
        def marked(*args: Any, **options: Any) -> object:
            for name in {"selector", *defines} & options.keys():
                raise InvalidOption(
                    f"{name} is {options[name]!r}, but {method.__name__} defines the {name}: leave "
                    "it out, or combine parts by Compression.build"
                )
            if density is not None:
                if options.get("steps") is not None and options.get("density") is None:
                    options["density"] = density_for(options["steps"])
                if density.default is inspect.Parameter.empty and "density" not in options:
                    given = f" (the options are {', '.join(options)})" if options else ""
                    raise InvalidOption(
                        f"{method.__name__} has no density{given}: give density=, for example "
                        "0.005, or optimizer= and steps=, the number of steps of the run"
                    )
            return method(*args, **options)

        marked.paper = key  # type: ignore[attr-defined]
        return cast(Function, marked)

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
    """Return a warning with a sufficient density if a run's mean density is too low; else ""."""
    wanted = min(MOST_DENSITY, TIMES_SENT / steps)
    if density >= wanted * (1 - 1e-6):  # with a tolerance for rounding
        return ""
    times = wanted * steps
    return (
        f"density {density:g} sends each entry about {density * steps:.2g} times in a run of "
        f"{steps} steps, but about {times:.2g} times are needed: use density {wanted:.2g} or more "
        "(docs/guide/accuracy.md)"
    )


def _mean_density(configuration: Configuration, steps: int) -> float | None:
    """Return the mean density of a run, or None if it is not known before the run."""
    if configuration.rule is not None:
        return None
    at = range(0, steps, max(1, steps // MOST_LOOKS))
    known = [density for density in map(configuration.density, at) if density is not None]
    return sum(known) / len(known) if known else None


def is_as_published(variant: str, method: str) -> bool:
    check_choice(variant, f"variant of {method}", ("ours", "paper"))
    return variant == "paper"


def add_dense_warmup(options: dict[str, object], density: Density, steps: int) -> None:
    """Add to the options a schedule with dense first steps. ``steps`` is their number; if it is 0,
    add nothing. Raises InvalidOption if the options already have a schedule."""
    if not steps:
        return
    if options.get("schedule") is not None:
        raise InvalidOption(
            f"warmup_steps is {steps} and schedule is {options['schedule']!r}: both define the "
            "start of the training; leave out one of them, for example warmup_steps=0"
        )
    options["schedule"] = {"id": "dense_warmup", "value": density, "warmup_steps": steps}


class Builder:
    """Base class of each frontend's ``Compression``: creates compressors, by a named method or from
    any selector, memory, codec, exchange and schedule.

    The frontend's ``Compression`` describes ``params``. Every method also takes the options of
    ``Configuration`` and the options below, except parts that define the method: ``memory`` of dgc,
    ``exchange`` of gtopk and oktopk, ``select_over`` of mgs.

    Parameters
    ----------
    density : fraction of the entries to send, in (0, 1]. To give each tensor its own density, pass
        a function of name and shape, or a mapping of names and globs, for example
        ``{"*": 0.001, "fc.*": 0.01}``, in which exact names take precedence over globs, and narrow
        globs over wide ones. "hiding" (PyTorch) measures the first steps, and then sends as many
        entries of each layer as can be sent before the next layer's message is ready, but at least
        one entry in 1,000 ("hiding:300": one in 300)
    codec : encoding of the entries, "index_value" by default. These methods have other defaults, as
        in their papers: adacomp "ternary", ef_sign and signsgd "one_bit", sbc "one_sign", stc
        "sign_mean", strom and ``redsync(variant="paper")`` "sign_index", and terngrad "two_bit"
    optimizer : the torch or Keras SGD, Adam, AdamW, NAdam or Muon that the program then passes to
        Horovod. The memory applies the optimizer's momentum or moments on every rank before the
        selection. If they were applied after the exchange, they would be wrong for entries that
        arrive rarely. The optimizer itself only applies the result. In every step the memory takes
        momentum, betas, weight decay and similar settings from the tensor's parameter group. In a
        step at learning rate 0, the memory sends nothing, keeps the residual and drops the
        gradient. ``terngrad`` and ``signsgd`` do not accept this option, because they have
        no residual. None by default
    steps : number of steps in the run; requires ``optimizer``. Unless ``schedule`` is given, the
        density then follows the learning rate (schedule "learning_rate"). The mean density is
        ``density`` or, if ``density`` is not given, max(0.002, 5 / steps), at most 0.01. The
        default of ``codec`` is then "sign_mean", except for methods with another default, and with
        the exchange "shared_index" (chunked, scalecom), which uses no codec
    scheduler : the PyTorch learning-rate scheduler that the density follows. A copy of it is
        stepped through the run to compute the mean rate; objects whose methods it calls are copied
        shallowly. Keras schedules are found in the optimizer
    min_numel : tensors with fewer entries are sent dense; 1024 by default
    compress_1d : also compress tensors of one dimension (biases, norms), which are sent dense by
        default
    process_set : the process set that is passed to Horovod; ``hvd.global_process_set`` by default
    name : part of every collective's name. By default it is made from the tensors' names and shapes
        and the order in which compressors are created, so that it is the same on all ranks. Two
        compressors that exist at the same time need different names
    engine : id of the kernels; the fastest installed engine by default
    wire : "host"; or "device" to send messages from the gradients' accelerator, which needs PyTorch
        and a Horovod that was built with NCCL. The default, "auto", is "device" if that is possible
    rollback : undo a failed step completely, which needs a second buffer of the residual's size.
        Without it, the gradient of a failed step stays in the residual; exchange "hierarchical" and
        ``LocalSteps`` need it. True by default
    allow_dense : run a tensor's step dense, and send the residual with it, if this moves no more
        bytes than a sparse step; True by default
    groups : number of messages for the compressed tensors, or lists of the names of tensors that
        share a message (PyTorch). By default, small neighbouring tensors share a message. "planned"
        measures the first steps and the network, then uses the fastest groups. In TensorFlow, the
        tensors in each of Horovod's groups share a message
    select_over : "tensor"; or "group" to select once from all tensors of a message, as ``mgs`` does
        (only with exchange "allgather"). The density is then that of the group: the group's largest
        entries are sent, whichever tensor they belong to
    max_gathered_bytes : upper bound of the bytes of all ranks' messages for a tensor. If a step's
        density needs more bytes than this, the step runs dense. If only a selection needs more, its
        smallest entries stay in the residual, so the memory must have one. If even one entry needs
        more, as with codec "bitmap", and the step cannot run dense, all ranks raise an error. None,
        the default, sets no bound
    clip_grad_norm : upper bound of the norm of all gradients together. Gradients are clipped as by
        torch's ``clip_grad_norm_``, but before the selection (PyTorch; under Horovod only with
        ``optimizer``). None, the default, sets no bound
    check_replicas_every : interval, in steps, at which the ranks compare checksums of their results
        for compressed tensors; 0, the default, turns the comparison off
    telemetry : where to write records: "tensorboard", "jsonl", "wandb", "mlflow", a mapping with
        one of these as "id" and the writer's options, a function that is called with each record,
        or a list of these. True writes no records, but measures residuals at every step for
        ``stats()``; False by default
    telemetry_every : number of steps from one record to the next; 100 by default
    on_nonfinite : "propagate", the default: if a gradient has NaN or Inf on any rank, its result is
        NaN on all ranks, and the compressor undoes the step. "raise": all ranks raise an error that
        names the tensor and, if it is compressed, rank and number of entries. An overflow of the
        residual raises PeerFailure in both cases
    grad_scaler : the loss scaler: torch's ``GradScaler``, a Keras ``LossScaleOptimizer``, or a
        callable that returns the scale. Residuals are stored without the scale. None by default
    timeout_s : seconds that a rank waits for other ranks before its watchdog ends the process with
        an error (twice as many if a rank does not answer); 600 by default. None sets no limit

    Examples
    --------
    With PyTorch, where ``model`` and ``optimizer`` are the program's own::

        compression = Compression.ldte_bs(model.named_parameters(), density=0.001)
        optimizer = hvd.DistributedOptimizer(optimizer, compression=compression)
    """

    def __init_subclass__(cls, **options: object) -> None:
        """Give every method an attribute ``compress``, which Horovod calls if a program passes the
        method itself. It raises InvalidOption; the message shows the call to write."""
        super().__init_subclass__(**options)
        for base in cls.__mro__:
            for name, member in vars(base).items():
                if (
                    isinstance(member, classmethod)
                    and name not in ("compress", "decompress")
                    and name[0] != "_"
                ):
                    refuse = functools.partial(_refuse, name)
                    member.__func__.compress = refuse  # type: ignore[attr-defined]

    @classmethod
    def compress(cls, *_: object) -> NoReturn:
        """Raise InvalidOption: a program has passed the class to Horovod, not a compressor."""
        raise InvalidOption(
            "compression=Compression gives Horovod the class itself: call one of its methods, as "
            "in compression=Compression.ldte_bs(params, density=0.001), where params are the "
            "parameters that Horovod trains"
        )

    decompress = compress

    _create: ClassVar[Callable[..., Value]]
    """Makes the frontend's compressor, from ``params``, the configuration, ``process_set``,
    ``grad_scaler`` and, for ``auto``, the policy."""
    _read_optimizer: ClassVar[Callable[..., Handover]]
    """Returns a ``Handover``: the memories that can apply the optimizer's momentum or moments."""
    _foresee: ClassVar[Callable[..., Rates]]
    """Returns the learning rates of the run, as far as they can be known in advance, from the
    optimizer, the scheduler and the number of steps."""
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
        _policy: Any = None,
        **options: object,
    ) -> Value:
        """Create a compressor from any compatible parts.

        Parameters
        ----------
        params : the tensors to compress
        selector : the selector: an id, a mapping ``{"id": ..., option: value}`` or an object
        process_set, grad_scaler, optimizer, steps, scheduler : see ``Builder``
        options : ``memory``, ``codec``, ``exchange`` and ``schedule``, in the same forms as the
            selector, and the options of ``Builder``, except ``density``, which the selector takes

        Raises
        ------
        UnknownName : an id is unknown
        InvalidOption : an option is unknown or invalid, or the parts are incompatible
        """
        handover = None if optimizer is None else cls._read_optimizer(optimizer)
        if handover is not None:
            options["memory"] = handover.join(options.get("memory"))
        if steps is not None:
            _take_steps(steps, options, optimizer, selector)
        configuration = Configuration.create(selector=selector, **options)
        if handover is None or not handover.memories:
            cls._check_alone(configuration)
        rates = cls._rates_of(configuration, handover, optimizer, steps, scheduler)
        policies = () if _policy is None else (_policy(configuration),)
        compressor = cls._create(params, configuration, process_set, grad_scaler, *policies)
        if handover is not None:
            compressor.is_forewarned = True
            if handover.memories:
                compressor.take_over(optimizer)
                compressor.optimizer_name = handover.name
            if rates is not None:
                compressor.follow(rates)
        compressor.log_footprint()
        return compressor

    @classmethod
    def _check_alone(cls, configuration: Configuration) -> None:
        """Raise InvalidOption if the memory must compute an optimizer's updates. Called if no
        optimizer is given, or one whose updates no memory can compute."""
        memory = configuration.memory
        if memory.needs_optimizer:
            raise InvalidOption(
                f"memory {memory.id} {memory.needs_optimizer}, and optimizer is missing: give the "
                "optimizer, by optimizer="
            )

    @classmethod
    def _rates_of(
        cls,
        configuration: Configuration,
        handover: Handover | None,
        optimizer: object,
        steps: Any,
        scheduler: object,
    ) -> Rates | None:
        """Return the learning rates that the densities follow, or None if they follow no learning
        rate. Also log a warning if the run's mean density is too low."""
        mean = None if steps is None else _mean_density(configuration, steps)
        low = "" if mean is None else too_few(mean, steps)
        if low:
            logger.warning("%s", low)
        schedule = configuration.schedule
        if isinstance(schedule, LearningRate):
            if handover is None or not handover.memories:
                raise InvalidOption(
                    "schedule is 'learning_rate', but there is no optimizer= with a learning "
                    "rate to follow: give optimizer= (SGD, Adam, AdamW, NAdam or Muon), or "
                    "another schedule"
                )
            rates = cls._foresee(optimizer, scheduler, schedule.steps)
            # Predicted rates can only be checked if the scheduler is stepped once per step.
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
    ) -> Value:
        """Create a compressor from the ``config()`` of another compressor.

        Parameters
        ----------
        params : the tensors to compress
        config : result of the other compressor's ``config()``
        process_set, grad_scaler : see ``Builder``
        optimizer, scheduler : needed if the other compressor was created with them

        Raises
        ------
        InvalidOption : ``config`` is not a configuration, or the optimizer is missing
        """
        if not isinstance(config, dict) or "selector" not in config:
            raise InvalidOption(
                f"config is {config!r}: give the result of another compressor's config()"
            )
        options: dict[str, Any] = dict(config)
        trial = options.pop("trial", None)
        create = cls.build if trial is None else getattr(cls, "auto", None)
        if create is None:
            raise InvalidOption(
                "config is that of Compression.auto, which only hvd_sparse.torch and "
                "hvd_sparse.tensorflow have: without its entry 'trial', gradients are sent sparse"
            )
        name = options.pop("optimizer", None)
        if name is not None and optimizer is None:
            raise InvalidOption(
                f"config is that of a compressor with optimizer={name}, from which its memory "
                "takes momentum and similar settings, and optimizer is missing: give the "
                "optimizer, by optimizer="
            )
        return create(
            params,
            process_set=process_set,
            grad_scaler=grad_scaler,
            optimizer=optimizer,
            scheduler=scheduler,
            **options,
            **trial or {},
        )


def _take_steps(
    steps: int, options: dict[str, object], optimizer: object, selector: object
) -> None:
    """Add to the options what ``steps=`` implies: a schedule by which densities follow the learning
    rate, and the default codec of such runs. Options that are given are kept."""
    check_whole(steps, "steps", 1)
    if optimizer is None:
        raise InvalidOption(
            f"steps is {steps}, so the density follows the optimizer's learning rate, but "
            "optimizer is missing: give optimizer=, or density= and no steps"
        )
    if not hasattr(SELECTORS.resolve(selector), "density"):
        raise InvalidOption(
            f"steps is {steps}, but this selector has no density that steps could set: leave steps "
            "out"
        )
    if options.get("schedule") is None:
        options["schedule"] = {"id": "learning_rate", "steps": steps}
    add_codec(options, CODEC_OF_RUNS)


def add_codec(options: dict[str, object], codec: str) -> None:
    """Add a default codec to the options, unless they have one, or their exchange uses no codec."""
    if not EXCHANGES.resolve(options.get("exchange", "allgather")).shares_indices:
        options.setdefault("codec", codec)


def _refuse(name: str, *_: object) -> NoReturn:
    """Raise InvalidOption. Horovod calls this if a program passes the method itself to Horovod."""
    raise InvalidOption(
        f"compression=Compression.{name} gives Horovod the method itself: call it, as in "
        f"compression=Compression.{name}(params, ...), where params are the parameters that "
        "Horovod trains"
    )
