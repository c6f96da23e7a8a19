"""Committed bytes are read and written alike for ever."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from golden import contents

from hvd_sparse.registry import CODECS
from hvd_sparse.wire.frame import WIRE_VERSION
from hvd_sparse.wire.message import split_messages

FOLDER = Path(__file__).parent
PAYLOADS = FOLDER / "payloads"
MANIFEST = json.loads((PAYLOADS / "MANIFEST.json").read_text())
CURRENT = {file: entry for file, entry in MANIFEST.items() if entry["wire_version"] == WIRE_VERSION}
FRAMES = {file: entry for file, entry in CURRENT.items() if entry["kind"] == "frame"}
MESSAGES = {file: entry for file, entry in CURRENT.items() if entry["kind"] == "messages"}


def golden(file):
    """A missing file fails here; nothing in the tests writes one."""
    return (PAYLOADS / file).read_bytes()


def test_manifest_and_files_are_the_same_set():
    assert {path.name for path in PAYLOADS.glob("*.bin")} == set(MANIFEST)


@pytest.mark.parametrize("file", MANIFEST)
def test_files_are_the_bytes_that_were_committed(file):
    data = golden(file)
    assert (len(data), hashlib.sha256(data).hexdigest()) == (
        MANIFEST[file]["bytes"],
        MANIFEST[file]["sha256"],
    )


@pytest.mark.parametrize("codec", sorted(set(CODECS) - {"auto"}))
def test_every_codec_has_payloads_of_the_current_wire_version(codec):
    assert any(contents.codec_of(entry).id == codec for entry in FRAMES.values())


@pytest.mark.parametrize("file", CURRENT)
def test_the_package_still_writes_them_byte_for_byte(file):
    assert contents.write(CURRENT[file]) == golden(file)


@pytest.mark.parametrize("file", FRAMES)
def test_the_package_reads_frames_right(file):
    entry, frame = FRAMES[file], np.frombuffer(golden(file), np.uint8)
    contents.check_frame(contents.codec_of(entry), frame, entry["content"])


@pytest.mark.parametrize("file", MESSAGES)
def test_the_package_reads_messages_right(file):
    entry, data = MESSAGES[file], np.frombuffer(golden(file), np.uint8)
    messages = split_messages(data, range(len(entry["content"])))
    for message, content in zip(messages, entry["content"], strict=True):
        for name in ("rank", "step", "configuration", "error"):
            assert getattr(message, name) == content[name]
        frames = {str(position): frame for position, frame in message.frames.items()}
        assert set(frames) == set(content["frames"])
        for position, frame in frames.items():
            contents.check_frame(contents.codec_of(entry), frame, content["frames"][position])
