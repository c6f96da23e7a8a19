"""A language model of two LSTM layers and a small transformer, parameter by parameter."""

from __future__ import annotations

from benchmarks.architectures._parameters import NORM_FLOPS, Parameter, linear

VOCABULARY = 10_000


def lstm(width: int = 1500, tokens: int = 35) -> list[Parameter]:
    """Return the parameters of the large LSTM of Zaremba et al. 2014.

    It has 2 layers of 1,500 and a softmax over 10,000 words: 66,034,000 entries.
    """
    parameters = [Parameter("embedding.weight", (VOCABULARY, width), float(width * tokens))]
    for layer in range(2):
        for part in ("weight_ih", "weight_hh"):
            shape = (4 * width, width)
            parameters.append(
                Parameter(f"lstm.{part}_l{layer}", shape, 2.0 * 4 * width * width * tokens)
            )
        for part in ("bias_ih", "bias_hh"):
            parameters.append(
                Parameter(f"lstm.{part}_l{layer}", (4 * width,), float(4 * width * tokens))
            )
    return [*parameters, *linear("decoder", width, VOCABULARY, tokens)]


def transformer(width: int = 256, depth: int = 6, tokens: int = 64) -> list[Parameter]:
    """Return the parameters of a transformer of six encoder layers of width 256.

    With a softmax over 10,000 words it has 9,884,944 entries.
    """
    parameters = [
        Parameter("positions", (tokens, width), float(width * tokens)),
        Parameter("embedding.weight", (VOCABULARY, width), float(width * tokens)),
    ]
    for layer in range(depth):
        name = f"encoder.layers.{layer}"
        # products with keys and with values, which by convention count with this parameter
        attention = 2 * 2.0 * width * tokens**2
        shape = (3 * width, width)
        parameters += [
            Parameter(
                f"{name}.self_attn.in_proj_weight",
                shape,
                2.0 * 3 * width * width * tokens + attention,
            ),
            Parameter(f"{name}.self_attn.in_proj_bias", (3 * width,), float(3 * width * tokens)),
            *linear(f"{name}.self_attn.out_proj", width, width, tokens),
            *linear(f"{name}.linear1", width, 4 * width, tokens),
            *linear(f"{name}.linear2", 4 * width, width, tokens),
        ]
        flops = NORM_FLOPS / 2 * width * tokens
        parameters += [
            Parameter(f"{name}.{p}.{q}", (width,), flops)
            for p in ("norm1", "norm2")
            for q in _AFFINE
        ]
    return [*parameters, *linear("decoder", width, VOCABULARY, tokens)]


_AFFINE = ("weight", "bias")
