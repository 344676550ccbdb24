"""A small HTTP server that speaks enough of the Hub for huggingface_hub's own client to list and download files.

Repositories are dictionaries of path to bytes at named commits. Large files are answered with a redirect, as the
Hub does; private repositories want a token. Point a client at it with `HF_ENDPOINT`.
"""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote, urlsplit

LARGE = ".safetensors"  # files that the Hub keeps apart and redirects to


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    authorization: str | None


@dataclass
class Repository:
    """Files by commit, and the commit that each branch or tag means."""

    commits: dict[str, dict[str, bytes]]
    refs: dict[str, str]
    token: str | None = None


@dataclass
class HubStandIn:
    """The server; `requests` holds every request that it has seen."""

    repositories: dict[str, Repository]
    requests: list[Request] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def asked_for(self) -> set[str]:
        """Paths of the files that a client wanted, be it to see what they are or to have them."""
        return {
            request.path.split("/resolve/")[1].partition("/")[2]
            for request in self.requests
            if "/resolve/" in request.path
        }


def _handler_of(hub: HubStandIn) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is the base class's
            """Say nothing: what was asked is in `hub.requests`."""

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def _answer(self, with_body: bool) -> None:
            path = unquote(urlsplit(self.path).path)
            hub.requests.append(Request(self.command, path, self.headers.get("Authorization")))
            if path.startswith("/blobs/"):
                status, headers, body = HTTPStatus.OK, {}, _blob(hub.repositories, path.rpartition("/")[2])
            else:
                status, headers, body = _respond(hub.repositories, path, self.headers.get("Authorization"))
            self.send_response(status)
            if "Location" in headers:  # on another host, as the Hub's: the client then follows a GET, but no HEAD
                headers["Location"] = f"http://localhost:{self.server.server_port}{headers['Location']}"
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if with_body:
                self.wfile.write(body)

    return Handler


Response = tuple[HTTPStatus, dict[str, str], bytes]


def _respond(repositories: dict[str, Repository], path: str, authorization: str | None) -> Response:
    parts = path.strip("/").split("/")
    name = "/".join(parts[2:4] if parts[:2] == ["api", "models"] else parts[:2])
    rest = parts[4:] if parts[:2] == ["api", "models"] else parts[2:]
    repository = repositories.get(name)
    if repository is None or (repository.token and authorization != f"Bearer {repository.token}"):
        return _refused(HTTPStatus.UNAUTHORIZED, "RepoNotFound")
    revision = rest[1] if len(rest) > 1 else "main"
    commit = repository.refs.get(revision, revision)
    files = repository.commits.get(commit)
    if files is None:
        return _refused(HTTPStatus.NOT_FOUND, "RevisionNotFound")
    match rest[:1]:
        case [] | ["revision"]:
            listed = [{"rfilename": file} for file in files]
            return _json({"id": name, "modelId": name, "sha": commit, "private": False, "tags": [], "siblings": listed})
        case ["tree"]:
            return _json([_entry(file, content) for file, content in files.items()])
        case ["resolve"] if (file := "/".join(rest[2:])) in files:
            return _file(file, files[file], commit)
    return _refused(HTTPStatus.NOT_FOUND, "EntryNotFound")


def _file(name: str, content: bytes, commit: str) -> Response:
    digest = _digest(content)
    headers = {"ETag": f'"{digest}"', "X-Repo-Commit": commit}
    if not name.endswith(LARGE):
        return HTTPStatus.OK, headers, content
    linked = {"X-Linked-Etag": f'"{digest}"', "X-Linked-Size": str(len(content)), "Location": f"/blobs/{digest}"}
    return HTTPStatus.FOUND, {**headers, **linked}, b""


def _entry(name: str, content: bytes) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "file", "path": name, "size": len(content), "oid": _digest(content)[:40]}
    if name.endswith(LARGE):
        entry["lfs"] = {"oid": _digest(content), "size": len(content), "pointerSize": 130}
    return entry


def _blob(repositories: dict[str, Repository], digest: str) -> bytes:
    contents = (
        content
        for repository in repositories.values()
        for files in repository.commits.values()
        for content in files.values()
    )
    return next(content for content in contents if _digest(content) == digest)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _json(value: object) -> Response:
    return HTTPStatus.OK, {"Content-Type": "application/json"}, json.dumps(value).encode()


def _refused(status: HTTPStatus, code: str) -> Response:
    return status, {"X-Error-Code": code, "Content-Type": "application/json"}, b'{"error": "refused"}'
