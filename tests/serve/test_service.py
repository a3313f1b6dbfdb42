"""`resid serve` as a process: start, keys, swaps under load, awkward clients, and the end by SIGTERM."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from resid import load
from tests.serve.conftest import ADMIN, KEY, running


def test_keys(models, tmp_path):
    (tmp_path / "keys").write_text(f"# clients\n{KEY}\n{ADMIN} admin\n")
    with running(models / "popularity", f"--api-key-file={tmp_path / 'keys'}", RESID_API_KEY="e" * 16) as service:
        for headers in ({}, {"X-API-Key": "wrong"}, {"X-API-Key": KEY[:-1]}, {"X-API-Key": "é" * 32}):
            for path in ("/version", "/metrics", "/openapi.json", "/items", "/nothing"):
                answer = service.get(path, headers={name: value.encode() for name, value in headers.items()})
                assert answer.status_code == 401, path
                assert set(answer.json()) == {"detail"}
        for path in ("/", "/page/page.js", "/health/live", "/health/ready"):
            assert service.get(path).status_code == 200
        for key in (KEY, ADMIN, "e" * 16):
            assert service.get("/version", headers={"X-API-Key": key, "host": "shop.example"}).status_code == 200
        assert service.post("/reload", headers={"X-API-Key": KEY}).status_code == 403
        assert service.post("/reload", headers={"X-API-Key": ADMIN}).json() == {"changed": {"popularity": False}}
        scheme = service.get("/openapi.json", headers={"X-API-Key": KEY}).json()["components"]["securitySchemes"]
        assert scheme["APIKeyHeader"]["name"] == "X-API-Key"
        assert service.stop() == 0
        assert KEY not in "".join(service.lines)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["popularity", "--host=0.0.0.0"], "needs API keys"),
        (["popularity", "--api-key-file=short"], "at least 16"),
        (["popularity", "--api-key-file=empty"], "no API key"),
        (["popularity", "--port=99999"], "cannot listen"),
        (["popularity", "--max-k=0"], "'max_k'"),
        (["data"], "is a Dataset"),
    ],
)
def test_refuses_to_start(models, arguments, said, tmp_path, monkeypatch, capsys):
    from resid.cli import main

    (tmp_path / "short").write_text("abc\n")
    (tmp_path / "empty").write_text("# nothing\n")
    monkeypatch.chdir(tmp_path)
    assert main(["serve", str(models / arguments[0]), *arguments[1:]]) == 2
    assert said in capsys.readouterr().err


def test_swap_under_load(models, tmp_path):
    """Every answer is that of the model whose version it names; a damaged model is refused, and the old one stays."""
    shutil.copytree(models / "popularity", tmp_path / "model")
    history = load(models / "popularity").catalogue_.item_ids[:3].to_list()
    expected, answers, failures = {}, [], []
    finished = threading.Event()

    def replace(name):
        """Put another model into the folder, as saving one does."""
        shutil.copytree(models / name, tmp_path / "new")
        os.rename(tmp_path / "model", tmp_path / "old")
        os.rename(tmp_path / "new", tmp_path / "model")
        shutil.rmtree(tmp_path / "old")

    def ask(service):
        with httpx.Client(base_url=service.address, timeout=60) as client:
            while not finished.is_set():
                answer = client.post("/recommend", json={"histories": [history], "k": 5, "exclude_seen": True})
                if answer.status_code != 200:
                    failures.append(answer.text)
                    continue
                content = answer.json()
                answers.append((content["version"], [entry["item"] for entry in content["results"][0]["items"]]))

    def version(service):
        return service.get("/version").json()["models"][0]

    with running(tmp_path / "model", "--reload-every=0.05") as service, ThreadPoolExecutor(4) as pool:
        for name in ("popularity", "cooccurrence"):
            items, _ = load(models / name).recommend([history], 5, exclude_seen=True)
            expected[name] = items[0].tolist()
        assert expected["popularity"] != expected["cooccurrence"]
        asking = [pool.submit(ask, service) for _ in range(4)]
        try:
            versions = {version(service)["version"]: "popularity"}
            for name in ("cooccurrence", "popularity", "cooccurrence"):
                before = version(service)["version"]
                replace(name)
                while (now := version(service)["version"]) == before:
                    time.sleep(0.02)
                versions[now] = name
            weights = tmp_path / "model" / "weights.safetensors"
            content = weights.read_bytes()
            weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
            refused = service.post("/reload")
            assert refused.status_code == 409
            assert "altered" in refused.json()["detail"]
            assert version(service)["problem"] == refused.json()["detail"]
            count = len(answers)
            while len(answers) < count + 20:
                time.sleep(0.01)
        finally:
            finished.set()
        for future in asking:
            future.result(60)
        assert service.get("/health/ready").status_code == 200
        assert service.stop() == 0
    assert failures == []
    assert {version for version, _ in answers} <= set(versions)
    assert {versions[version] for version, _ in answers} == {"popularity", "cooccurrence"}
    assert all(items == expected[versions[version]] for version, items in answers)
    events = [json.loads(line) for line in service.lines[1:]]
    assert [event["model"] for event in events if event["event"] == "model loaded"] == ["model"] * 3
    assert any(event["event"] == "model refused" and "altered" in event["reason"] for event in events)


@pytest.fixture(scope="module")
def service(models):
    with running(models / "popularity", "--timeout=1") as service:
        yield service


class TestClients:
    """One service with a short timeout, for clients that misbehave; SIGTERM ends it."""

    @staticmethod
    def connect(service):
        host, port = service.address.removeprefix("http://").split(":")
        return socket.create_connection((host, int(port)), timeout=60)

    HEAD = (
        b"POST /recommend HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    )

    def test_slow_body(self, service):
        with self.connect(service) as client:
            client.sendall(self.HEAD % 100 + b'{"histories"')
            answer = client.recv(4096)
        assert answer.startswith(b"HTTP/1.1 408")

    def test_half_closed_and_gone(self, service):
        body = b'{"histories": [[]]}'
        for sent in (self.HEAD % 50 + body, self.HEAD % len(body) + body, b"POST /recommend HT", b"\x00\xff\r\n\r\n"):
            with self.connect(service) as client:
                client.sendall(sent)
                client.shutdown(socket.SHUT_WR)
        assert service.get("/health/ready").status_code == 200

    def test_logs_name_no_items(self, service):
        assert service.post("/recommend", json={"histories": [["secret-item"]]}).status_code == 200
        assert service.get("/items/secret-item").status_code == 404
        assert service.post("/recommend", json={"histories": [["secret-item"]], "k": 0}).status_code == 422
        service.get("/health/live")
        while not any('"/health/live"' in line for line in service.lines):
            time.sleep(0.01)
        lines = [json.loads(line) for line in service.lines[1:]]
        assert {line["route"] for line in lines if line["event"] == "request"} >= {"/recommend"}
        assert "secret" not in "".join(service.lines)

    def test_sigterm_finishes_running_requests(self, service):
        """A request whose body is still arriving is answered; a new one finds no open port; the exit code is 0."""
        body = b'{"histories": [[]], "k": 3}'
        with self.connect(service) as client:
            client.sendall(self.HEAD % len(body) + body[:5])
            time.sleep(0.2)
            service.process.send_signal(signal.SIGTERM)
            time.sleep(0.2)
            client.sendall(body[5:])
            assert client.recv(4096).startswith(b"HTTP/1.1 200")
        assert service.process.wait(60) == 0
        with pytest.raises(httpx.ConnectError):
            service.get("/health/live")


def test_sigterm_while_it_starts(models):
    """Before it serves, it ends as other commands do."""
    command = [sys.executable, "-m", "resid", "serve", models / "resid", "--port=0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    time.sleep(0.5)
    process.terminate()
    assert process.wait(60) in (0, 143, -signal.SIGTERM)
    assert "Traceback" not in process.stderr.read()
    process.stderr.close()
