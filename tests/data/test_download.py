"""Downloads from a local server: complete, resumed, changed in between, missing."""

import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from resid import InputError
from resid.data.download import download

CONTENT = bytes(range(256)) * 20_000


class Server(ThreadingHTTPServer):
    """Serves CONTENT as /file; `breaks` connections break half-way, `busy` are refused, `log` keeps the requested ranges."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.content, self.version, self.breaks, self.busy, self.log = CONTENT, '"one"', 0, 0, []

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_port}/sub/file"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server = self.server
        if server.busy:
            server.busy -= 1
            self.send_error(503)
            return
        if not self.path.endswith("/file"):
            self.send_error(404, "Not here")
            return
        asked = self.headers.get("Range")
        server.log.append(asked)
        start = 0
        if asked and self.headers.get("If-Range") == server.version:
            start = int(re.match(r"bytes=(\d+)-", asked)[1])
        if start >= len(server.content):
            self.send_error(416)
            return
        body = server.content[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        if server.version:
            self.send_header("ETag", server.version)
        self.end_headers()
        if server.breaks:
            server.breaks -= 1
            self.wfile.write(body[: len(body) // 2])
            self.connection.close()
            return
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_complete_download(server, tmp_path):
    path = download(server.address, tmp_path / "raw")
    assert path.read_bytes() == CONTENT
    assert names(tmp_path / "raw") == ["file"]
    server.content = b"other"
    assert download(server.address, tmp_path / "raw").read_bytes() == CONTENT  # it is there already
    assert server.log == [None]


def test_a_broken_connection_is_resumed(server, tmp_path):
    server.breaks = 2
    assert download(server.address, tmp_path).read_bytes() == CONTENT
    half = len(CONTENT) // 2
    assert server.log == [None, f"bytes={half}-", f"bytes={half + half // 2}-"]
    assert names(tmp_path) == ["file"]


def test_a_second_call_resumes_the_first(server, tmp_path):
    server.breaks = 1
    with pytest.raises(InputError, match=r"cannot be reached or stopped responding .* again to resume"):
        download(server.address, tmp_path, attempts=1)
    assert names(tmp_path) == [".file.partial", ".file.version"]
    assert download(server.address, tmp_path).read_bytes() == CONTENT
    assert server.log[-1] == f"bytes={len(CONTENT) // 2}-"


def test_a_changed_file_is_downloaded_again(server, tmp_path):
    server.breaks = 1
    with pytest.raises(InputError):
        download(server.address, tmp_path, attempts=1)
    server.content, server.version = CONTENT[::-1], '"two"'
    assert download(server.address, tmp_path).read_bytes() == CONTENT[::-1]


def test_without_a_version_nothing_is_resumed(server, tmp_path):
    server.version, server.breaks = None, 1
    assert download(server.address, tmp_path).read_bytes() == CONTENT
    assert server.log == [None, None]


def test_a_partial_file_that_is_too_long_is_downloaded_again(server, tmp_path):
    (tmp_path / ".file.partial").write_bytes(CONTENT + b"more")
    (tmp_path / ".file.version").write_text('"one"')
    assert download(server.address, tmp_path).read_bytes() == CONTENT


def test_a_busy_server_is_asked_again(server, tmp_path):
    server.busy = 3
    assert download(server.address, tmp_path).read_bytes() == CONTENT


def test_no_such_file(server, tmp_path):
    with pytest.raises(InputError, match="the server returned 404 Not here; check the name"):
        download(server.address + "s", tmp_path)


def test_no_network(tmp_path):
    with pytest.raises(InputError, match=r"127\.0\.0\.1 cannot be reached .*check the network"):
        download("http://127.0.0.1:1/file", tmp_path)
    with pytest.raises(InputError, match="only http and https"):
        download("file:///etc/passwd", tmp_path)
