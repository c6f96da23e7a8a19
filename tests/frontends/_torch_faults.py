"""Faults of PyTorch alone: changes before ``synchronize``, and compressors of one rank."""

from functools import partial

import _torch_cases as fw
import horovod.torch as hvd
import torch
from _common import Cases, Scripted, caught
from _framework import compress, fails
from torch import nn

from hvd_sparse.torch import Compression

cases = Cases()
WIDTH = 6


def small_model():
    """Return the same model on every rank. Its first parameters, with the last gradients, are
    1-D."""
    torch.manual_seed(9)
    return nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, 3))


def optimize(model, compressor):
    descent = torch.optim.SGD(model.parameters(), lr=0.1)
    return fw.distributed(compressor.name, model, descent, compressor)


def trainee(name, **options):
    model = small_model()
    compressor = compress(model.named_parameters(), name=name, **options)
    return model, compressor, optimize(model, compressor)


def step_of(model, optimizer, change=None):
    def take():
        model.zero_grad()
        model(torch.randn(5, WIDTH)).pow(2).mean().backward()
        if change is not None:
            change(model, optimizer)
        optimizer.step()

    return take


def clip(model, _):
    nn.utils.clip_grad_norm_(model.parameters(), 0.001)


def residuals_of(compressor):
    tensors = compressor.state_dict()["tensors"]
    return {key: fw.digest_of([tensor["arrays"]["residual"]]) for key, tensor in tensors.items()}


def changed(name, *, change, **options):
    """A step whose gradients the program changes before ``synchronize`` leaves no trace."""
    model, compressor, optimizer = trainee(name, **options)
    for _ in range(2):
        step_of(model, optimizer)()
    before = residuals_of(compressor)
    said = caught(step_of(model, optimizer, change))
    is_kept = residuals_of(compressor) == before
    fw.forget_step(optimizer)
    for _ in range(2):
        step_of(model, optimizer)()
    steps = compressor.stats()["steps"]
    compressor.close()
    result = {"raised": said, "is_usable": fw.is_usable(name)}
    assert is_kept and steps == 4, steps
    return result


cases["changed_by_clipping"] = partial(changed, change=clip)
cases["changed_in_an_exchange_of_two_phases"] = partial(changed, change=clip, exchange="oktopk")
cases["changed_in_dense_steps"] = partial(changed, change=clip, density=1.0, allow_dense=True)


@cases
def changed_where_auto_sends_float16(name):
    model = small_model()
    compressor = Compression.auto(model.named_parameters(), name=name, min_numel=1, ways=("fp16",))
    compressor._policy.trial = Scripted(["fp16"])
    return fails(name, compressor, step_of(model, optimize(model, compressor), clip))


def alone(name, **options):
    """A rank that changes gradients alone leaves nobody waiting."""
    model, compressor, optimizer = trainee(name, **options)
    step_of(model, optimizer)()
    first = caught(step_of(model, optimizer, clip if fw.last_rank() else None))
    fw.forget_step(optimizer)
    result = fails(name, compressor, step_of(model, optimizer))
    assert first.startswith("ChangedGradient: " if fw.last_rank() else "nothing was raised"), first
    return result


cases["alone_clipped"] = alone
cases["alone_clipped_in_an_exchange_of_two_phases"] = partial(alone, exchange="oktopk")


def unknown_in_phases(name, *, keys, **options):
    """A rank that does not know a gradient takes part in all phases of all messages. Each tensor
    has its own message, and no rank has a gradient of ``frozen``."""
    variables = fw.make_variables(dict.fromkeys(("early", "middle", "late", "frozen"), (8, 9)))
    variables |= fw.make_variables({"bias": (8,)})
    variables["frozen"].requires_grad_(False)
    copies = fw.make_variables({key: variables[key].shape for key in keys})
    known = {**variables, **(copies if fw.last_rank() else {})}
    groups = [[key] for key in known if key != "bias"]
    compressor = compress(fw.params_of(known), name=name, groups=groups, **options)
    del variables["frozen"]
    reduce, said, watched = fw.Reducer(compressor, variables), [], []
    refuse = compressor._driver.refuse

    def refuse_noted(ticket):
        watched.extend(compressor.watchdog.ledger.pending())
        refuse(ticket)

    compressor._driver.refuse = refuse_noted
    for _ in range(2):
        gradients = {key: torch.randn(each.shape) for key, each in variables.items()}
        said.append(caught(reduce, gradients))
        reduce.forget()
    compressor.close()
    assert not watched, "the watchdog would end this rank before its error"
    return {"raised": min(said), "is_usable": fw.is_usable(name) and len(set(said)) == 1}


for exchange in ("gtopk", "oktopk", "shared_index"):
    in_phases = partial(unknown_in_phases, exchange=exchange)
    cases[f"unknown_in_{exchange}"] = partial(in_phases, keys=["middle"])
    cases[f"unknown_late_and_bias_in_{exchange}"] = partial(in_phases, keys=["late", "bias"])


def frozen_delays_none(name, *, keys):
    """The bias is dense. If its gradient comes last, no message tells the others, and they exchange
    no message of the frozen tensor."""
    variables = fw.make_variables({key: (8,) if key == "bias" else (8, 9) for key in keys})
    variables["frozen"].requires_grad_(False)
    known = {**variables, **(fw.make_variables({"bias": (8,)}) if fw.last_rank() else {})}
    compressor = compress(fw.params_of(known), name=name, groups=[["early"]], exchange="oktopk")
    del variables["frozen"]
    gradients = {key: torch.ones(each.shape) for key, each in variables.items()}
    said = caught(fw.Reducer(compressor, variables), gradients)
    result = fw.is_usable(name)
    compressor.close()
    is_told = fw.last_rank() or keys[0] == "early"
    assert said.startswith("PeerFailure: " if is_told else "nothing was raised"), said
    return result


for keys in (("bias", "early", "frozen"), ("early", "bias", "frozen")):
    cases[f"frozen_tensors_delay_no_error_with_{keys[0]}_first"] = partial(
        frozen_delays_none, keys=keys
    )


def again(name, *, batches, **options):
    """A reduced gradient is sent a second time, by itself or with a new gradient."""
    model = small_model()
    descent = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    compressor = compress(model.named_parameters(), name=name, optimizer=descent, **options)
    optimizer = fw.distributed(name, model, descent, compressor)

    def send(_, optimizer):
        optimizer.synchronize()
        if batches > 1:
            model(torch.randn(5, WIDTH)).pow(2).mean().backward()

    step_of(model, optimizer)()
    result = fails(name, compressor, step_of(model, optimizer, send))
    fw.forget_step(optimizer)
    return result


cases["again_without_skip_synchronize"] = partial(again, batches=1)
cases["again_with_a_second_batch"] = partial(again, batches=2)
cases["again_in_phases"] = partial(again, batches=1, exchange="oktopk", groups=3)


@cases
def difference_of_compressors(name):
    model = small_model()
    theirs = chosen = compress(model.named_parameters(), name=name)
    if fw.last_rank():
        chosen = compress(model.named_parameters(), name=f"{name}.besides")
    result = fails(name, chosen, step_of(model, optimize(model, chosen)))
    theirs.close()
    return result


@cases
def outlived_by_its_optimizer(name):
    """Another optimizer gets parameters that still have the hooks of an earlier one."""
    model, compressor, forgotten = trainee(name)
    step_of(model, forgotten)()
    compressor.close()
    second = compress(model.named_parameters(), name=name)
    return fails(name, second, step_of(model, optimize(model, second)))


@cases
def converted_after_the_compressor_was_made(name):
    model = fw.make_variables({"early": (8, 9), "late": (8, 9)})
    compressor = compress(fw.params_of(model), name=name)
    optimizer = fw.optimizer_without_motion(model, compressor)
    for parameter in model.values():
        parameter.data = parameter.data.double()

    def step():
        fw.give_gradients({p: torch.ones(8, 9, dtype=torch.float64) for p in model.values()})
        optimizer.step()

    return fails(name, compressor, step)


# -- ranks that wait for each other elsewhere, while some of them rest at their last gradient ------

STEPS = 4


def _trained(name, freezes=None):
    variables = fw.make_variables({"early": (8, 9), "late": (8, 9)})
    if freezes is not None:
        variables[freezes].requires_grad_(False)
    compressor = compress(fw.params_of(variables), name=name)
    return variables, compressor, fw.optimizer_without_motion(variables, compressor)


def _draw(variables, step):
    generator = torch.Generator().manual_seed(100 * step + hvd.rank())
    return {each: torch.randn(each.shape, generator=generator) for each in variables.values()}


@cases
def pauses_of_two_optimizers_in_another_order(name):
    both = [_trained(f"{name}.{number}") for number in range(2)]
    for step in range(STEPS):
        # at first they shake hands
        for model, _, optimizer in both[:: -1 if step and fw.last_rank() else 1]:
            optimizer.zero_grad()
            fw.give_gradients(_draw(model, step))
        for _, _, optimizer in both:
            optimizer.step()
    # docs/adr/0022: some rank's rest was in vain, and all went on.
    models, compressors, _ = zip(*both)
    vain = [compressor._wait._skipped for compressor in compressors]
    steps = {compressor.stats()["steps"] for compressor in compressors}
    for compressor in compressors:
        compressor.close()
    digest = fw.digest_of([each.grad for model in models for each in model.values()])
    told = hvd.allgather_object((digest, vain), name=f"{name}.told")
    assert steps == {STEPS} and len({digest for digest, _ in told}) == 1
    assert any(skipped for _, vain in told for skipped in vain)


@cases
def frozen_parameters(name):
    """A rank rests at its last gradient."""
    model, compressor, optimizer = _trained(name, freezes="early")
    rests, take, step = [], compressor._wait.take, 0

    def counted(*asked):
        rests.append(step)
        take(*asked)

    compressor._wait.take = counted
    for step in range(STEPS):
        optimizer.zero_grad()
        fw.give_gradients({model["late"]: _draw(model, step)[model["late"]]})
        optimizer.step()
    compressor.close()
    assert rests == list(range(STEPS)), rests


@cases
def a_step_is_given_up(name):
    """The loss scale falls after a step whose gradients were compressed but not requested, and
    nothing is left of the old one."""
    scales = [8.0, 2.0]
    model = fw.make_variables({"early": (8, 9), "late": (8, 9)})
    compressor = compress(
        fw.params_of(model), name=name, density=1.0, grad_scaler=lambda: scales[0]
    )
    for step in range(2):
        drawn = _draw(model, step)
        sent = []
        for key, parameter in model.items():
            parameter.grad = drawn[parameter] * scales[0]
            sent.append((key, *compressor.compress(parameter.grad)))
        if step == 0:
            scales.pop(0)
            continue
        for key, wire, context in sent:
            reduced = hvd.allreduce(wire, name=f"{name}.{key}")
            compressor.decompress(reduced, context)
    tensors = compressor.state_dict()["tensors"]
    compressor.close()
    assert [context.scale for _, _, context in sent] == [2.0, 2.0]
    assert not any(each["arrays"]["residual"].any() for each in tensors.values())
