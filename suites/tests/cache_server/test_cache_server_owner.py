"""A client gives its token to no server that another user may have started."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("zmq", reason="the extra server is not installed")

import zmq

from kvproof.reference.cache_server.address import AddressError, Claim, default_address, parse
from kvproof.reference.cache_server.client import connect
from kvproof.reference.cache_server.connection import CacheServerGone
from kvproof.suites.tests.cli.cli_kit import here, refused

TOKEN = "0123456789abcdef-token"
STRANGER = 12345
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root gives files to other users")


class Rogue:
    """A server that only takes what is sent to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.socket = zmq.Context.instance().socket(zmq.ROUTER)
        self.socket.bind(f"ipc://{path}")

    def got(self) -> bool:
        return bool(self.socket.poll(300, zmq.POLLIN))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "run"
    made.mkdir(mode=0o700)
    return made


@pytest.fixture
def rogue(folder: Path) -> Iterator[Rogue]:
    made = Rogue(folder / "a.sock")
    made.path.chmod(0o700)
    yield made
    made.socket.close(0)


def open_folder(rogue: Rogue) -> None:
    rogue.path.parent.chmod(0o777)


def sticky_folder(rogue: Rogue) -> None:
    rogue.path.parent.chmod(0o1777)


def foreign_group(rogue: Rogue) -> None:
    os.chown(rogue.path.parent, -1, STRANGER)
    rogue.path.parent.chmod(0o770)


def foreign_folder(rogue: Rogue) -> None:
    os.chown(rogue.path.parent, STRANGER, -1)


def foreign_socket(rogue: Rogue) -> None:
    os.chown(rogue.path, STRANGER, -1)


def open_socket(rogue: Rogue) -> None:
    rogue.path.chmod(0o777)


@pytest.mark.parametrize(
    ("attack", "message"),
    [
        (open_folder, "other users can write to the folder"),
        (sticky_folder, "other users can write to the folder"),
        pytest.param(foreign_group, "other users can write to the folder", marks=as_root),
        pytest.param(foreign_folder, "the folder .* belongs to another user", marks=as_root),
        pytest.param(foreign_socket, "the socket .* belongs to another user", marks=as_root),
        (open_socket, "is open to other users"),
    ],
)
def test_a_stranger_gets_no_token(
    attack: Callable[[Rogue], None], message: str, rogue: Rogue, tmp_path: Path
) -> None:
    attack(rogue)
    with pytest.raises(AddressError, match=message):
        connect(f"ipc://{rogue.path}", token=TOKEN)
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    words = ("--address", f"ipc://{rogue.path}", "--token-file", str(token), "--timeout", "0.2")
    refused(here("cache-server", "status", *words, cwd=tmp_path), "user")
    assert not rogue.got()


def test_a_server_of_this_user_gets_it(rogue: Rogue) -> None:
    """The control: without an attack the message arrives."""
    with connect(f"ipc://{rogue.path}", token=TOKEN, timeout=0.3) as client:
        with pytest.raises(CacheServerGone):
            client.heartbeat()
        assert rogue.got()


def test_what_comes_later_in_its_place_gets_no_token_either(folder: Path) -> None:
    path = folder / "a.sock"
    with connect(f"ipc://{path}", token=TOKEN, timeout=2.0) as client:
        folder.chmod(0o777)
        with pytest.raises(CacheServerGone, match="other users can write"):
            client.heartbeat()
        folder.chmod(0o700)


def test_a_file_that_is_no_socket_is_refused(folder: Path) -> None:
    (folder / "a.sock").write_text("")
    with pytest.raises(AddressError, match="is no socket"):
        connect(f"ipc://{folder / 'a.sock'}")


def test_a_server_does_not_listen_where_others_can_write(folder: Path) -> None:
    folder.chmod(0o777)
    with (
        pytest.raises(AddressError, match="other users can write"),
        Claim(parse(f"ipc://{folder / 'a.sock'}")),
    ):
        pytest.fail("it has the address")


def test_the_default_is_in_a_folder_of_the_users_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/h")
    assert default_address() == "ipc:///h/.cache/kvproof/kvproof-cache.sock"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert default_address() == f"ipc://{tmp_path}/kvproof-cache.sock"


def test_an_address_without_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AddressError, match="cannot be used: No such file"):
        connect(f"ipc://{tmp_path / 'no' / 'a.sock'}")
