"""Optimizers that are passed to the compressor, beside the same on dense gradients."""

import copy
from functools import partial

import _torch_programs
import horovod.torch as hvd
import torch
from _common import SPARSE_ONLY, Cases, Heard, caught, check_refused
from _torch_cases import digest_of, distributed, flat_parameters
from torch import nn

from hvd_sparse.torch import Compression, CompressorStateHandler

cases = Cases()
STEPS = 8
EVERY = range(STEPS)
UNMASKED = {"memory": {"id": "momentum_correction", "masking": False}}
DENSE = {"min_numel": 10**6}
TOLERANCE = 2e-5


def network():
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 4))


def groups_of(model):
    return [
        {"params": model[0].parameters(), "lr": 0.02, "weight_decay": 0.1},
        {"params": model[2].parameters(), "lr": 0.05, "weight_decay": 0.0},
    ]


def sgd(model, **options):
    return torch.optim.SGD(groups_of(model), momentum=0.9, **options)


nesterov = partial(sgd, nesterov=True)


def adamw(model):
    return torch.optim.AdamW(groups_of(model), betas=(0.8, 0.95), eps=1e-6)


compare = partial(_torch_programs.compare, make=sgd, method="topk", hands_over=True)


def check_beside(name, *, said=None, steps=None, **options):
    """Check that a program trains as with the optimizer on dense gradients. ``said`` has the
    beginnings of the warnings about gradients that came through no compressor."""
    found = compare(name, **options)
    (stats,) = found.stats
    assert found.of_the_way < TOLERANCE, found.of_the_way
    assert found.is_alike or said, "what came through no compressor is each rank's own"
    is_dense = "ways" in options or DENSE.items() <= options.items() or name.endswith("alone")
    assert (stats["sparse_steps"] == 0) == is_dense, stats
    assert steps in (None, stats["steps"]), stats
    if said is not None:
        told = [text.startswith(begin) for text, begin in zip(found.said, said, strict=True)]
        assert all(told) and all("came through no compressor" in text for text in found.said)


def backward(model, step):
    draw = torch.Generator().manual_seed(100 * step + hvd.rank())
    inputs = torch.randn(16, 12, generator=draw)
    loss = nn.functional.mse_loss(model(inputs), inputs[:, :4].roll(1, dims=1))
    loss.backward()
    return loss


def train(model, optimizer, steps=EVERY, schedule=None):
    for step in steps:
        optimizer.zero_grad()
        loss = backward(model, step)
        assert optimizer.step(lambda loss=loss: loss) is loss
        if schedule is not None:
            schedule.step()


def scheduled(wrap):
    """Train with a schedule whose learning rate is 0 in one step. Horovod broadcasts the
    optimizer's state, for which it makes a step with zero gradients."""
    model = network()
    wrapped = wrap(model)
    if hasattr(wrapped._compression, "stats"):
        hvd.broadcast_optimizer_state(wrapped, root_rank=0)
    rates = torch.optim.lr_scheduler.LambdaLR(wrapped, lambda n: 0.0 if n == 3 else 1 / (1 + n))
    train(model, wrapped, schedule=rates)
    assert [group["weight_decay"] for group in wrapped.param_groups] == [0.1, 0.0]
    return model


for label, chosen in {
    "sgd": {},
    "sgd_summed": {"how": {"op": hvd.Sum}},
    "sgd_corrected": UNMASKED,
    "nesterov": {"make": nesterov},
    "sgd_on_a_dense_way": {"method": "auto", "ways": ("dense",)},
    "sgd_never_compressed": DENSE,
    "adamw_never_compressed": {"make": adamw, **DENSE},
}.items():
    cases[f"beside_dense_{label}"] = partial(check_beside, program=scheduled, **chosen)


@cases
def a_state_that_is_synchronized_later_moves_no_weight(name):
    """SGD without momentum has no state, so Horovod takes a step with zero gradients."""
    model = network()
    optimizer = torch.optim.SGD(groups_of(model))
    compressor, wrapped = handed_over(name, model, optimizer)
    train(model, wrapped, range(2))
    before = digest_of(model.parameters())
    CompressorStateHandler(compressor).sync()
    hvd.broadcast_optimizer_state(wrapped, root_rank=0)
    synchronized = digest_of(model.parameters())
    train(model, wrapped, range(2, 4))
    compressor.close()
    assert synchronized == before != digest_of(model.parameters())


@cases
def along_the_rate(name):
    """A rank whose learning rate is another is named where the density follows the rate."""
    model = network()
    optimizer = sgd(model)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    chosen = {"density": 0.1, "min_numel": 20, "allow_dense": False, "optimizer": optimizer}
    compressor = Compression.ldte_bs(
        model.named_parameters(), name=name, scheduler=schedule, steps=STEPS, **chosen
    )
    wrapped = distributed(name, model, optimizer, compressor)
    hvd.broadcast_optimizer_state(wrapped, root_rank=0)
    good = caught(train, model, wrapped, range(3), schedule)
    if hvd.rank() == 0:
        wrapped.param_groups[0]["lr"] = 0.5
    bad = caught(train, model, wrapped, range(1))
    compressor.close()
    assert good == "nothing was raised", good
    assert "the density follows the learning rate" in bad, bad
    assert hvd.rank() or "which is 0.5 on this rank" in bad, bad


def handed_over(name, model, optimizer, density=1.0, **options):
    compressor = Compression.topk(
        model.named_parameters(), density=density, name=name, optimizer=optimizer, **options
    )
    return compressor, distributed(name, model, optimizer, compressor)


def in_a_set_of_one_rank(name, process_set):
    def program(wrap):
        model = network()
        train(model, wrap(model))
        return model

    members = {"process_set": process_set}
    found = compare(name, program, make=nesterov, how=members, **members)
    assert found.of_the_way < TOLERANCE, found.of_the_way


@cases
def resumed_by_rank_0(name):
    """Resume a training in two ways. Every rank loads its compressor's state. The optimizer's state
    is loaded by every rank, or only by rank 0, which broadcasts it."""
    saved, digests = None, []
    for how in ("begun", "all", "rank 0"):
        model = network()
        place = f"{name}.{how}"
        compressor, wrapped = handed_over(place, model, sgd(model), 0.5, **SPARSE_ONLY)
        if saved is not None:
            if how == "all" or hvd.rank() == 0:
                model.load_state_dict(saved[0])
                wrapped.load_state_dict(saved[1])
            hvd.broadcast_parameters(model.state_dict(), root_rank=0)
            if how == "rank 0":
                hvd.broadcast_optimizer_state(wrapped, root_rank=0)
            compressor.load_state_dict(saved[2])
        train(model, wrapped, range(4) if saved is None else range(4, 8))
        states = model.state_dict(), wrapped.state_dict(), compressor.state_dict()
        saved = copy.deepcopy(states) if saved is None else saved
        digests.append(digest_of(model.parameters()))
        compressor.close()
    told = hvd.allgather_object(digests[1:], name=f"{name}.alike")
    assert all(each == 2 * [digests[1]] for each in told), told


BOUND = 0.25


def clipped(wrap, scaler=None):
    model, norms = network(), []
    wrapped = wrap(model)
    is_ours = hasattr(wrapped._compression, "stats")
    scaler = torch.amp.GradScaler("cpu", enabled=False) if scaler is None or not is_ours else scaler
    for step in range(STEPS):
        wrapped.zero_grad()
        draw = torch.Generator().manual_seed(step)
        scaler.scale(model(torch.randn(16, 12, generator=draw)).square().mean()).backward()
        wrapped.synchronize()
        scaler.unscale_(wrapped)
        if not is_ours:
            norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), BOUND)))
        with wrapped.skip_synchronize():
            scaler.step(wrapped)
        scaler.update()
    # Every step, or none, is clipped: the comparison would prove less.
    assert is_ours or min(norms) < BOUND < max(norms)
    return model


scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
for label, program, chosen in (
    ("sgd_scaled", partial(clipped, scaler=scaler), {"grad_scaler": scaler}),
    ("adamw", clipped, {"make": adamw, **DENSE}),
):
    clipping = {"program": program, "clip_grad_norm": BOUND, **chosen}
    cases[f"clipped_{label}"] = partial(check_beside, **clipping)


def thrown_away(wrap):
    model = network()
    optimizer = wrap(model)
    compressor = optimizer._compression
    for step in range(STEPS):
        optimizer.zero_grad()
        backward(model, step)
        optimizer.synchronize()
        if step % 3 != 1:
            with optimizer.skip_synchronize():
                optimizer.step()
        if step % 3 == 2 and hasattr(compressor, "stats"):
            compressor.load_state_dict(compressor.state_dict())
    return model


# The last step was not followed by another.
cases["thrown_away"] = partial(check_beside, program=thrown_away, steps=5 + 1, **UNMASKED)


@cases
def refused(name):
    def made(handed, model, **options):
        options["optimizer"] = handed(model)
        return Compression.topk(model.named_parameters(), density=0.1, name=name, **options)

    def of_horovod(model):
        return distributed(name, model, plain_sgd(model), hvd.Compression.none)

    def stepped(calls=None, through=None, run=train, **how):
        model = network()
        optimizer = sgd(model)
        clips = {"clip_grad_norm": BOUND} if how else {}
        compressor = made(lambda _: optimizer, model, **clips)
        calling = optimizer if calls is None else calls(model)
        wrapped = distributed(name, model, calling, through or compressor, **how)
        said = caught(run, model, wrapped, range(1))
        compressor.close()
        return said

    def twice(model, *_):
        backward(model, 0)
        backward(model, 1)

    mixed = caught(partial(compare, name, looks_up, **PLAIN["adamw"]))
    told = [
        [caught(made, of_horovod, network()), "is Horovod's already"],
        [caught(made, lambda m: list(m.parameters()), network()), "is list"],
        [stepped(sgd), "the SGD that calls the compressor is not the one"],
        [
            stepped(through=hvd.Compression.none),
            "gradients of the SGD do not come through the compressor",
        ],
        [mixed, "sparse_as_dense=True"],
        [stepped(groups=1), "groups is given to hvd.DistributedOptimizer"],
    ]
    check_refused(told)
    said = stepped(run=twice, backward_passes_per_step=1)
    assert "more than backward_passes_per_step times" in said  # Horovod's own error


@cases
def a_compiled_step_is_the_step(name):
    ends = []
    for is_compiled in (True, False):
        model = network()
        compressor, wrapped = handed_over(name, model, adamw(model), 0.1, min_numel=20)
        step = torch.compile(wrapped.step, backend="eager") if is_compiled else wrapped.step
        for number in range(3):
            wrapped.zero_grad()
            backward(model, number)
            step()
        ends.append(flat_parameters(model))
        compressor.close()
    assert torch.equal(*ends)


@cases
def an_update_that_is_sent_again_is_told_of(name):
    for is_zeroed, batches in ((True, 1), (False, 1), (True, 0)):
        model = network()
        compressor, wrapped = handed_over(name, model, adamw(model), 0.1, min_numel=20)
        with Heard() as said:
            for number in range(3):
                model.zero_grad(set_to_none=number < 1)
                backward(model, number)
                wrapped.step()
            assert not said, said
            if is_zeroed and batches:
                model[0].weight.grad.data.zero_()  # does not change the version
                model[0].bias.grad = model[2].weight.grad = model[2].bias.grad = None
            for number in range(batches):
                backward(model, 3 + number)
            wrapped.step()
        compressor.close()
        told = [text for text in said if "is sent a second time" in text]
        assert len(told) == (not (is_zeroed and batches)), said


class Looking(nn.Module):
    def __init__(self, rest):
        super().__init__()
        self.table = nn.Embedding(6, 4, sparse=True)
        self.rest = rest()

    def forward(self, step):
        return self.rest(self.table(torch.tensor([hvd.rank(), 2 + step % 3])))


linear = partial(nn.Linear, 4, 3)


def looks_up(wrap, rest=linear):
    model = Looking(rest)
    wrapped = wrap(model)
    is_ours = hasattr(wrapped._compression, "stats")
    if "betas" in wrapped.param_groups[0] and not is_ours:
        model.table.sparse = False  # torch's own Adam takes no sparse gradients
    if is_ours:  # sparse gradients behind the zeros with which Horovod fills a state
        hvd.broadcast_optimizer_state(wrapped, root_rank=0)
    for step in range(STEPS):
        wrapped.zero_grad()
        model(step).square().sum().backward()
        wrapped.step()
    return model


def plain_sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)


def plain_adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=0.02)


def unfreezes(wrap, adds_group=False):
    model = network()
    late = model[0]
    late.requires_grad_(False)
    wrapped = wrap(nn.ModuleList([model[2]]) if adds_group else model)
    for step in range(STEPS):
        if step == 3:
            late.requires_grad_(True)
            if adds_group:
                wrapped.add_param_group({"params": list(late.parameters())})
        wrapped.zero_grad()
        backward(model, step)
        wrapped.step()
    return model


# Adam before the selection is Adam only where nothing is selected.
PLAIN = {"sgd": {"make": plain_sgd, **UNMASKED}, "adamw": {"make": plain_adamw, **DENSE}}
looking = partial(partial, check_beside, program=looks_up, said=[])
cases["sparse_gradients"] = looking(**PLAIN["sgd"])
cases["sparse_gradients_alone"] = looking(
    program=partial(looks_up, rest=nn.Identity), **PLAIN["sgd"]
)
for kind, chosen in PLAIN.items():
    cases[f"sparse_gradients_as_dense_{kind}"] = looking(how={"sparse_as_dense": True}, **chosen)
    late = {"program": unfreezes, "said": ["tensor '0.weight'"], **chosen}
    cases[f"unfrozen_{kind}"] = partial(check_beside, **late)
    adds = {"program": partial(unfreezes, adds_group=True), "said": ["tensor of shape"]}
    cases[f"added_{kind}"] = partial(check_beside, **{**late, **adds})
