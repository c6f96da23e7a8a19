"""The listener: a TCP port on which the other ranks ask this one what it is doing.

One thread serves it, which no caller can hold up.  A question is one line: the listener's secret,
then JSON.  Until all of the secret has arrived a caller is a stranger: nothing that it says is
parsed, and its connection is closed at the first 32 bytes that are another secret, after
``PATIENCE_S`` seconds, or when ``MOST_STRANGERS`` others have called since.  So garbage, half lines
and idle connections cost a rank neither its thread nor the answers that it owes the others.
"""

from __future__ import annotations

import hmac
import json
import logging
import os
import secrets
import selectors
import socket
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

LONGEST_LINE = 1 << 24
"""Bytes that a caller may send who knows the secret."""
PATIENCE_S = 10.0
"""Seconds in which a line must arrive, in either direction."""
MOST_STRANGERS = 64
TOKEN_BYTES = 32
CHUNK_BYTES = 1 << 16
PAUSE_S = 0.1
"""Seconds before another try, where the system has no file descriptor left."""

Line = dict[str, Any]
"""A question or an answer.  Any, as it is JSON that another process has sent."""
Answering = Callable[[Line], Line]

logger = logging.getLogger("hvd_sparse")

_OPEN: weakref.WeakSet[Listener] = weakref.WeakSet()


@dataclass(eq=False)
class _Caller:
    """A connection, with the bytes that have arrived on it and those still to send."""

    connection: socket.socket
    hangs_up_at_s: float
    heard: bytearray = field(default_factory=bytearray)
    reply: memoryview | None = None
    is_stranger: bool = True


class Listener:
    """Answer the other ranks' questions in a thread of its own, until it is closed.

    Parameters
    ----------
    answer : function from a question to a JSON-able answer; called in the listener's thread

    Attributes
    ----------
    port : TCP port on which it listens
    token : secret with which a question begins
    """

    def __init__(self, answer: Answering) -> None:
        self._answer = answer
        self._is_closed = False
        self._socket = socket.create_server(("", 0))
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]
        self.token = secrets.token_hex(TOKEN_BYTES // 2)
        self._callers: dict[socket.socket, _Caller] = {}
        # poll has no descriptor of its own, as epoll has, which a forked child would share
        self._selector = selectors.PollSelector()
        self._selector.register(self._socket, selectors.EVENT_READ)
        _OPEN.add(self)
        threading.Thread(target=self._serve, name="hvd_sparse listener", daemon=True).start()

    def close(self) -> None:
        """Refuse questions from now on."""
        self._is_closed = True
        try:
            # the port refuses from now on, and the thread wakes up and closes the socket; closing
            # it here would leave the thread polling a number that may be another file's by then
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            self._socket.close()

    def leave_to_parent(self) -> None:
        """Close the sockets in a forked child: the port is the parent's, and must be free when the
        parent ends."""
        self._socket.close()
        for connection in self._callers:
            connection.close()

    # -- the thread -------------------------------------------------------------------------------

    def _serve(self) -> None:
        while not self._is_closed:
            for key, _ in self._selector.select(self._next_end_s()):
                if key.data is None:
                    self._welcome()
                else:
                    self._attend(key.data)
            for caller in [
                each for each in self._callers.values() if each.hangs_up_at_s <= time.monotonic()
            ]:
                self._hang_up(caller)
        for caller in list(self._callers.values()):
            self._hang_up(caller)
        self._socket.close()

    def _next_end_s(self) -> float | None:
        if not self._callers:
            return None
        return max(
            0.0, min(caller.hangs_up_at_s for caller in self._callers.values()) - time.monotonic()
        )

    def _welcome(self) -> None:
        try:
            connection, _ = self._socket.accept()
        except (BlockingIOError, ConnectionError):  # the caller has gone again
            return
        except OSError:  # closed, or no descriptor is left: hanging up on strangers frees some
            self._make_room(0)
            time.sleep(0.0 if self._is_closed else PAUSE_S)
            return
        connection.setblocking(False)
        self._make_room(MOST_STRANGERS - 1)
        caller = self._callers[connection] = _Caller(connection, time.monotonic() + PATIENCE_S)
        self._selector.register(connection, selectors.EVENT_READ, caller)

    def _make_room(self, most: int) -> None:
        # oldest first, as a dict keeps the order of insertion
        strangers = [caller for caller in self._callers.values() if caller.is_stranger]
        for caller in strangers[: max(0, len(strangers) - most)]:
            self._hang_up(caller)

    def _attend(self, caller: _Caller) -> None:
        if caller.connection not in self._callers:
            return  # hung up on since the selector saw it
        try:
            is_over = self._listen_to(caller) if caller.reply is None else self._reply_to(caller)
        except BlockingIOError:
            return
        except OSError:
            is_over = True
        if is_over:
            self._hang_up(caller)

    def _listen_to(self, caller: _Caller) -> bool:
        """Read what has arrived; tell whether the connection is over."""
        wanted = TOKEN_BYTES - len(caller.heard) if caller.is_stranger else CHUNK_BYTES
        said = caller.connection.recv(wanted)
        caller.heard += said
        if caller.is_stranger and len(caller.heard) == TOKEN_BYTES:
            if not hmac.compare_digest(bytes(caller.heard), self.token.encode()):
                return True
            caller.is_stranger = False
        if not said or len(caller.heard) > LONGEST_LINE:
            return True
        if caller.is_stranger or not caller.heard.endswith(b"\n"):
            return False
        caller.reply = memoryview(self._answer_to(bytes(caller.heard[TOKEN_BYTES:])))
        self._selector.modify(caller.connection, selectors.EVENT_WRITE, caller)
        return not caller.reply

    def _answer_to(self, line: bytes) -> bytes:
        """Return the answer to a question, as bytes; none if it cannot be answered."""
        try:
            return json.dumps(self._answer(json.loads(line))).encode() + b"\n"
        except Exception:  # this thread must go on, whatever a caller has sent
            logger.warning("another rank's question could not be answered", exc_info=True)
            return b""

    def _reply_to(self, caller: _Caller) -> bool:
        assert caller.reply is not None
        caller.reply = caller.reply[caller.connection.send(caller.reply) :]
        return not caller.reply

    def _hang_up(self, caller: _Caller) -> None:
        del self._callers[caller.connection]
        self._selector.unregister(caller.connection)
        caller.connection.close()


def _close_in_child() -> None:
    for listener in list(_OPEN):
        listener.leave_to_parent()


os.register_at_fork(after_in_child=_close_in_child)
