"""Committed bytes are read and written alike for ever, also by an independent reader."""

import ast
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from golden import contents, decoder

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
def test_package_and_decoder_read_frames_right(file):
    entry, data = FRAMES[file], golden(file)
    expected = contents.selection_of(entry["content"])
    selection = contents.codec_of(entry).decode(np.frombuffer(data, np.uint8))
    assert selection.numel == expected.numel
    assert selection.indices.tolist() == expected.indices.tolist()
    assert (selection.values.dtype, selection.values.tobytes()) == (
        expected.values.dtype,
        expected.values.tobytes(),
    )
    assert decoder.read_frame(data) == contents.frame_of(entry["content"])


@pytest.mark.parametrize("file", MESSAGES)
def test_package_and_decoder_read_messages_right(file):
    entry, data = MESSAGES[file], golden(file)
    codec, expected = (
        contents.codec_of(entry),
        [contents.message_of(content) for content in entry["content"]],
    )
    assert decoder.read_messages(data) == expected
    for got, wanted in zip(
        split_messages(np.frombuffer(data, np.uint8), range(len(expected))), expected
    ):
        frames = [
            decoder.read_frame(codec.encode(codec.decode(frame)).tobytes())
            for frame in got.frames.values()
        ]
        assert (got.rank, got.step, got.configuration, got.error) == (
            wanted.rank,
            wanted.step,
            wanted.configuration,
            wanted.error,
        )
        assert dict(zip(got.members, frames)) == wanted.frames


@pytest.mark.parametrize("file", ["decoder.py", "bodies.py"])
def test_the_decoder_is_its_own(file):
    for node in ast.walk(ast.parse((FOLDER / file).read_text())):
        names = [node.module] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        assert set(names) <= {"__future__", "struct", "zlib", "dataclasses", "golden"}
