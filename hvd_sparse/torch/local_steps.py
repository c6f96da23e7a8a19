"""Local steps: each rank trains alone, and the ranks average their progress every few steps."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping

import torch

from hvd_sparse.collectives.horovod_torch import hvd
from hvd_sparse.errors import ExchangeTimeout, InvalidOption, SparseError
from hvd_sparse.frontend.local_steps import LocalStepsBase, refuse_unfrozen
from hvd_sparse.torch.compressor import TorchCompressor
from hvd_sparse.types import Optimizer, ProcessSet, Report, State, Value

Named = list[tuple[str, torch.nn.Parameter]]


class LocalSteps(LocalStepsBase):
    """Trains with a local optimizer on every rank, and exchanges compressed changes of the
    parameters every few steps.

    The anchor is a copy of the parameters that is equal on all ranks. An exchange computes

        pseudo-gradient = anchor - parameter    after ``every`` steps of the local optimizer
        anchor = anchor after an SGD step with the mean of the ranks' sent entries as gradient
        parameter = anchor

    The second line is the outer step. With its default settings, the ranks' parameters are averaged
    (local SGD). The compressor's residual keeps the entries of a pseudo-gradient that were not
    sent. SparseLoCo sends 64 of every 4,096 entries, with ``topk`` and values of 2 bits. DiLoCo
    sends all entries, with ``outer_lr=0.7, outer_momentum=0.9, nesterov=True``.

    Parameters
    ----------
    optimizer : the local optimizer, from ``torch.optim``; not Horovod's wrapper
    named_parameters : ``model.named_parameters()``
    compression : function of named parameters that makes the compressor: a method of
        ``Compression`` with its options, for example ``functools.partial(Compression.topk,
        density=1 / 64)``; not with optimizer=, density="hiding" or rollback=False. Methods that
        apply momentum before the selection, or send votes, are refused
    every : number of local steps between two exchanges
    outer_lr, outer_momentum, nesterov : settings of the outer step
    process_set : the ranks that train together; all by default

    Notes
    -----
    The constructor is collective: it broadcasts the parameters of the lowest rank, so
    that all ranks start from the same anchor. Buffers, for example BatchNorm's running means, are
    not exchanged. Parameters that are frozen when this object is made are not exchanged either, and
    InvalidOption is raised if they are trained later. To freeze a parameter only for a time, make
    this object first, and then freeze the parameter. Load weights into the model before this object
    is made: weights loaded later count as local steps, unless ``load_state_dict`` sets the anchor.

    In addition to the compressor's state, each rank keeps the anchor, a velocity if there is outer
    momentum, and the pseudo-gradient during an exchange; each has the size of the parameters.

    Paper: sarfi2025sparseloco, douillard2023diloco. Unlike in SparseLoCo, the residual does not
    decay, and the compressor's method selects the entries, without a quota for every chunk.

    Examples
    --------
    ::

        compression = partial(Compression.topk, density=1 / 64, codec="chunk12")
        local = LocalSteps(optimizer, model.named_parameters(), compression=compression, every=16)
        for inputs, targets in batches:
            optimizer.zero_grad()
            loss_function(model(inputs), targets).backward()
            local.step()
        local.exchange()
    """

    compressor: TorchCompressor

    def __init__(
        self,
        optimizer: Optimizer,
        named_parameters: Iterable[tuple[str, torch.nn.Parameter]],
        *,
        compression: Callable[..., TorchCompressor],
        every: int,
        outer_lr: float = 1.0,
        outer_momentum: float = 0.0,
        nesterov: bool = False,
        process_set: ProcessSet = None,
    ) -> None:
        if hasattr(optimizer, "_allreduce_grad_async"):
            raise InvalidOption(
                "the local optimizer is Horovod's, which exchanges at every step: give LocalSteps "
                "the optimizer itself"
            )
        super().__init__(compression, every, outer_lr, outer_momentum, nesterov)
        self.optimizer = optimizer
        self._unfinished: list[Value] = []
        named = [(name, p) for name, p in named_parameters if p.is_floating_point()]
        self._named: Named = [(name, p) for name, p in named if p.requires_grad]
        self._frozen: Named = [(name, p) for name, p in named if not p.requires_grad]
        chosen = hvd.global_process_set if process_set is None else process_set
        for name, parameter in named if chosen.included() else ():
            _broadcast(parameter.data, f"anchor.{name}", chosen)
        # New parameters, because Horovod's optimizer registers hooks on leaves of the graph.
        self._anchors: Named = [
            (name, torch.nn.Parameter(p.detach().clone())) for name, p in self._named
        ]
        # The caller's partial may have given a process set already.
        own = {} if process_set is None else {"process_set": process_set}
        self._take(compression(self._anchors, **own))
        # No memory can apply the outer momentum, which is of pseudo-gradients: do not warn.
        self.compressor.is_forewarned = True
        outer = torch.optim.SGD(
            [anchor for _, anchor in self._anchors],
            lr=outer_lr,
            momentum=outer_momentum,
            nesterov=nesterov,
        )
        self.outer = hvd.DistributedOptimizer(
            outer,
            named_parameters=[(f"anchor.{name}", anchor) for name, anchor in self._anchors],
            compression=self.compressor,
            process_set=chosen,
        )

    def step(self, closure: Value = None) -> Value:
        """Take a step of the local optimizer, with ``closure``, and return its loss. Exchange the
        changes of the parameters if ``every`` steps were taken since the last exchange."""
        self._refuse_unfrozen()
        loss = self.optimizer.step(closure)
        self.advance()
        return loss

    def advance(self) -> None:
        """Count a local step that the program took without ``step``, for example by
        ``GradScaler.step(optimizer)``. Exchange the changes of the parameters if ``every`` steps
        were taken since the last exchange."""
        self._refuse_unfrozen()
        super().advance()

    def _refuse_unfrozen(self) -> None:
        for name, parameter in self._frozen:
            if parameter.requires_grad:
                refuse_unfrozen(f"parameter {name!r}")

    @torch.no_grad()
    def _exchange(self) -> None:
        for (_, anchor), (_, parameter) in zip(self._anchors, self._named):
            # With this sign, SGD at a rate of 1 moves the anchor to the parameter.
            anchor.grad = anchor - parameter
        try:
            self.outer.step()
        except Exception as error:
            self._unfinished = list(self.outer._handles.values())  # see ``held``
            self.outer._handles.clear()  # otherwise the next exchange would wait for them
            if isinstance(error, SparseError) and not isinstance(error, ExchangeTimeout):
                # All ranks have submitted all tensors, and the next exchange needs their names.
                for handle, _ in self._unfinished:
                    hvd.synchronize(handle)
                self._unfinished.clear()
            raise
        for (_, anchor), (_, parameter) in zip(self._anchors, self._named):
            parameter.copy_(anchor)
            # Free the third copy of the model between exchanges.
            anchor.grad = None

    def state_dict(self) -> Report:
        """Return this rank's state, without the model and the local optimizer.

        taken : number of local steps since the last exchange
        anchors : for each parameter, by name, its anchor: its value after the last exchange
        outer, compressor : the states of the outer optimizer and of the compressor; None for
            ``Compression.nothing`` and Horovod's compressors, which have no state
        """
        return {
            "taken": self.taken,
            "anchors": {name: anchor.detach().clone() for name, anchor in self._anchors},
            "outer": copy.deepcopy(self.outer.state_dict()),
            "compressor": self._state_of_compressor(),
        }

    @torch.no_grad()
    def load_state_dict(self, state: State) -> None:
        """Load this rank's ``state_dict()``; load the model and the local optimizer separately.

        Raises
        ------
        InvalidOption : the state has other parameters, or only one of the state and this object
            has a compressor with a state
        RankMismatch : the state has another configuration
        """
        anchors: Mapping[str, torch.Tensor] = state["anchors"]
        if list(anchors) != [name for name, _ in self._anchors]:
            raise InvalidOption(
                f"this state has anchors of {', '.join(anchors)}, but the parameters are "
                f"{', '.join(name for name, _ in self._anchors)}: load the state into the same "
                "model"
            )
        self._load_compressor(state["compressor"])
        self.outer.load_state_dict(state["outer"])
        self.taken = state["taken"]
        for name, anchor in self._anchors:
            anchor.copy_(anchors[name])


def _broadcast(values: torch.Tensor, name: str, process_set: ProcessSet) -> None:
    """Broadcast the values of the lowest rank to the same tensor on all ranks, in place. A
    contiguous tensor is sent, with bfloat16 as float32, because Horovod supports nothing else."""
    root = min(getattr(process_set, "ranks", None) or [0])
    sent = (values.float() if values.dtype == torch.bfloat16 else values).contiguous()
    hvd.broadcast_(sent, root, name=name, process_set=process_set)
    values.copy_(sent)
