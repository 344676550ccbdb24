"""TLS in front of a server that has none: the wheel's Valkey is built without it."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

CERTIFICATES = Path(__file__).resolve().parents[1] / "data" / "tls"
CA = CERTIFICATES / "ca.pem"


class TlsProxy:
    """Listens on a loopback port with the test certificate, and passes what it hears on to `port`."""

    def __init__(self, port: int) -> None:
        self._upstream = ("127.0.0.1", port)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(CERTIFICATES / "server.pem")
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.connections = 0
        self._sockets: list[socket.socket] = [self._listener]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                plain, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(plain,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, plain: socket.socket) -> None:
        try:
            secure = self._context.wrap_socket(plain, server_side=True)
        except (OSError, ssl.SSLError):  # a client that speaks no TLS, or does not trust us
            plain.close()
            return
        self.connections += 1
        server = socket.create_connection(self._upstream)
        self._sockets += [secure, server]
        back = threading.Thread(target=self._pump, args=(server, secure))
        back.start()
        self._pump(secure, server)
        back.join()
        secure.close()
        server.close()

    @staticmethod
    def _pump(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError):
            while data := source.recv(65536):
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for end in self._sockets:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        for thread in self._threads:
            thread.join(5)
