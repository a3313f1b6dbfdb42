"""The HTTP service: latency and requests per second, compared with one request per forward, and a soak test.

    python benchmarks/serve.py --items 25000 500000      # about five minutes
    python benchmarks/serve.py --items 25000 --soak 60   # a minute under load with malformed requests and swaps

Writes benchmarks/serve.json. The models are one-pass generators without training, as the time does not depend on the weights.

1. `resid serve`, and the same model behind a plain FastAPI application whose route calls `recommend` for its own request, as
   processes. The plain one exists twice: `plain` runs requests in threads, as FastAPI does with a `def` route, and `plain_in_turn`
   one after the other, with an `async def` route. They take turns under the same load: one client, then 32 clients, each of which
   sends its next request when it has the answer. Every answer is compared with `recommend`, after the clock has stopped. Besides
   requests per second, which depend on what else the machine does, the CPU time per request of the services and of the clients is
   recorded, and the ratio of the services' CPU times. First, the bound of what batches can give: 32 users in one call of
   `recommend`, and in 32 calls.
2. With ``--soak``, 8 clients send requests of which 5% are malformed, while the model's folder gets another model every 5 seconds. Every
   answer must be that of the model whose version it names, every malformed request must be refused, and the memory of the
   process is recorded after every swap.
"""

import argparse
import asyncio
import hashlib
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from decode import balanced_ids
from items import catalogue

from resid import load
from resid.generate import OnePassGenerator, OnePassSettings

K = 10
PLAIN = ("plain", "plain_in_turn")
WIDTH = 128
MALFORMED = (b"{", b'{"histories": [[1.5]]}', b'{"histories": [[]], "k": 0}', b'{"histories": ' + b"[" * 50_000, b"[]")


def make_model(data, folder: Path, seed: int) -> None:
    """Save a model with random weights."""
    model = OnePassGenerator(OnePassSettings(width=WIDTH, seed=seed))
    vectors = np.random.default_rng(seed).normal(size=(data.n_items, WIDTH)).astype(np.float32)
    model._build(data.catalogue, balanced_ids(data.n_items), vectors)
    model.fitted = True
    model.save(folder)


def run_plain(folder: str, kind: str) -> None:
    """Serve a model as simply as possible: a request is a forward, in a thread of its own or in the event loop."""
    import socket

    import uvicorn
    from fastapi import FastAPI

    app, model = FastAPI(), load(folder)

    def recommend(request: dict) -> dict:
        items, scores = model.recommend(request["histories"], request["k"])
        rows = [
            {"items": [{"item": item, "score": float(score)} for item, score in zip(*row, strict=True)]}
            for row in zip(items, scores, strict=True)
        ]
        return {"results": rows}

    async def in_turn(request: dict) -> dict:
        return recommend(request)

    app.post("/recommend")(recommend if kind == "plain" else in_turn)
    opened = socket.create_server(("127.0.0.1", 0))
    print(f"Serving on http://127.0.0.1:{opened.getsockname()[1]};", file=sys.stderr, flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False)).run(sockets=[opened])


class Server:
    """A service as a process; a context manager."""

    def __init__(self, *command: str) -> None:
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
        self.process = subprocess.Popen([sys.executable, *command], stderr=self._log)
        while "Serving on" not in (said := self._said()):
            if self.process.poll() is not None:
                raise RuntimeError(said)
            time.sleep(0.1)
        self.port = int(said.split("http://127.0.0.1:")[1].split(";")[0])

    def _said(self) -> str:
        self._log.seek(0)
        return self._log.read(200)

    def cpu_seconds(self) -> float:
        """Return the CPU time that the process has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> float:
        """Return the resident memory in MB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_) -> None:
        self.process.terminate()
        self.process.wait(60)
        self._log.close()


class Client(asyncio.Protocol):
    """A connection that sends prepared requests and returns answers unparsed, so that clients cost little."""

    def __init__(self) -> None:
        self._received, self._answer = b"", asyncio.get_running_loop().create_future()

    @classmethod
    async def connect(cls, port: int) -> "Client":
        return (await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port))[1]

    def connection_made(self, transport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        head = self._received.find(b"\r\n\r\n")
        if head < 0:
            return
        lines = self._received[:head].lower()
        length = int(lines[lines.index(b"content-length:") + 15 :].split(b"\r\n", 1)[0])
        if len(self._received) >= head + 4 + length:
            answer, self._received = (int(lines.split(None, 2)[1]), self._received[head + 4 :]), b""
            self._answer.set_result(answer)

    def connection_lost(self, error) -> None:
        if not self._answer.done():
            self._answer.set_result((0, b""))  # a lost answer

    async def post(self, request: bytes) -> tuple[int, bytes]:
        """Send a request, and return status and body."""
        if self._answer.done():
            self._answer = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return await self._answer


def as_request(body: bytes) -> bytes:
    head = (
        f"POST /recommend HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    )
    return head.encode() + b"\r\n\r\n" + body


class Load:
    """Requests of one user each, and what the models answer to them."""

    def __init__(self, ids: list[str], users: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        lengths = np.clip(rng.geometric(1 / 9, users), 1, 31)
        self.histories = [[ids[place] for place in rng.integers(0, len(ids), length)] for length in lengths]
        self.requests = [
            as_request(json.dumps({"histories": [history], "k": K}).encode()) for history in self.histories
        ]
        self.scores: dict[str, np.ndarray] = {}

    def expect(self, version: str, folder: Path) -> None:
        """Keep what a model answers."""
        self.scores[version] = load(folder).recommend(self.histories, K)[1]

    def check(self, version: str, number: int, content: dict) -> bool:
        """Return whether an answer has the scores that it should have; close items may change places."""
        found = [entry["score"] for entry in content["results"][0]["items"]]
        return np.allclose(found, self.scores[version][number], rtol=1e-3, atol=1e-4)

    async def run(self, port: int, clients: int, seconds: float, malformed: float = 0.0) -> dict:
        """Send requests with so many clients, and return latencies in ms and the counts of what happened."""
        times: list[float] = []
        answers: list[tuple[int, int, bytes]] = []
        counts = {"answers": 0, "wrong": 0, "lost": 0, "refused": 0, "not_refused": 0}
        bad, begun = [as_request(body) for body in MALFORMED], time.perf_counter()
        end = begun + seconds

        async def client(seed: int) -> None:
            rng = random.Random(seed)
            connection = await Client.connect(port)
            while (begin := time.perf_counter()) < end:
                if connection.transport.is_closing():  # a refused body closes its connection
                    connection = await Client.connect(port)
                if malformed and rng.random() < malformed:
                    status, _ = await connection.post(rng.choice(bad))
                    counts["refused" if 400 <= status < 500 else "not_refused"] += 1
                    continue
                number = rng.randrange(len(self.requests))
                status, content = await connection.post(self.requests[number])
                times.append(1e3 * (time.perf_counter() - begin))
                answers.append((number, status, content))
            connection.transport.close()

        cpu = time.process_time()
        await asyncio.gather(*(client(seed) for seed in range(clients)))
        cpu, took = time.process_time() - cpu, time.perf_counter() - begun
        for number, status, content in answers:
            counts["answers" if status == 200 else "lost"] += 1
            if status == 200:
                answer = json.loads(content)
                counts["wrong"] += not self.check(answer.get("version", "only"), number, answer)
        p50, p99 = np.percentile(times, [50, 99])
        return {
            "p50_ms": round(p50, 2),
            "p99_ms": round(p99, 2),
            "per_second": round(len(times) / took, 1),
            "clients_cpu_ms": round(1e3 * cpu / len(times), 3),
            **counts,
        }


def version_of(folder: Path) -> str:
    return hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()[:12]


def compare(folder: Path, ids: list[str], seconds: float, rounds: int) -> dict:
    """Return the figures of both services; they take turns."""
    requests = Load(ids, 500, seed=0)
    for version in (version_of(folder), "only"):
        requests.expect(version, folder)
    found: dict = {}
    with (
        Server("-m", "resid", "serve", str(folder), "--port=0") as own,
        Server(__file__, "--run", "plain", str(folder)) as plain,
        Server(__file__, "--run", "plain_in_turn", str(folder)) as in_turn,
    ):
        servers = {"resid": own, "plain": plain, "plain_in_turn": in_turn}
        for clients in (1, 32):
            runs: dict[str, list] = {name: [] for name in servers}
            for _ in range(rounds):
                for name, server in servers.items():
                    before = server.cpu_seconds()
                    run = asyncio.run(requests.run(server.port, clients, seconds))
                    run["service_cpu_ms"] = round(1e3 * (server.cpu_seconds() - before) / run["answers"], 3)
                    runs[name].append(run)
            best = {name: max(some, key=lambda run: run["per_second"]) for name, some in runs.items()}
            cpu = {name: statistics.median(run["service_cpu_ms"] for run in some) for name, some in runs.items()}
            found[f"{clients} clients"] = {
                **best,
                "ratio": {name: round(best["resid"]["per_second"] / best[name]["per_second"], 2) for name in PLAIN},
                "cpu_ratio": {name: round(cpu[name] / cpu["resid"], 2) for name in PLAIN},
            }
    return found


def bound(folder: Path, ids: list[str], rounds: int) -> dict:
    """Return the CPU time of a user in ms, in calls of `recommend` for one user and for 32, which take turns."""
    model, histories = load(folder), Load(ids, 32, seed=0).histories
    model.recommend(histories, K)
    times: dict[str, list[float]] = {"single": [], "together": []}
    for _ in range(1 + rounds):
        begin = time.process_time()
        for history in histories:
            model.recommend([history], K)
        middle = time.process_time()
        model.recommend(histories, K)
        times["single"].append(middle - begin)
        times["together"].append(time.process_time() - middle)
    best = {name: 1e3 * min(some[1:]) / len(histories) for name, some in times.items()}
    return {f"{name}_ms": round(value, 3) for name, value in best.items()} | {
        "ratio": round(best["single"] / best["together"], 2)
    }


def soak(data, folder: Path, ids: list[str], seconds: float) -> dict:
    """Return what happened under load with malformed requests and swaps."""
    requests = Load(ids, 500, seed=1)
    for seed in (0, 1):
        if seed:
            make_model(data, folder / "variant-1", seed)
        requests.expect(version_of(folder / f"variant-{seed}"), folder / f"variant-{seed}")
    shutil.copytree(folder / "variant-0", folder / "served")
    memory: list[float] = []

    async def swap(server: Server) -> None:
        for turn in range(1, int(seconds // 5)):
            await asyncio.sleep(5)
            shutil.copytree(folder / f"variant-{turn % 2}", folder / "new")
            os.rename(folder / "served", folder / "old")
            os.rename(folder / "new", folder / "served")
            shutil.rmtree(folder / "old")
            memory.append(round(server.memory(), 1))

    async def both(server: Server) -> dict:
        result, _ = await asyncio.gather(requests.run(server.port, 8, seconds, malformed=0.05), swap(server))
        return result

    with Server("-m", "resid", "serve", str(folder / "served"), "--port=0", "--reload-every=0.5") as server:
        return {**asyncio.run(both(server)), "memory_mb": memory}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, nargs="+", default=[25_000, 500_000])
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--soak", type=float, default=0, help="seconds of the soak test, instead of the comparison")
    parser.add_argument("--run", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    options = parser.parse_args()
    if options.run:
        run_plain(folder=options.run[1], kind=options.run[0])
        return
    result = json.loads(options.out.read_text()) if options.out.exists() else {}
    for items in options.items:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            data, _ = catalogue(items, np.random.default_rng(0))
            make_model(data, folder / "variant-0", 0)
            ids = data.item_ids.to_list()
            if options.soak:
                found = {"soak": soak(data, folder, ids, options.soak)}
            else:
                found = {"batches": bound(folder / "variant-0", ids, options.rounds)}
                found |= compare(folder / "variant-0", ids, options.seconds, options.rounds)
        result[f"{data.n_items} items"] = result.get(f"{data.n_items} items", {}) | found
        print(json.dumps(found, indent=1))
    options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
