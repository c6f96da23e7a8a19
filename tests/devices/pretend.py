"""The pretend device, which simulates a device in host memory. Compiles ``pretend.cpp`` once on a
machine, and registers the device with torch.

Loading it changes torch for the whole process, so only workers load it.
"""

import fcntl
import hashlib
import os
import subprocess
import sysconfig
from pathlib import Path

import torch
from harness import LIMIT_S
from torch.utils import cpp_extension

SOURCE = Path(__file__).with_name("pretend.cpp")
NAME = "pretend"
COMPILER = os.environ.get("HVD_SPARSE_CXX", "g++")


def compiled():
    """Return the path of the library, compiled once for each source, torch and compiler."""
    version = subprocess.run(
        [COMPILER, "-dumpfullversion"], check=True, capture_output=True, text=True, timeout=LIMIT_S
    ).stdout
    key = hashlib.sha256(f"{torch.__version__} {version}".encode() + SOURCE.read_bytes())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hvd-sparse"
    library = cache / "pretend" / f"{key.hexdigest()[:16]}.so"
    library.parent.mkdir(parents=True, exist_ok=True)
    with open(library.parent / "lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # ranks and tests that come together compile once
        if not library.exists():
            _compile(library.with_suffix(".partial"))
            library.with_suffix(".partial").rename(library)
    return library


def _compile(library):
    folders = [*cpp_extension.include_paths(), sysconfig.get_path("include")]
    includes = [f"-isystem{path}" for path in folders]
    flags = ["-std=c++20", "-O1", "-g0", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    links = [f"-L{path}" for path in cpp_extension.library_paths()] + ["-ltorch_cpu", "-lc10"]
    command = [COMPILER, *flags, *includes, str(SOURCE), *links, "-o", str(library)]
    subprocess.run(command, check=True, timeout=LIMIT_S)


class Module:
    """The module ``torch.pretend``, with the functions that torch requires of a device's module."""

    default: torch.Stream

    def is_available(self):
        return True

    def is_initialized(self):
        return True

    def _is_in_bad_fork(self):
        return False

    def device_count(self):
        return 1

    def current_device(self):
        return 0

    def manual_seed_all(self, seed):
        """Do nothing, because no random numbers are drawn on the device."""

    def default_stream(self, device=None):
        return self.default

    def synchronize(self, device=None):
        torch.accelerator.synchronize()


def load():
    torch.ops.load_library(compiled())
    torch.utils.rename_privateuse1_backend(NAME)
    module, device = Module(), torch.device(NAME, 0)
    torch._register_device_module(NAME, module)
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=False)
    module.default = torch.accelerator.current_stream(device)
    return device


def late(on):
    """Delay non-blocking copies until the program waits for them."""
    torch.ops.pretend.late(on)


def waits():
    return int(torch.ops.pretend.waits())


def reused():
    """Return the number of pinned buffers that were changed before the device had read them."""
    return int(torch.ops.pretend.reused())
