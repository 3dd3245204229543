"""Damage to files: bytes of any kind, and values of JSON, JSON Lines and TOML."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from random import Random
from typing import Any

DEEP = 100_000
_HOLE = "@@hostile@@"
VALUES = (
    "NaN", "Infinity", "-Infinity", "1e999", "-1e999", "-1", "0", "-0", "1.5", "1e-320",
    "1" + "0" * 30, "-9223372036854775809", "18446744073709551616", "1208925819614629174706176",
    "7" * 400, "9" * 5000, "100000000", "null", "true", "false", '""', '" "', '"x"', '"\\ud800"',
    '"\\u0000"', '"' + "x" * 20_000 + '"', '"[red]x"', '"\\u001b[2J"', '"../../../../etc/passwd"',
    '"nan"', '"-1"', '"2026-13-45T99:99"', "[]", "{}", "[[]]", "[null]", '[{}]',
    '{"a": {"a": 1}, "a": 2}', "[" * DEEP, "[" * DEEP + "]" * DEEP,
    '{"a":' * 5000 + "1" + "}" * 5000, "[" + "0," * 20_000 + "0]",
)  # fmt: skip
"""JSON, and what readers take for it."""
TOML_VALUES = (
    "nan", "inf", "-inf", "1e999", "-1", "0", "0.0", "1.5", "7" * 400, "9" * 5000, "true", '""',
    '"x"', "[]", "{}", "2026-01-01", "[" * 5000, "[" * 500 + "]" * 500, '"' + "x" * 20_000 + '"',
    "'''a\nb'''", "0x7fffffffffffffffff", '["reference", ""]', '[""]',
    '["reference", "reference"]', "[nan]", '"\\u0000"', '"../../../etc"', "1e308",
    '"redis://127.0.0.1:9/0"', '"nosuchscheme://x"', "[[1]]", "{a = 1, b = {c = nan}}", "-0.0",
    "1e-320",
)  # fmt: skip


def flips(data: bytes, random: Random) -> bytes:
    """Flip some bits."""
    out = bytearray(data or b"\0")
    for _ in range(random.choice((1, 1, 3, 30))):
        out[random.randrange(len(out))] ^= 1 << random.randrange(8)
    return bytes(out)


def cut(data: bytes, random: Random) -> bytes:
    """Keep a beginning."""
    return data[: random.randrange(len(data) + 1)]


def insertion(data: bytes, random: Random) -> bytes:
    """Put bytes in the middle."""
    at = random.randrange(len(data) + 1)
    piece = random.choice(
        (b"\0", b"\xff\xfe", b"\r", b"\x1b[2J", b"\n\n", random.randbytes(40), b'"', b"\\")
    )
    return data[:at] + piece + data[at:]


def repetition(data: bytes, random: Random) -> bytes:
    """Repeat a part."""
    start = random.randrange(len(data) + 1)
    end = random.randrange(start, len(data) + 1)
    return data[:end] + data[start:end] * random.choice((1, 2, 50)) + data[end:]


def other_text(data: bytes, random: Random) -> bytes:
    """Write it in another encoding, or with other line ends."""
    text = data.decode("utf-8", "replace")
    kind = random.choice(
        ("utf-8-sig", "utf-16", "utf-16-le", "utf-32", "crlf", "cr", "latin-1", "cp037")
    )
    if kind in ("crlf", "cr"):
        return text.replace("\n", "\r\n" if kind == "crlf" else "\r").encode()
    return text.encode(kind, "replace")


def other_content(data: bytes, random: Random) -> bytes:
    """Put something else in its place."""
    del data
    return random.choice(
        (
            b"", b"\n" * 1000, b"\0" * 4096, b"null", b"[]", b"{}", b"3", b'"x"', b"NaN",
            b"[" * DEEP, b"{" * DEEP, b"\xff" * 100, b"\x1f\x8b", gzip.compress(b"{}"),
            b"\x7fELF" + bytes(60), b"PK\x03\x04", b"SQLite format 3\0", random.randbytes(2000),
            b"#!/bin/sh\ntouch executed\n", b"a = 1\n" * 3, b"<html>", b'{"a": 1}\n' * 3,
        )
    )  # fmt: skip


def bomb(data: bytes, random: Random) -> bytes:
    """Compress one line of 64 MiB."""
    del data
    return gzip.compress(random.choice((b"0", b"[", b" ", b"\0")) * (64 << 20), 1)


BYTES: tuple[Callable[[bytes, Random], bytes], ...] = (
    flips, cut, insertion, repetition, other_text, other_content,
)  # fmt: skip


def _places(data: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Collect every container with a key of it."""
    steps = data.items() if isinstance(data, dict) else enumerate(data)
    for key, value in steps:
        found.append((data, key))
        if isinstance(value, dict | list):
            _places(value, found)
    return found


def change_json(text: str, random: Random) -> str:
    """Change one place of a JSON text: another value, one key twice, a lost or unknown key."""
    try:
        data = json.loads(text)
    except ValueError:
        return text + "]"
    if not isinstance(data, dict | list) or not (places := _places(data, [])):
        return random.choice(VALUES)
    inside, key = random.choice(places)
    how = random.random()
    if how < 0.7:
        inside[key] = _HOLE
    elif how < 0.8:
        del inside[key]
    elif isinstance(inside, dict):
        inside[f"{key}{_HOLE}"] = _HOLE
    else:
        inside.extend(inside[:1] * random.choice((1, 300)))
    value = random.choice(VALUES)
    out = json.dumps(data).replace(f'"{_HOLE}"', value)
    return out.replace(_HOLE, "" if random.random() < 0.5 else "x")


def json_file(data: bytes, random: Random) -> bytes:
    """Change one value of a JSON file."""
    return change_json(data.decode(), random).encode("utf-8", "surrogatepass")


def json_lines(data: bytes, random: Random) -> bytes:
    """Change one line, or the lines' order and number."""
    lines = data.decode().splitlines()
    if not lines:
        return random.choice(VALUES).encode()
    index = random.randrange(len(lines))
    how = random.random()
    if how < 0.75:
        lines[index] = change_json(lines[index], random)
    elif how < 0.8:
        random.shuffle(lines)
    elif how < 0.85:
        del lines[index:]
    elif how < 0.9:
        lines.insert(index, random.choice(VALUES))
    else:
        lines[index:index] = [lines[index]] * random.choice((1, 100))
    return "\n".join([*lines, ""]).encode("utf-8", "surrogatepass")


def toml_file(data: bytes, random: Random) -> bytes:
    """Change one line of a TOML file: its value, its key, or how often it is there."""
    lines = data.decode().splitlines()
    index = random.choice([i for i, line in enumerate(lines) if line.strip()] or [0])
    key, equals, _ = lines[index].partition("=")
    how = random.random()
    if equals and how < 0.75:
        lines[index] = f"{key}= {random.choice(TOML_VALUES)}"
    elif how < 0.85:
        lines.insert(index, lines[index])
    elif how < 0.95:
        lines[index] = re.sub(r"\w+", lambda m: m[0] + "x", lines[index], count=1)
    else:
        del lines[index]
    return "\n".join([*lines, ""]).encode()


STRUCTURED: dict[str, Callable[[bytes, Random], bytes]] = {
    ".json": json_file,
    ".jsonl": json_lines,
    ".toml": toml_file,
}


def damaged(name: str, data: bytes, random: Random) -> bytes:
    """Damage a file by what its name says it is: seven times in ten a value of its format."""
    if name.endswith(".gz"):
        if random.random() < 0.1:
            return bomb(data, random)
        if random.random() < 0.6:
            return gzip.compress(damaged(name[:-3], gzip.decompress(data), random), 1)
    structured = STRUCTURED.get("." + name.rpartition(".")[2])
    if structured and random.random() < 0.7:
        return structured(data, random)
    return random.choice(BYTES)(data, random)
