"""Processes of a launch say where they were when they died, or when they were asked."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
from harness import RESULTS, launch_environment, read_stacks, write_stacks

DIES = """
import ctypes, threading

def idle():
    threading.Event().wait()

def dies():
    ctypes.string_at(0)

threading.Thread(target=idle, daemon=True).start()
dies()
"""
HANGS = """
import threading

def hangs():
    print("here", flush=True)
    threading.Event().wait()

hangs()
"""


def start(program: str, folder, **more) -> subprocess.Popen:
    environment = {**os.environ, **launch_environment(), "HOROVOD_RANK": "3", RESULTS: str(folder)}
    return subprocess.Popen([sys.executable, "-c", program], env=environment, **more)


def test_a_process_that_dies_of_a_signal_leaves_the_stacks_of_all_its_threads(tmp_path):
    process = start(DIES, tmp_path)
    assert process.wait() < 0
    stacks = read_stacks(tmp_path)
    assert f"stacks of 3.{process.pid}\n" in stacks
    assert "Segmentation fault" in stacks
    assert "in dies" in stacks and "in idle" in stacks


@pytest.mark.skipif(shutil.which("cc") is None, reason="native stacks need a C compiler")
def test_the_native_stack_of_the_thread_that_died_is_among_them(tmp_path):
    start(DIES, tmp_path).wait()
    assert "libffi" in read_stacks(tmp_path)


def test_a_process_that_hangs_is_asked_for_its_stacks_and_lives_on(tmp_path):
    with start(HANGS, tmp_path, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        write_stacks(tmp_path)
        assert process.poll() is None
        process.kill()
    assert "in hangs" in read_stacks(tmp_path)


def test_files_of_processes_that_have_ended_and_of_others_with_their_number_are_left_alone(
    tmp_path,
):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        (tmp_path / f"0.{other.pid}.stacks").touch()  # the signal would end it
        start("", tmp_path).wait()
        write_stacks(tmp_path)
        other.communicate(b"\n")
    assert other.returncode == 0
    assert read_stacks(tmp_path) == ""
