"""``hvd-sparse doctor``: what is there, what is used of it, and what each missing package costs."""

import re
import sys

import pytest
from harness import ROOT
from installed import has_triton, with_triton
from plain import run_plain
from programs import run_python

from hvd_sparse.cli import doctor
from hvd_sparse.cli.doctor import EXTRAS, TESTED

OF_DEVELOPERS = ("fuzz", "dev", "docs", "release")
OF_WRITERS = ("tensorboard", "wandb", "mlflow")
"""Whoever names one in ``telemetry=`` is told there what it needs."""


def test_doctor_knows_what_every_extra_brings():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    section = text.partition("[project.optional-dependencies]\n")[2].partition("\n[")[0]
    extras = dict(re.findall(r"^(\w+) = \[(.*)\]$", section, re.MULTILINE))
    brought = {
        (re.match(r"[\w-]+", package)[0], extra)
        for extra, listed in extras.items()
        if extra not in (*OF_DEVELOPERS, *OF_WRITERS)
        for package in re.findall(r'"([^"]+)"', listed)
    }
    assert {(package, extra) for package, (extra, _) in EXTRAS.items()} == brought


def test_where_only_numpy_is_it_says_what_is_used_and_what_each_missing_package_costs(tmp_path):
    plain = run_plain(tmp_path, "doctor")
    assert plain.returncode == 1 and plain.stderr == "", plain.stderr  # no frontend can be used
    assert re.search(r"^engine +numpy, because numba is not ", plain.stdout, re.MULTILINE)
    assert re.search(r"^checksums +zlib$", plain.stdout, re.MULTILINE)
    assert re.search(r"^numba +-$", plain.stdout, re.MULTILINE)
    for package, (extra, cost) in EXTRAS.items():
        assert f"    {package:<12} {cost}: pip install 'hvd-sparse[{extra}]'\n" in plain.stdout
    # Both in one process end in a segmentation fault.
    (line,) = re.findall(r"^    triton .*hvd-sparse\[gpu\].*$", plain.stdout, re.MULTILINE)
    assert "beside Horovod for TensorFlow, triton crashes" in line


def test_the_versions_that_it_knows_as_tested_are_those_of_the_stacks():
    scripts = ROOT / "scripts"
    lists = [scripts / "versions.txt", *(scripts / "stacks").glob("*.txt")]
    pins = "\n".join(path.read_text(encoding="utf-8") for path in lists)
    for package, versions in TESTED.items():
        assert set(versions) == set(re.findall(rf"^{package}==(\d+\.\d+)", pins, re.MULTILINE))


def test_a_version_that_was_not_tested_is_told_with_those_that_were(monkeypatch, capsys):
    versions = {"tensorflow": "2.20.1", "torch": "2.13.5+cpu"}
    monkeypatch.setattr(doctor, "_version_of", versions.get)
    monkeypatch.setattr(doctor, "_loads", lambda *_: False)
    assert doctor.run(None) == 1
    told = re.findall(r"^ +(\S+) +(\S+); tested: .+$", capsys.readouterr().out, re.MULTILINE)
    assert told == [("tensorflow", "2.20.1")]


def test_an_engine_that_does_not_load_is_told_with_its_reason(tmp_path):
    broken = tmp_path / "site" / "numba"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('numpy is too new')\n")
    done = run_plain(tmp_path, "doctor")
    said = r"(?m)^engine +numba cannot be loaded: numpy is too new; .*engine='numpy'$"
    assert re.search(said, done.stdout)


def test_a_frontend_that_does_not_load_is_told_with_its_reason(monkeypatch, capsys):
    def import_module(_):
        raise OSError("libcudart.so: cannot open shared object file")

    monkeypatch.setattr(doctor, "_version_of", lambda _: "2.13")
    monkeypatch.setattr(doctor.importlib, "import_module", import_module)
    assert doctor.run(None) == 1
    said = "hvd_sparse.torch: cannot be used: OSError: libcudart.so: cannot open shared object file"
    assert said in capsys.readouterr().out


def test_tensorflow_of_another_distribution_is_found(tmp_path, monkeypatch):
    about = tmp_path / "tensorflow_cpu-2.21.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Name: tensorflow-cpu\nVersion: 2.21.0\n")
    (about / "top_level.txt").write_text("tensorflow\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert [doctor._version_of(name) for name in ("tensorflow", "torch")] == ["2.21.0", None]


@pytest.mark.full
def test_where_all_is_installed_it_says_what_is_used_and_misses_nothing():
    for package in ("numba", "isal", "horovod.torch", "horovod.tensorflow"):
        pytest.importorskip(package, reason="all must be installed", exc_type=ImportError)
    if not has_triton():
        pytest.skip("all must be installed")
    done = run_python("-m", "hvd_sparse", "doctor", **with_triton())
    assert done.returncode == 0, done.stderr
    assert re.search(r"^engine +numba, compiled$", done.stdout, re.MULTILINE)
    assert re.search(r"^checksums +isal$", done.stdout, re.MULTILINE)
    assert re.search(r"^(numba|isal) +\d", done.stdout, re.MULTILINE)
    assert "missing" not in done.stdout
    assert "hvd_sparse.torch: ready" in done.stdout
