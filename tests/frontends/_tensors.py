"""Tools of the workers with PyTorch, for programs with and without Horovod."""

import hashlib

import torch


def flat_parameters(model):
    return torch.cat([parameter.detach().double().reshape(-1) for parameter in model.parameters()])


def digest_of(tensors):
    digest = hashlib.sha256()
    for each in tensors:
        flat = torch.as_tensor(each).detach().flatten()
        whole = flat.clone(memory_format=torch.contiguous_format)  # one entry may have stride 0
        digest.update(whole.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def give_gradients(gradients):
    """Make a backward pass after which each parameter has exactly the given gradient."""
    sum((parameter * gradient).sum() for parameter, gradient in gradients.items()).backward()
