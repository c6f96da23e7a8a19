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
    entry, data = FRAMES[file], golden(file)
    expected = contents.normal(entry["content"])
    selection = contents.codec_of(entry).decode(np.frombuffer(data, np.uint8))
    assert contents.content_of(selection) == expected


@pytest.mark.parametrize("file", MESSAGES)
def test_the_package_reads_messages_right(file):
    entry, data = MESSAGES[file], golden(file)
    expected = list(map(contents.normal, entry["content"]))
    codec = contents.codec_of(entry)
    messages = split_messages(np.frombuffer(data, np.uint8), range(len(expected)))
    assert [contents.content_of_message(codec, message) for message in messages] == expected
