"""Worker: optimizers that are handed over to the compressor, beside the same optimizers on dense
gradients."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import horovod.torch as hvd
import torch
from _common import SPARSE_ONLY, Cases, Scripted, caught
from _torch_cases import digest_of, flat_parameters, run_torch_cases
from muon import paired
from torch import nn

from hvd_sparse.torch import Compression

cases = Cases()
STEPS = 8
WITHOUT_MASK = {"id": "momentum_correction", "masking": False}
"""The memory of before, for programs that ask for it."""
Make = Callable[[nn.Module], torch.optim.Optimizer]


def network() -> nn.Module:
    """The same on every rank."""
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 4))


def groups_of(model: nn.Module) -> list[dict[str, Any]]:
    """Two groups that differ in rate and weight decay."""
    return [
        {"params": model[0].parameters(), "lr": 0.02, "weight_decay": 0.1},
        {"params": model[2].parameters(), "lr": 0.05, "weight_decay": 0.0},
    ]


def sgd(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(groups_of(model), momentum=0.9, **options)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups_of(model), betas=(0.8, 0.95), eps=1e-6)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(groups_of(model))


def muon(model: nn.Module) -> torch.optim.Optimizer:
    """Muon for matrices, and Adam for the rest."""
    return paired(model.parameters())


def rate_at(step: int) -> float:
    """A schedule that stands still for a step."""
    return 0.0 if step == 3 else 1 / (1 + step)


def backward(model: nn.Module, step: int, rank: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(100 * step + rank)
    inputs = torch.randn(16, 12, generator=draw)
    loss = nn.functional.mse_loss(model(inputs), inputs[:, :4].roll(1, dims=1))
    loss.backward()
    return loss


def distributed(
    name: str, model: nn.Module, optimizer: Any, compressor: Any, **options: Any
) -> Any:
    named = [(f"{name}.{key}", parameter) for key, parameter in model.named_parameters()]
    return hvd.DistributedOptimizer(
        optimizer, named_parameters=named, compression=compressor, **options
    )


def train(
    model: nn.Module, optimizer: Any, steps: range = range(STEPS), schedule: Any = None
) -> list[float]:
    losses = []
    for step in steps:
        optimizer.zero_grad()
        loss = backward(model, step, hvd.rank())
        losses.append(float(optimizer.step(lambda loss=loss: loss)))
        if schedule is not None:
            schedule.step()
    return losses


def beside_dense(name: str, *, make: Make, **options: Any) -> dict[str, Any]:
    """How far training with the compressor ends from training with the optimizer itself and dense
    gradients."""
    dense, ours = network(), network()
    plain, handed = make(dense), make(ours)
    op, method = options.pop("op", hvd.Average), options.pop("method", "topk")
    compressor = getattr(Compression, method)(
        ours.named_parameters(), density=1.0, name=name, optimizer=handed, **options
    )
    ends = []
    for model, optimizer, compression in (
        (dense, plain, hvd.Compression.none),
        (ours, handed, compressor),
    ):
        suffix = "dense" if model is dense else "ours"
        wrapped = distributed(f"{name}.{suffix}", model, optimizer, compression, op=op)
        if (
            model is ours
        ):  # Horovod takes a step with zero gradients, in which weight decay moves parameters
            hvd.broadcast_optimizer_state(wrapped, root_rank=0)
        schedule = torch.optim.lr_scheduler.LambdaLR(wrapped, rate_at)
        train(model, wrapped, schedule=schedule)
        ends.append(flat_parameters(model))
    stats = compressor.stats()
    compressor.close()
    moved = float((ends[0] - flat_parameters(network())).abs().max())
    return {
        "difference": float((ends[0] - ends[1]).abs().max()) / moved,
        "digest": digest_of(ours.parameters()),
        "sparse_steps": stats["sparse_steps"],
        "groups": [group["weight_decay"] for group in handed.param_groups],
    }


cases["sgd"] = partial(beside_dense, make=sgd, **SPARSE_ONLY)
cases["sgd_summed"] = partial(beside_dense, make=sgd, op=hvd.Sum, **SPARSE_ONLY)
cases["sgd_corrected"] = partial(beside_dense, make=sgd, memory=WITHOUT_MASK, **SPARSE_ONLY)
cases["nesterov"] = partial(beside_dense, make=partial(sgd, nesterov=True), **SPARSE_ONLY)
cases["sgd_on_a_dense_way"] = partial(
    beside_dense, make=sgd, method="auto", ways=("dense",), **SPARSE_ONLY
)
cases["sgd_never_compressed"] = partial(beside_dense, make=sgd, min_numel=10**6)
cases["adam_never_compressed"] = partial(beside_dense, make=adam, min_numel=10**6)
cases["adamw_never_compressed"] = partial(beside_dense, make=adamw, min_numel=10**6)
cases["dampened"] = partial(
    beside_dense, make=partial(sgd, dampening=0.4, maximize=True), **SPARSE_ONLY
)
for label, make in {
    "amsgrad": lambda model: torch.optim.Adam(groups_of(model), amsgrad=True, maximize=True),
    "nadam": lambda model: torch.optim.NAdam(groups_of(model)),
    "muon": muon,
}.items():
    cases[f"{label}_never_compressed"] = partial(beside_dense, make=make, min_numel=10**6)


def trained(
    name: str,
    make: Make,
    steps: range,
    resumed: Any = None,
    density: float = 0.1,
    **options: Any,
) -> tuple[Any, list[float]]:
    """The state of everything after some steps at a low density, and the losses."""
    model = network()
    optimizer = make(model)
    if resumed is not None:
        model.load_state_dict(resumed["model"])
    compressor = Compression.ldte_bs(
        model.named_parameters(),
        density=density,
        name=name,
        min_numel=20,
        optimizer=optimizer,
        **options,
    )
    wrapped = distributed(name, model, optimizer, compressor)
    if resumed is not None:
        wrapped.load_state_dict(resumed["optimizer"])
        compressor.load_state_dict(resumed["compressor"])
    losses = []
    for step in steps:
        for group in wrapped.param_groups:
            group["lr"] = 0.02 / (1 + step / 10)
        losses += train(model, wrapped, range(step, step + 1))
    state = {
        "model": copy.deepcopy(model.state_dict()),
        "optimizer": copy.deepcopy(wrapped.state_dict()),
        "compressor": compressor.state_dict(),
        "digest": digest_of(model.parameters()),
    }
    compressor.close()
    return state, losses


def resumed(name: str, *, make: Make, **options: Any) -> dict[str, Any]:
    """Training in one go, and with a stop in the middle; under one name, which is part of the
    state."""
    whole, losses = trained(name, make, range(40), **options)
    half, _ = trained(name, make, range(20), **options)
    rest, _ = trained(name, make, range(20, 40), half, **options)
    return {
        "digests": [whole["digest"], rest["digest"]],
        "losses": [sum(losses[:4]), sum(losses[-4:])],
        "arrays": sorted(half["compressor"]["tensors"]["0.weight"]["arrays"]),
    }


cases["sgd_resumed"] = partial(resumed, make=sgd)
cases["sgd_with_velocity_resumed"] = partial(
    resumed,
    make=partial(sgd, nesterov=True),
    density=0.05,
    schedule={"id": "piecewise", "boundaries": [20, 30], "densities": [0.5, 0.2, 0.05]},
    allow_dense=False,
)
cases["adamw_resumed"] = partial(resumed, make=adamw)
cases["adam_resumed"] = partial(resumed, make=adam)
cases["muon_resumed"] = partial(resumed, make=muon)


@cases
def ways_change(name: str) -> dict[str, Any]:
    """An optimizer's memory where steps are sparse and dense as ``auto`` decides."""
    model = network()
    optimizer = sgd(model)
    compressor = Compression.auto(
        model.named_parameters(), density=0.1, name=name, optimizer=optimizer, **SPARSE_ONLY
    )
    compressor._policy.trial = Scripted(["sparse"] * 4 + ["dense"] * 4 + ["sparse"] * 12)
    wrapped = distributed(name, model, optimizer, compressor)
    losses, waiting = [], []
    for step in range(20):
        losses += train(model, wrapped, range(step, step + 1))
        tensors = compressor.state_dict()["tensors"].values()
        waiting.append(sum(int(each["arrays"]["residual"].count_nonzero()) for each in tensors))
    stats = compressor.stats()
    compressor.close()
    return {
        "digest": digest_of(model.parameters()),
        "losses": losses,
        "waiting": waiting,
        "steps": [stats["sparse_steps"], stats["dense_steps"]],
    }


def along_the_rate(name: str) -> dict[str, Any]:
    """What a run sends of which only the steps are told; and what is said where one rank's
    scheduler is ahead."""
    model = network()
    optimizer = sgd(model)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, RUN)
    compressor = Compression.ldte_bs(
        model.named_parameters(),
        name=name,
        min_numel=20,
        optimizer=optimizer,
        scheduler=schedule,
        steps=RUN,
        density=0.1,
        allow_dense=False,
    )
    wrapped, sent, losses = distributed(name, model, optimizer, compressor), [], []
    hvd.broadcast_optimizer_state(wrapped, root_rank=0)
    for step in range(RUN):
        losses += train(model, wrapped, range(step, step + 1), schedule)
        sent.append(compressor.stats()["density_achieved"])
    ends = digest_of(model.parameters())
    if hvd.rank() == 0:
        wrapped.param_groups[0]["lr"] = 0.5
    told = caught(train, model, wrapped, range(1))
    compressor.close()
    return {
        "digest": ends,
        "achieved": sent,
        "losses": losses,
        "codec": compressor.configuration.codec.id,
        "told": told,
    }


RUN = 24
cases["along_the_rate"] = along_the_rate


def cycle_momentum(optimizer: torch.optim.Optimizer, step: int) -> None:
    for group in optimizer.param_groups:
        if "momentum" in group:
            group["momentum"] = (0.9, 0.5, 0.8)[step % 3]


def moved_over(name: str, *, make: Make, comes_back: bool = True, **options: Any) -> dict[str, Any]:
    """Training that goes from the optimizer itself to a compressor and back, the state by way of
    rank 0, beside training by the optimizer itself; momentum changes with every step.

    What is compressed has moments of rank 0's own gradients, and does not come back the same."""

    def part(way: str, steps: range, begun: Any, *, hands_over: bool) -> Any:
        model, place = network(), f"{name}.{way}"
        optimizer = make(model)
        compressor: Any = hvd.Compression.none
        if hands_over:
            compressor = Compression.topk(
                model.named_parameters(), density=1.0, name=place, optimizer=optimizer, **options
            )
        wrapped = distributed(place, model, optimizer, compressor)
        if begun is not None and hvd.rank() == 0:
            model.load_state_dict(begun[0])
            wrapped.load_state_dict(begun[1])
        # In this order, as Horovod takes a step on ranks without a state, in which weight decay
        # moves parameters.
        if begun is not None:
            hvd.broadcast_optimizer_state(wrapped, root_rank=0)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        for step in steps:
            cycle_momentum(wrapped, step)
            train(model, wrapped, range(step, step + 1))
        if hands_over:
            compressor.close()
        return copy.deepcopy((model.state_dict(), wrapped.state_dict()))

    ends = []
    for way, hands_over in (("plain", False), ("moved", True)):
        begun = part(f"{way}.1", range(4), None, hands_over=False)
        begun = part(f"{way}.2", range(4, 8), begun, hands_over=hands_over)
        if comes_back:
            begun = part(f"{way}.3", range(8, 12), begun, hands_over=False)
        ends.append(begun[0])
    start = network().state_dict()
    moved = max(float((ends[0][key] - start[key]).abs().max()) for key in start)
    apart = max(float((ends[0][key] - ends[1][key]).abs().max()) for key in start)
    return {"difference": apart / moved}


cases["sgd_moved_over"] = partial(moved_over, make=sgd, min_numel=10**6)
cases["nesterov_moved_over"] = partial(
    moved_over, make=partial(sgd, nesterov=True), comes_back=False, **SPARSE_ONLY
)
cases["adamw_moved_over"] = partial(moved_over, make=adamw, min_numel=10**6)
cases["muon_moved_over"] = partial(moved_over, make=muon, min_numel=10**6)


@cases
def scaled_and_clipped(name: str) -> dict[str, Any]:
    """A scaler that skips a step, and a closure, beside the same training without a scaler."""
    digests, skipped = [], []
    for with_scaler in (True, False):
        model = network()
        optimizer = adamw(model)
        scaler = torch.amp.GradScaler(
            "cpu", init_scale=2.0**8, growth_interval=3, enabled=with_scaler
        )
        compressor = Compression.dgc(
            model.named_parameters(), density=0.1, name=name, min_numel=20, optimizer=optimizer,
            grad_scaler=scaler if with_scaler else None, clip_norm=0.5,
        )  # fmt: skip
        wrapped = distributed(name, model, optimizer, compressor)
        for step in range(STEPS):
            if step == 4 and not with_scaler:
                continue
            wrapped.zero_grad()
            draw = torch.Generator().manual_seed(100 * step + hvd.rank())
            loss = model(torch.randn(16, 12, generator=draw)).square().mean()
            scaler.scale(loss * (torch.inf if step == 4 and hvd.rank() == 0 else 1.0)).backward()
            wrapped.synchronize()
            scaler.unscale_(wrapped)
            before = digest_of(model.parameters())
            with wrapped.skip_synchronize():
                scaler.step(wrapped)
            scaler.update()
            skipped.append(digest_of(model.parameters()) == before)
        digests.append(digest_of(model.parameters()))
        memory = type(compressor.configuration.memory).__name__
        compressor.close()
    return {"digests": digests, "skipped": skipped[:STEPS], "memory": memory}


def clipped(name: str, *, make: Make, is_scaled: bool = False, **options: Any) -> dict[str, Any]:
    """Training with ``clip_grad_norm``, everything being sent, beside dense gradients that are
    clipped when they have come back: of equal ranks both norms are the same."""
    ends, tops = [], []
    for hands_over in (False, True):
        model = network()
        optimizer, compressor = make(model), hvd.Compression.none
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, enabled=is_scaled and hands_over)
        if hands_over:
            compressor = Compression.topk(
                model.named_parameters(), density=1.0, name=name, optimizer=optimizer,
                clip_grad_norm=BOUND, grad_scaler=scaler if is_scaled else None, **options,
            )  # fmt: skip
        wrapped = distributed(f"{name}.{hands_over}", model, optimizer, compressor)
        for step in range(STEPS):
            wrapped.zero_grad()
            draw = torch.Generator().manual_seed(step)
            scaler.scale(model(torch.randn(16, 12, generator=draw)).square().mean()).backward()
            wrapped.synchronize()
            scaler.unscale_(wrapped)
            if not hands_over:
                tops.append(float(nn.utils.clip_grad_norm_(model.parameters(), BOUND)))
            with wrapped.skip_synchronize():
                scaler.step(wrapped)
            scaler.update()
        ends.append(flat_parameters(model))
        if hands_over:
            compressor.close()
    moved = float((ends[0] - flat_parameters(network())).abs().max())
    difference = float((ends[0] - ends[1]).abs().max()) / moved
    return {"difference": difference, "norms": [min(tops), max(tops)]}


BOUND = 0.25
cases["clipped_sgd"] = partial(clipped, make=sgd, **SPARSE_ONLY)
cases["clipped_sgd_scaled"] = partial(clipped, make=sgd, is_scaled=True, **SPARSE_ONLY)
cases["clipped_adamw"] = partial(clipped, make=adamw, min_numel=10**6)


@cases
def clipped_by_no_optimizer(name: str) -> list[str]:
    """What is said where nothing holds Horovod's gradients back, or its groups do not wait."""
    said = []
    for hands_over in (False, True):
        model = network()
        optimizer = sgd(model) if hands_over else torch.optim.SGD(model.parameters(), lr=0.1)
        options = {"optimizer": optimizer} if hands_over else {}
        compressor = Compression.topk(
            model.named_parameters(), density=0.1, name=name, clip_grad_norm=BOUND, **options
        )
        groups = {"groups": 1} if hands_over else {}
        wrapped = distributed(name, model, optimizer, compressor, **groups)
        said.append(caught(train, model, wrapped, range(1)))
        compressor.close()
    return said


def skip_batches(wrap: Callable[..., Any]) -> nn.Module:
    """Look at every third gradient once it is reduced, and let it go."""
    model = network()
    optimizer, compressor = wrap("model", model)
    for step in range(STEPS):
        optimizer.zero_grad()
        backward(model, step, hvd.rank())
        optimizer.synchronize()
        if step % 3 != 1:
            with optimizer.skip_synchronize():
                optimizer.step()
        if compressor is not None and step % 3 == 2:
            compressor.load_state_dict(compressor.state_dict())
    return model


def climb_first(wrap: Callable[..., Any]) -> nn.Module:
    """Move the weights after a first gradient, as SAM does, and back after the second."""
    model = network()
    optimizer, _ = wrap("model", model)
    for group in optimizer.param_groups:
        group["weight_decay"] = 0.0  # of the weights that the second gradient was taken at
    for step in range(STEPS):
        for move in (0.05, -0.05):
            model.zero_grad(set_to_none=step % 2 == 0)
            backward(model, step, hvd.rank())
            optimizer.synchronize()
            with torch.no_grad():
                for number, parameter in enumerate(model.parameters()):
                    parameter.add_(move * (1 + number))
        with optimizer.skip_synchronize():
            optimizer.step()
    return model


def contest(wrap: Callable[..., Any]) -> nn.Module:
    """Train a generator through a discriminator, whose gradient of that pass is thrown away."""
    critic = network()
    maker = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 12))
    critics, _ = wrap("critic", critic)
    makers, _ = wrap("maker", maker)
    for step in range(STEPS):
        draw = torch.Generator().manual_seed(100 * step + hvd.rank())
        real, noise = (torch.randn(16, 12, generator=draw) for _ in range(2))
        critics.zero_grad()
        (critic(maker(noise).detach()) - critic(real)).tanh().mean().backward()
        critics.step()
        critics.zero_grad()
        makers.zero_grad()
        (-critic(maker(noise)).tanh().mean()).backward()
        makers.step()
        critics.synchronize()
    return nn.ModuleList([critic, maker])


@cases
def gradients_that_are_thrown_away(name: str) -> dict[str, Any]:
    """Programs that throw reduced gradients away, beside the same on dense gradients."""
    found = {}
    for program in (skip_batches, climb_first, contest):
        compressors: list[Any] = []

        def wrap(label: str, model: nn.Module, kind: str, named: str) -> Any:
            optimizer, compressor = sgd(model), None
            if kind == "ours":
                compressor = Compression.topk(
                    model.named_parameters(), density=1.0, name=f"{named}.{label}",
                    optimizer=optimizer, memory=WITHOUT_MASK, **SPARSE_ONLY,
                )  # fmt: skip
                compressors.append(compressor)  # noqa: B023
            chosen = compressor or hvd.Compression.none
            return distributed(f"{named}.{kind}.{label}", model, optimizer, chosen), compressor

        named = f"{name}.{program.__name__}"
        torch.manual_seed(11)
        dense = program(partial(wrap, kind="dense", named=named))
        torch.manual_seed(11)
        ours = program(partial(wrap, kind="ours", named=named))
        found[program.__name__] = {
            "difference": float((flat_parameters(dense) - flat_parameters(ours)).abs().max()),
            "steps": [each.stats()["steps"] for each in compressors],
            "digest": digest_of(ours.parameters()),
        }
        for compressor in compressors:
            compressor.close()
    return found


class Heard(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


def said_of(
    name: str, make: Callable[[Any], torch.optim.Optimizer], *, hands_over: bool, density: float
) -> list[str]:
    """What is logged of accuracy while an optimizer is handed over, or not, and trains for two
    steps."""
    heard = Heard()
    logging.getLogger("hvd_sparse").addHandler(heard)
    model = network()
    optimizer = make(model.parameters())
    options = {"optimizer": optimizer} if hands_over else {}
    compressor = Compression.ldte_bs(
        model.named_parameters(), density=density, name=name, min_numel=20, **options
    )
    train(model, distributed(name, model, optimizer, compressor), range(2))
    logging.getLogger("hvd_sparse").removeHandler(heard)
    compressor.close()
    return [text for text in heard.said if "accuracy" in text]


@cases
def warnings_of_accuracy(name: str) -> dict[str, list[str]]:
    optim = torch.optim
    makers: dict[str, Any] = {
        "momentum": partial(optim.SGD, lr=0.1, momentum=0.9),
        "plain": partial(optim.SGD, lr=0.1),
        "adam": optim.Adam,
        "rmsprop": optim.RMSprop,
    }
    said = {
        f"{kind}, {'handed over' if hands_over else 'kept'}": said_of(
            name, make, hands_over=hands_over, density=0.01
        )
        for kind, make in makers.items()
        for hands_over in (False, True)
    }
    return {
        **said,
        "momentum, dense enough": said_of(name, makers["momentum"], hands_over=False, density=0.5),
    }


@cases
def what_no_memory_knows(name: str) -> list[str]:
    model = network()
    optim, parameters = torch.optim, list(model.parameters())
    wrong: list[Any] = [
        optim.Adam(parameters, differentiable=True),
        distributed(name, model, optim.SGD(parameters, lr=0.1), hvd.Compression.none),
        parameters,
    ]
    topk = partial(Compression.topk, density=0.1, name=name)
    return [caught(partial(topk, model.named_parameters(), optimizer=each)) for each in wrong]


def unlike_what_was_handed_over(name: str, *, keeps_compressor: bool) -> str:
    """Another optimizer calls the compressor, or another compression reduces its gradients."""
    model = network()
    handed = sgd(model)
    compressor = Compression.topk(
        model.named_parameters(), density=0.1, name=name, optimizer=handed
    )
    calling, through = (
        (sgd(model), compressor) if keeps_compressor else (handed, hvd.Compression.none)
    )
    said = caught(train, model, distributed(name, model, calling, through), range(1))
    compressor.close()
    return said


cases["another_optimizer_calls"] = partial(unlike_what_was_handed_over, keeps_compressor=True)
cases["gradients_come_through_no_compressor"] = partial(
    unlike_what_was_handed_over, keeps_compressor=False
)


@cases
def compiled_steps(name: str) -> dict[str, float]:
    """How far a compiled step of Horovod's optimizer goes from the step, handed over or not."""
    differences = {}
    for kind in ("handed over", "kept"):
        ends = []
        for is_compiled in (True, False):
            model = network()
            optimizer = adamw(model)
            options = {"optimizer": optimizer} if kind == "handed over" else {}
            compressor = Compression.topk(
                model.named_parameters(), density=0.1, name=name, min_numel=20, **options
            )
            wrapped = distributed(name, model, optimizer, compressor)
            step = torch.compile(wrapped.step, backend="eager") if is_compiled else wrapped.step
            for number in range(3):
                wrapped.zero_grad()
                backward(model, number, hvd.rank())
                step()
            ends.append(flat_parameters(model))
            compressor.close()
        differences[kind] = float((ends[0] - ends[1]).abs().max())
    return differences


class Looking(nn.Module):
    """A table with sparse gradients, and what is behind it."""

    def __init__(self, rest: Callable[[], nn.Module], *, is_sparse: bool = True) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.table = nn.Embedding(6, 4, sparse=is_sparse)
        self.rest = rest()

    def forward(self, step: int) -> torch.Tensor:
        return self.rest(self.table(torch.tensor([hvd.rank(), 2 + step % 3])))


def ends_of(
    name: str, train: Callable[..., nn.Module], make: Make, **options: Any
) -> dict[str, Any]:
    """How far a training ends from dense Horovod's, everything being sent, and how far it went."""
    ends, said, origin = [], [], None
    for hands_over in (False, True):
        heard = Heard()
        logging.getLogger("hvd_sparse").addHandler(heard)
        model, of_model = train(f"{name}.{hands_over}", make, hands_over, **options)
        logging.getLogger("hvd_sparse").removeHandler(heard)
        ends.append(flat_parameters(model))
        origin, said = of_model, heard.said
    moved = float((ends[0] - origin).abs().max())
    return {"difference": float((ends[0] - ends[1]).abs().max()) / moved, "said": said}


def handed_over(model: nn.Module, make: Make, name: str, hands_over: bool) -> tuple[Any, Any]:
    """The optimizer, and the compressor that does its work, or Horovod's that does nothing."""
    optimizer = make(model)
    if not hands_over:
        return optimizer, hvd.Compression.none
    options = {"density": 1.0, "name": name, "optimizer": optimizer, "memory": None, **SPARSE_ONLY}
    if "betas" not in optimizer.param_groups[0]:
        options["memory"] = WITHOUT_MASK
    else:  # Adam before the selection is Adam only where nothing is selected
        options["min_numel"] = 10**6
    return optimizer, Compression.topk(model.named_parameters(), **options)


def looks_up(
    name: str, make: Make, hands_over: bool, rest: Callable[[], nn.Module], **options: Any
) -> tuple[nn.Module, torch.Tensor]:
    """Train with sparse gradients, which Horovod exchanges by itself."""
    # torch's own Adam takes no sparse gradients
    model = Looking(rest, is_sparse=hands_over or make is plain_sgd)
    origin = flat_parameters(model)
    optimizer, compression = handed_over(model, make, name, hands_over)
    wrapped = distributed(name, model, optimizer, compression, **options)
    if hands_over:  # sparse gradients behind the zeros with which Horovod fills a state
        hvd.broadcast_optimizer_state(wrapped, root_rank=0)
    for step in range(STEPS):
        wrapped.zero_grad()
        model(step).square().sum().backward()
        wrapped.step()
    if hands_over:
        compression.close()
    return model, origin


def plain_sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)


def plain_adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.02)


linear = partial(nn.Linear, 4, 3)
looking = partial(partial, ends_of, train=looks_up, make=plain_sgd)
cases["sparse_gradients"] = looking(rest=linear)
cases["sparse_gradients_alone"] = looking(rest=nn.Identity)
cases["sparse_as_dense"] = looking(rest=linear, sparse_as_dense=True)
cases["sparse_as_dense_adamw"] = looking(rest=linear, make=plain_adamw, sparse_as_dense=True)


@cases
def sparse_gradients_of_adam(name: str) -> str:
    return caught(looks_up, name, plain_adamw, True, linear)


def unfreezes(
    name: str, make: Make, hands_over: bool, adds_group: bool = False
) -> tuple[nn.Module, torch.Tensor]:
    """Train with a layer that Horovod was not told of, from the fourth step on."""
    model = network()
    origin = flat_parameters(model)
    late = model[0]
    late.requires_grad_(False)
    trained = nn.ModuleList([model[2]]) if adds_group else model
    optimizer, compression = handed_over(trained, make, name, hands_over)
    wrapped = distributed(name, trained, optimizer, compression)
    for step in range(STEPS):
        if step == 3:
            late.requires_grad_(True)
            if adds_group:
                wrapped.add_param_group({"params": list(late.parameters())})
        wrapped.zero_grad()
        backward(model, step, hvd.rank())
        wrapped.step()
    if hands_over:
        compression.close()
    return model, origin


for kind, make in (("sgd", plain_sgd), ("adamw", plain_adamw)):
    cases[f"unfrozen_{kind}"] = partial(ends_of, train=unfreezes, make=make)
    cases[f"added_{kind}"] = partial(ends_of, train=unfreezes, make=make, adds_group=True)


if __name__ == "__main__":
    hvd.init()
    run_torch_cases(cases)
