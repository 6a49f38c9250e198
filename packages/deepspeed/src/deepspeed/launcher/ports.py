"""The rendezvous port of a job, claimed before any rank starts."""

from __future__ import annotations

import errno
import socket
import sys

from deepspeed.launcher.errors import LaunchError


class PortClaim:
    """Holds a port for the ranks of one job until closed.

    On Linux the port stays bound, but not listened on, by this process: rank 0 can bind and listen
    beside it (both sockets set SO_REUSEADDR, as every TCPStore does), while the kernel gives it to
    nobody who asks for a free one. An abstract socket of the same number, unique on the machine,
    tells two launchers apart that were given the same port. Elsewhere the port is only tested.

    Args:
        port: None takes a free one.
        origin: where a given port comes from, for the message.
    """

    def __init__(self, port: int | None = None, *, origin: str = "--master_port") -> None:
        self._sockets: list[socket.socket] = []
        self.port = self._take_free() if port is None else self._take(port, origin)

    def _take_free(self) -> int:
        for _ in range(100):
            holder = _bound(0)
            port: int = holder.getsockname()[1]
            self._sockets.append(holder)
            if self._mark(port):
                self._leave_bindable()
                return port
        raise LaunchError("no free port found on this machine; give one with --master_port")

    def _take(self, port: int, origin: str) -> int:
        try:
            with _bound(port) as probe:
                probe.listen()  # fails while anybody else listens
            self._sockets.append(_bound(port))
        except OSError as error:
            self.close()
            if error.errno == errno.EADDRINUSE:
                reason = "another program on this machine listens on it"
            else:
                reason = error.strerror or str(error)
            raise LaunchError(
                f"{origin} {port}: {reason}; give a free port, or none to have one chosen"
            ) from None
        if not self._mark(port):
            self.close()
            raise LaunchError(
                f"{origin} {port}: another job on this machine holds it;"
                " give a free port, or none to have one chosen"
            )
        self._leave_bindable()
        return port

    def _mark(self, port: int) -> bool:
        if sys.platform != "linux":
            return True
        mark = socket.socket(socket.AF_UNIX)
        try:
            mark.bind(f"\0deepspeed.master_port.{port}")
        except OSError:
            mark.close()
            return False
        self._sockets.append(mark)
        return True

    def _leave_bindable(self) -> None:
        if sys.platform != "linux":  # there a bound port cannot be bound a second time
            self.close()

    def close(self) -> None:
        """Let the port go."""
        while self._sockets:
            self._sockets.pop().close()

    def __enter__(self) -> PortClaim:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _bound(port: int) -> socket.socket:
    holder = socket.socket(socket.AF_INET)
    try:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("", port))
    except OSError:
        holder.close()
        raise
    return holder
