# SPDX-License-Identifier: Apache-2.0
"""Alters a .tfcc file, following docs/artifact.md: takes its code out, the targets from the manifest and the bytes from their
sections, or changes its texts; checksums are made right again, so that the file is refused for what it lacks alone."""
import struct

import xxhash

TARGETS = 10  # field of the manifest
CODE = 2      # kinds of sections
TEXT = 3


def checksum(data):
    return xxhash.xxh3_64_intdigest(bytes(data))


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def without_field(message, field):
    """A Protobuf message, whose fields are all length-delimited, without one of them."""
    out, at = b"", 0
    while at < len(message):
        start = at
        tag, at = varint(message, at)
        assert tag & 7 == 2
        size, at = varint(message, at)
        at += size
        if tag >> 3 != field:
            out += message[start:at]
    return out


def without_code(file):
    file = bytearray(file)
    offset, size = struct.unpack_from("<QQ", file, 24)
    sections, = struct.unpack_from("<I", file, 48)
    for i in range(sections):
        kind, _, begin, length = struct.unpack_from("<IIQQ", file, 64 + 32 * i)
        if kind == CODE:
            file[begin:begin + length] = bytes(length)
    manifest = without_field(bytes(file[offset:offset + size]), TARGETS)
    file[offset:] = manifest
    struct.pack_into("<QQQQ", file, 16, len(file), offset, len(manifest), checksum(manifest))
    table = bytes(file[64:64 + 32 * sections])
    struct.pack_into("<Q", file, 56, checksum(bytes(file[:56]) + table))
    return bytes(file)


def text_section(file):
    """Index of the text section, and where its bytes begin and end."""
    sections, = struct.unpack_from("<I", file, 48)
    for i in range(sections):
        kind, _, begin, length = struct.unpack_from("<IIQQ", file, 64 + 32 * i)
        if kind == TEXT:
            return i, begin, begin + length
    raise ValueError("no text section")


def with_texts(file, texts):
    """The file with other bytes, as many as before, in its text section."""
    file = bytearray(file)
    i, begin, end = text_section(file)
    assert len(texts) == end - begin
    file[begin:end] = texts
    struct.pack_into("<Q", file, 64 + 32 * i + 24, checksum(texts))
    sections, = struct.unpack_from("<I", file, 48)
    struct.pack_into("<Q", file, 56, checksum(bytes(file[:56]) + bytes(file[64:64 + 32 * sections])))
    return bytes(file)
