"""Compiles the device code for GPUs that this machine does not have, and prints properties of the
result.

``triton_ahead.py TARGET``, where TARGET is ``cuda:70`` to ``cuda:100`` for sm_70 to sm_100, or
``hip:gfx942`` for AMD.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import triton
from harness import LIMIT_S
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from hvd_sparse.kernels.triton import OPTIONS, device_code

KINDS = {
    "*i64": "table taken bases starts ranges addresses",
    "*i32": "owners places counts nonfinite nonzeros ordered_places indices",
    "*fp64": "sums most head",
    "i32": "parts steps blocks surplus",
}
"""Types of arguments, and the arguments of each type."""
KIND_OF = {name: kind for kind, names in KINDS.items() for name in names.split()}
OF_THE_DATA = {"cuts", "values", "ordered_values", "kept_back"}
FUSED = re.compile(r"\b(?:fma|mad)\.\S*f(?:32|64)\b")
WARPS = {"take_blocks": 8, "order_taken": 1}
HAVE_MOMENTS = ("take_blocks", "add_up_counts")
KERNELS = ("take_blocks", "add_up_counts", "order_taken", "assemble_blocks")


def source_of(kernel: str, dtype: str, *, looks: bool) -> ASTSource:
    function = getattr(device_code, kernel)
    constants = {"DTYPE": getattr(triton.language, dtype), "BLOCK": 4096, "IS_ALIGNED": True}
    constants |= {"HAS_MOMENTS": looks, "LANES": 16, "BACK": 1024}
    constants["CHUNK"] = {"order_taken": 64, "assemble_blocks": 128}.get(kernel, 1024)
    signature, here = {}, {}
    for name in function.arg_names:
        if name in constants:
            signature[name], here[name] = "constexpr", constants[name]
        elif name in OF_THE_DATA:
            signature[name] = {"float32": "*fp32", "float64": "*fp64"}[dtype]
        else:
            signature[name] = KIND_OF[name]
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, kind in enumerate(signature.values())
        if kind.startswith("*")
    }
    return ASTSource(fn=function, signature=signature, constexprs=here, attrs=aligned)


@triton.jit
def fused_on_purpose(values, BLOCK: triton.language.constexpr):
    """A kernel with a fused multiply-add, which Triton uses by default. The search must find it."""
    place = values + triton.language.arange(0, BLOCK)
    x = triton.language.load(place)
    triton.language.store(place, x * x + x)


def resources(cubin: bytes) -> str:
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(tool), "--dump-resource-usage", file.name]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=LIMIT_S)
    return done.stdout


def report(kernel: str, dtype: str, target: GPUTarget, *, looks: bool) -> dict[str, Any]:
    options = {"num_warps": WARPS.get(kernel, 4), **OPTIONS}
    compiled = triton.compile(source_of(kernel, dtype, looks=looks), target=target, options=options)
    if target.backend != "cuda":
        code = compiled.asm["amdgcn"]
        fused = re.findall(r"\bv_(?:pk_)?(?:fma|mac|fmac|mad)_f(?:32|64)\S*", code)
        spilled = re.findall(r"(?:scratch|spill_count): *(\d+)", code)
        return {"fused": fused, "flushed": [], "spilled": sum(map(int, spilled)), "wide": True}
    code = compiled.asm["ptx"]
    usage = resources(compiled.asm["cubin"])
    return {
        "fused": FUSED.findall(code),
        "flushed": re.findall(r"\S+\.ftz\S*", code),
        "spilled": sum(map(int, re.findall(r"(?:STACK|LOCAL):(\d+)", usage))),
        "wide": re.search(r"ld\.global\S*\.v[24]\.b\d+", code) is not None,
    }


def fused_operations(target: GPUTarget) -> list[str]:
    signature = {"values": "*fp32", "BLOCK": "constexpr"}
    source = ASTSource(fn=fused_on_purpose, signature=signature, constexprs={"BLOCK": 1024})
    return FUSED.findall(triton.compile(source, target=target).asm["ptx"])


def main(name: str) -> None:
    backend, arch = name.split(":")
    is_cuda = backend == "cuda"
    target = GPUTarget(backend, int(arch) if is_cuda else arch, 32 if is_cuda else 64)
    kinds = ("float32", "float64")
    found = {f"{k} {d}": report(k, d, target, looks=False) for k in KERNELS for d in kinds}
    for kernel in HAVE_MOMENTS:
        for kind in kinds:
            found[f"{kernel} {kind} with moments"] = report(kernel, kind, target, looks=True)
    on_purpose = fused_operations(target) if is_cuda else None
    print(json.dumps({"kernels": found, "fused on purpose": on_purpose}))


if __name__ == "__main__":
    main(*sys.argv[1:])
