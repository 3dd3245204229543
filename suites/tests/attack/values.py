"""Hostile values for options, by their type."""

from __future__ import annotations

from random import Random

from kvproof.suites.tests.attack.line import Option

SECRET = "hunter2-attack-s3cr3t"
"""Planted in keys, passwords and URLs; no output may contain it."""
LONG = 3000

NUMBERS = (
    "nan", "NaN", "inf", "-inf", "Infinity", "1e999", "-1e999", "-0.0", "1e-320", "0x10", "1_000",
    "١٢", "½", "1,5", "1.5.5", "--1", "+-1", "1e", "\u0663.\u0665", "1e5000",
)  # fmt: skip
WHOLE = ("-1", "0", "-9223372036854775809", "9223372036854775808", "4294967296", "1" + "0" * 30)
TEXTS = (
    "", " ", "\t", "\n", "x", ",", ",,", ":", "=", "-", "--", "-x", "--x=", "%s", "{}",
    "{0.__class__}", "[red]x[/red]", "[/]", "\x1b[2J", "\u202egpj", "\udcff", "\U0001f4a9",
    "../../../etc/passwd", "~", "$HOME", "`id`", "$(id)", "'", '"', "None", "null", "true", "[]",
    "{\"a\": 1}", "@file", "*", "?", "nan", "-1", "1e999", "a:b", "a:b:c", "::", "http://",
    "http://[::1", "http://127.0.0.1:99999/v1", "http://127.0.0.1:-1", "http://user@:/",
    "redis://", "redis://127.0.0.1:9/x", "redis://127.0.0.1:notaport/0", "nosuchscheme://host/0",
    "file:///etc", "ipc://", "ipc:///nowhere/at/all/x.sock", "tcp://127.0.0.1:1",
    "tcp://999.999.999.999:1", "vllm==", "==1", "vllm==../../x", "reference==1", "json:loads",
    "os:system", "kvproof:", "shared-prefix:requests=nan", "shared-prefix:requests=-1",
    "shared-prefix:length=1e999", "uniform:requests=99999999999999999999", "agents:depth=0",
    "multi-turn:turns=", "shared-prefix:requests=2,requests=3", "full,window:0", "window:-1",
    "state:nan", "full,,full", "1GiB", "-1GiB", "0GiB", "nanGiB", "999999999999TiB", "1e9GiB",
    "10XB", "0s", "-5s", "nans", "1e99h", "99999999999999999999h", "0,0", "0,nan", "page=",
    "page=nan", "=1", "page=1,,2", "owner/", "/", "owner/repo/x", "select", "select * from",
    "drop table runs", "a=b=c", "off=", "=http://x",
)  # fmt: skip
PATHS = (
    "", ".", "..", "/", "/dev/null", "/dev/full", "/proc/self/mem", "/proc/1/environ",
    "nowhere/below", "dangling", "loop", "file.txt/below", "folder", "~", "-", "x" * 300,
    "a/" * 2000 + "x", "\udcff\udcfe", "new\nline", "[red]", "/proc/none/below", "unreadable",
    "unreadable/below",
)  # fmt: skip
NEVER = {"float": NUMBERS[:7], "int": (*NUMBERS[:7], "", "x", "1.5", "1e3", "½")}
"""Type -> values that no option of it accepts: they must be refused."""


def _huge(random: Random) -> str:
    return random.choice("19") * random.choice((400, 5000, 20000))


def _text(random: Random) -> str:
    pick = random.random()
    if pick < 0.05:
        return "x" * LONG
    if pick < 0.1:
        return "".join(chr(random.randrange(1, 0x2FFF)) for _ in range(random.randrange(40)))
    if pick < 0.2:
        return with_secret(random)
    return random.choice(TEXTS)


def with_secret(random: Random) -> str:
    """Return a URL with a password in it."""
    scheme = random.choice(("redis", "rediss", "http", "https", "postgres", "tcp", "unix"))
    place = random.choice(("127.0.0.1:9", "localhost:1", "nowhere.invalid", "[::1]:9", "h:x"))
    end = random.choice(("", "/0", "/v1", "/?x=1"))
    return random.choice(
        (
            f"{scheme}://user:{SECRET}@{place}{end}",
            f"{scheme}://:{SECRET}@{place}{end}",
            f"{scheme}://{place}/?password={SECRET}",
        )
    )


def hostile(option: Option, random: Random) -> tuple[str, bool]:
    """Return a value for an option, and whether it must be refused in any case."""
    if option.is_secret:
        return SECRET, False
    if option.choices:
        return random.choice((*option.choices, *TEXTS[:8], "PR", option.choices[0] + "x")), False
    for kind in ("float", "int"):
        if kind in option.kind:
            if random.random() < 0.5:
                return random.choice(NEVER[kind]), True
            return random.choice((*WHOLE, *NUMBERS, _huge(random))), False
    if option.is_path:
        return random.choice(PATHS), False
    return _text(random), False
