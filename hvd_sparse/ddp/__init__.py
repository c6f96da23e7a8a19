"""Gradient sparsification for PyTorch's DistributedDataParallel, without Horovod."""

# No postponed annotations, because DDP compares the annotations of a hook with classes.

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from hvd_sparse.configuration import Configuration
from hvd_sparse.ddp.compressor import DdpCompressor
from hvd_sparse.errors import InvalidOption, UnsupportedInput
from hvd_sparse.frontend.torch.optimizer import foresee, read_optimizer
from hvd_sparse.methods import Methods, check_method
from hvd_sparse.types import GradScaler, Option, Params, ProcessSet

__all__ = ["DdpCompressor", "register"]

REMEDY = (
    "leave that hook out, or wrap the bare model again, DistributedDataParallel(model.module), "
    "and register that; to send values in 16 bits, give "
    "codec={'id': 'block16', 'values': 'float16'}"
)

REFUSED = {
    "skip_all_reduce_unused_params": "it would call the hook for some of its buckets only: leave "
    "it out, find_unused_parameters=True is enough",
    "_delay_all_reduce_params": "DDP would reduce these gradients beside the hook, and would not "
    "wait for the results on the CPU: leave delay_all_reduce_named_params out",
    "mixed_precision": "parameters change their dtype in a step: leave it out, and train under "
    "torch.autocast",
    "_use_python_reducer": "torch.compile's optimize_ddp='python_reducer' calls hooks without "
    "buckets: set torch._dynamo.config.optimize_ddp to True",
}
"""Settings of DDP with which the hook cannot work, and the reasons."""

SHARDED = (
    "FSDP gives hooks gradients that it has already reduced, so nothing can be compressed: use "
    "DistributedDataParallel in place of FSDP"
)
NOT_WRAPPED = {
    "FullyShardedDataParallel": SHARDED,
    "FSDPModule": SHARDED,
    "OptimizedModule": "register the DistributedDataParallel model first, and compile it then",
}
"""Classes of models that are not DDP's, by name, and what to do instead."""
OF_HOROVOD = {
    "auto": "`hvd-sparse advise` predicts whether compression makes steps faster",
    "nothing": "noop_hook of torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks sends "
    "nothing, too",
}
"""Methods that need Horovod, and what to use instead."""


class Compression(Methods):
    """The named methods for models of DistributedDataParallel; ``register`` calls them."""

    _read_optimizer = staticmethod(read_optimizer)
    _foresee = staticmethod(foresee)

    @classmethod
    def _create(
        cls,
        params: Params,
        configuration: Configuration,
        process_set: ProcessSet,
        grad_scaler: GradScaler,
    ) -> DdpCompressor:
        if process_set is not None:
            raise InvalidOption(
                "process_set is Horovod's: give the group to DistributedDataParallel(model, "
                "process_group=...), and leave it out here"
            )
        if configuration.groups is not None:
            raise InvalidOption(
                f"groups is {configuration.groups!r}, and DDP's buckets are the groups here: leave "
                "it out, and give DistributedDataParallel bucket_cap_mb=..."
            )
        return DdpCompressor(params, configuration, grad_scaler)


def sparse_hook(
    compressor: DdpCompressor, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    return compressor.reduce(bucket)


def register(model: Params, method: str = "ldte_bs", **options: Option) -> DdpCompressor:
    """Let a DistributedDataParallel model exchange sparse gradients.

    Collective: every rank calls this function, after creating DistributedDataParallel and before
    the first backward pass. It registers a communication hook, which cannot be removed from the
    model. The entries of each of DDP's buckets are sent in one message.

    Parameters
    ----------
    model : torch.nn.parallel.DistributedDataParallel
    method : name of a method; or "build", with the parts as options (selector=...); or
        "from_config", with config=handle.config()
    options : the method's options, for example ``density``, and the common options that
        ``methods.builder.Builder`` lists

    Returns
    -------
    DdpCompressor
        The handle, which has the methods of ``hvd_sparse.frontend.compressor.Compressor``, for
        example ``stats()``, ``save(path)`` and ``load(path)``.

    Raises
    ------
    InvalidOption : the model is not a DDP model or already has a hook, or an option is wrong
    UnsupportedInput : a parameter cannot be compressed
    UnknownName : no method has this name
    RankMismatch : the ranks have different models or options

    Examples
    --------
    In a program started by torchrun::

        model = torch.nn.parallel.DistributedDataParallel(model)
        optimizer = torch.optim.AdamW(model.parameters())
        handle = hvd_sparse.ddp.register(model, "ldte_bs", density=0.001, optimizer=optimizer)
    """
    _check_model(model)
    if isinstance(method, str) and method in OF_HOROVOD:
        raise InvalidOption(f"method {method!r} needs Horovod; {OF_HOROVOD[method]}")
    if method not in ("build", "from_config"):
        check_method(method)
    compressor: DdpCompressor = getattr(Compression, method)(model, **options)
    try:
        model.register_comm_hook(compressor, sparse_hook)
    except RuntimeError as error:  # a built-in hook of torch, which ``_comm_hooks`` does not list
        compressor.close()
        raise InvalidOption(f"DDP accepts no further hook: {error}; {REMEDY}") from error
    return compressor


def _check_model(model: Params) -> None:
    if not isinstance(model, DistributedDataParallel):
        bases = (base.__name__ for base in type(model).__mro__)
        usual = (
            "first wrap it, as in model = torch.nn.parallel.DistributedDataParallel(model), and "
            "register the result"
        )
        remedy = next((NOT_WRAPPED[base] for base in bases if base in NOT_WRAPPED), usual)
        raise InvalidOption(f"the model is {type(model).__name__}: {remedy}")
    if model._comm_hooks:
        hook = model._comm_hooks[0][0]
        raise InvalidOption(
            f"the model has the communication hook {hook.__name__!r}, and DDP accepts only one "
            f"hook: {REMEDY}"
        )
    for option, why in REFUSED.items():
        if getattr(model, option, None):
            raise InvalidOption(f"DDP has {option.lstrip('_')}: {why}")
    for name, module in model.module.named_modules():
        if getattr(module, "sparse", False) and isinstance(
            module, (torch.nn.Embedding, torch.nn.EmbeddingBag)
        ):
            raise UnsupportedInput(
                f"tensor '{name}.weight' has sparse gradients, which a hook cannot reduce: build "
                f"the {type(module).__name__} with sparse=False"
            )
