"""No secret reaches the console, a record, a report or the list of processes."""

from __future__ import annotations

import html
import json
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.live import Live

from kvproof.harness import redaction
from kvproof.harness.cli.output import standard_output
from kvproof.harness.redaction import redacted, redacted_bytes, redacted_tree
from kvproof.suites.tests.cli.cli_kit import Done, here, refused
from kvproof.suites.tests.probe.probe_url_server import scripted

SECRET = "hunter2\"&'é/key"
"""Written differently by JSON, HTML, Python, URLs and shells."""
QUICK = ("--target", "reference", "--units", "1", "--output", "record")


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    yield
    redaction.begin([], {})


def nowhere(secret: str, done: Done, folder: Path, *, but: str = "") -> None:
    """The secret is in no output and in no file but the one that gave it."""
    forms = (secret, json.dumps(secret)[1:-1], html.escape(secret))
    files = [each for each in folder.rglob("*") if each.is_file() and each.name != but]
    texts = {str(each): each.read_bytes().decode(errors="replace") for each in files}
    texts |= {"out": done.out, "err": done.err}
    found = [name for name, text in texts.items() if any(form in text for form in forms)]
    assert not found, done


def test_a_live_display_shows_no_secret(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as in a terminal
    redaction.begin(["--token", SECRET], {})
    console = standard_output()
    with Live(console=console, refresh_per_second=0.1):
        console.print(f"it is {SECRET}!", markup=False, highlight=False)
    out = capsys.readouterr().out
    assert "it is ***!" in out
    assert SECRET not in out


# --- a secret on the command line is refused ---

ON_COMMAND_LINES = [
    (("serve", "--model", "symbolic", "--api-key", "hunter2x"), "KVPROOF_API_KEY"),
    (("serve", "--model", "symbolic", "--api-key=hunter2x"), "--api-key-file"),
    (("serve", "--model", "symbolic", "--remote", "redis://u:hunter2x@h"), "remote-secret-file"),
    (("probe", "127.0.0.1:9", "--api-key", "hunter2x"), "KVPROOF_PROBE_KEY"),
    (("probe", "http://me:hunter2x@127.0.0.1:9"), "in a file"),
    (("probe", "127.0.0.1:9", "--against", "http://me:hunter2x@h"), "in a file"),
    (("fuzz", "--database", "redis://:hunter2x@h", *QUICK), "--database-secret-file"),
    (("fuzz", "--database=redis://h?password=hunter2x", *QUICK), "KVPROOF_REDIS_PASSWORD"),
    (("fuzz", "--database", "postgres://me:hunter2x@h", *QUICK), "KVPROOF_REDIS_PASSWORD"),
    (("fuzz", "--ray", "ray://:hunter2x@h:1", *QUICK), "in a file"),
    (("sweep", "--ray", "ray://:hunter2x@h:1"), "in a file"),
    (("eval", "longbench-v2", "--config", "c", "--url", "off=http://a:hunter2x@h"), "in a file"),
    (("cache-server", "--memory", "1GiB", "--address", "tcp://:hunter2x@127.0.0.1:1"), "in a file"),
    (("cache-server", "--memory", "1GiB", "--token", "hunter2x"), "in a file"),
]


@pytest.mark.parametrize(("words", "hint"), ON_COMMAND_LINES)
def test_a_secret_on_the_command_line_is_refused(
    words: tuple[str, ...], hint: str, tmp_path: Path
) -> None:
    done = here(*words, cwd=tmp_path)
    refused(done, "on the command line", hint)
    nowhere("hunter2x", done, tmp_path)


def test_a_command_after_the_dashes_is_the_engines_own(tmp_path: Path) -> None:
    words = ("record", "--output", "r", "--", "nosuchcommand", "--api-key", "hunter2x")
    done = here(*words, cwd=tmp_path)
    assert done.code == 2
    nowhere("hunter2x", done, tmp_path)


# --- secrets from elsewhere are used, and not written ---


def test_the_key_of_a_probe_is_in_no_output(tmp_path: Path) -> None:
    key = tmp_path / "key.txt"
    key.write_text("hunter2-key\n")
    with scripted(key="hunter2-key") as server:
        words = ("probe", server.url, "--max-requests", "20", "--output", "record")
        given = here(*words, "--api-key-file", "key.txt", cwd=tmp_path)
        other = here(*words[:-1], "b", cwd=tmp_path, KVPROOF_PROBE_KEY="hunter2-key")
    assert "Report:" in given.out
    assert "Report:" in other.out
    nowhere("hunter2-key", given, tmp_path, but="key.txt")
    nowhere("hunter2-key", other, tmp_path, but="key.txt")


@contextmanager
def echoing_redis() -> Iterator[str]:
    """A server whose refusal repeats the password, as some do."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_refuse, args=(listener,), daemon=True).start()
        yield f"redis://127.0.0.1:{listener.getsockname()[1]}/0"


def _refuse(listener: socket.socket) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection:
            while data := connection.recv(4096):
                asked = data.decode().split("\r\n")
                connection.sendall(f"-WRONGPASS {' '.join(asked)} is wrong\r\n".encode())


def test_an_error_of_a_client_library_repeats_no_password(tmp_path: Path) -> None:
    pytest.importorskip("redis", reason="the extra redis is not installed")
    with echoing_redis() as url:
        words = ("fuzz", "--database", url, *QUICK)
        done = here(*words, cwd=tmp_path, KVPROOF_REDIS_PASSWORD=SECRET)
    refused(done, "refuses the password", "--database-secret-file")
    assert redaction.HIDDEN in done.err
    nowhere(SECRET, done, tmp_path)


def test_a_settings_file_has_no_password(tmp_path: Path) -> None:
    (tmp_path / "kvproof.toml").write_text('[campaign]\ndatabase = "redis://:hunter2x@h/0"\n')
    done = here("fuzz", *QUICK, cwd=tmp_path)
    refused(done, "has a password in it", "KVPROOF_REDIS_PASSWORD")
    nowhere("hunter2x", done, tmp_path, but="kvproof.toml")


def test_the_variables_and_commands_of_an_evaluation_are_in_no_output(tmp_path: Path) -> None:
    launch = [sys.executable, "-c", "import os,sys;print(os.environ['HF_TOKEN'],sys.argv);exit(1)"]
    server = f"""
[server]
launch = {json.dumps([*launch, "--api-key", "hunter2-launch"])}
environment = {{ HF_TOKEN = "hunter2-variable" }}
ready_within = 5
"""
    names = ("off", "on", "off again")
    configurations = "".join(
        f'[[configuration]]\nname = "{name}"\ncontrol = {str(name == "off again").lower()}\n'
        for name in names
    )
    (tmp_path / "eval.toml").write_text(server + configurations)
    words = ("eval", "longbench-v2", "--config", "eval.toml", "--output", "record")
    done = here(*words, cwd=tmp_path)
    assert (tmp_path / "record" / "run.json").exists(), done
    for secret in ("hunter2-launch", "hunter2-variable"):
        nowhere(secret, done, tmp_path, but="eval.toml")
    again = here(*words, cwd=tmp_path)
    assert "holds another run" not in again.err


# --- the function ---


@pytest.mark.parametrize(
    "written",
    [SECRET, json.dumps({"a": SECRET}), html.escape(SECRET), repr({"a": SECRET})],
)
def test_every_form_of_a_secret_is_hidden(written: str) -> None:
    redaction.learn(SECRET)
    assert "hunter2" not in redacted(written)
    assert b"hunter2" not in redacted_bytes(written.encode())


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("redis://:pw@host:1/0 fails", "redis://:***@host:1/0 fails"),
        ("redis://me:p/w@host", "redis://me:***@host"),
        ("redis://host?password=pw&db=1", "redis://host?password=***&db=1"),
        ("redis://me@host:1", "redis://me@host:1"),
        ("http://127.0.0.1:8000/v1 of me@x", "http://127.0.0.1:8000/v1 of me@x"),
    ],
)
def test_passwords_of_urls_are_hidden_without_being_known(text: str, shown: str) -> None:
    assert redacted(text) == shown


def test_ordinary_words_and_short_secrets_stay() -> None:
    redaction.learn("pass", "")
    assert redacted("verdict: pass") == "verdict: pass"


def test_values_of_secret_names_are_hidden_whole() -> None:
    found = redacted_tree({"HF_TOKEN": "x", "tokens": "y", "list": [{"api-key": "z"}]})
    assert found == {"HF_TOKEN": "***", "tokens": "y", "list": [{"api-key": "***"}]}
