"""How fast `/plan` answers under granian with one worker, beside a bare handler in the same process.

The bare handler decodes the same body and returns bytes of the same size: what the framework and server cost anyway.
"""

import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

REQUESTS = int(os.environ.get("SHARDWISE_BENCH_REQUESTS", "1500"))
CONNECTIONS = 8
PORT = int(os.environ.get("SHARDWISE_BENCH_PORT", "8377"))
ADDRESS = f"http://127.0.0.1:{PORT}"


def body(context_tokens: int, gpus: list[str] | None) -> bytes:
    """A plan request."""
    asked: dict[str, object] = {
        "model": "meta-llama/Llama-3.1-70B-Instruct",
        "workload": {"context_tokens": context_tokens, "concurrent_sequences": 16},
    }
    if gpus is not None:
        asked["hardware"] = {"gpus": gpus}
    return json.dumps(asked).encode()


def bodies(kind: str, count: int) -> Iterator[bytes]:
    """Requests of one kind: the same again, another each time, or all GPUs and another each time."""
    for number in range(count):
        if kind == "repeated":
            yield body(8192, ["h100-sxm"])
        else:
            yield body(4096 + number, ["h100-sxm"] if kind == "differing" else None)


def worker_cpu_s(pid: int) -> float:
    """CPU time of the serving processes."""
    ticks = 0
    for child in [pid, *_descendants(pid)]:
        try:
            fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
        except FileNotFoundError:
            continue
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def worker_memory_mib(pid: int) -> float:
    """Resident memory of the largest serving process."""
    sizes = [0.0]
    for child in _descendants(pid):
        for line in Path(f"/proc/{child}/status").read_text().splitlines():
            if line.startswith("VmRSS:") and "postgres" not in Path(f"/proc/{child}/comm").read_text():
                sizes.append(int(line.split()[1]) / 1024)
    return max(sizes)


def wait_until_idle(pid: int) -> None:
    """Let the service finish what it prepares in the background after it began to listen."""
    spent = -1.0
    while worker_cpu_s(pid) - spent > 0.05:
        spent = worker_cpu_s(pid)
        time.sleep(1)


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        found += [int(child), *_descendants(int(child))]
    return found


async def ask(path: str, requests: list[bytes]) -> tuple[float, list[float], int]:
    """Seconds in all, seconds of each request, and bytes of an answer."""
    took: list[float] = []
    size = 0
    waiting = iter(requests)
    async with httpx.AsyncClient(base_url=ADDRESS, timeout=60) as client:

        async def one_connection() -> None:
            nonlocal size
            for content in waiting:
                started = time.perf_counter()
                answer = await client.post(path, content=content, headers={"Content-Type": "application/json"})
                answer.raise_for_status()
                took.append(time.perf_counter() - started)
                size = len(answer.content)

        started = time.perf_counter()
        await asyncio.gather(*(one_connection() for _ in range(CONNECTIONS)))
        return time.perf_counter() - started, took, size


async def measure(pid: int, label: str, path: str, requests: list[bytes]) -> tuple[float, float, int]:
    """Print one line; requests a second, CPU seconds a request, and the size of an answer."""
    await ask(path, requests[: max(1, len(requests) // 20)])
    before = worker_cpu_s(pid)
    seconds, took, size = await ask(path, requests)
    cpu_s = (worker_cpu_s(pid) - before) / len(requests)
    took.sort()
    print(
        f"{label:34} {len(requests) / seconds:8.0f}/s   p50 {statistics.median(took) * 1000:7.2f} ms   "
        f"p99 {took[int(len(took) * 0.99)] * 1000:7.2f} ms   CPU {cpu_s * 1000:7.3f} ms a request   {size:,} bytes"
    )
    return len(requests) / seconds, cpu_s, size


async def compare(pid: int) -> None:
    """All kinds, each beside a bare handler that returns as many bytes."""
    for kind, count in (("repeated", REQUESTS), ("differing", REQUESTS), ("all GPUs", max(20, REQUESTS // 25))):
        requests = list(bodies(kind, count))
        rate, cpu_s, size = await measure(pid, f"/plan, {kind}", "/plan", requests)
        bare_rate, bare_cpu_s, _ = await measure(pid, "bare handler", f"/bare/{size}", requests)
        print(f"{'':34} {rate / bare_rate:8.2f} of the bare rate, {bare_cpu_s / cpu_s:.2f} by CPU\n")
    print(f"worker memory {worker_memory_mib(pid):.0f} MiB")


def main() -> int:
    """Start the service with the bare handler beside it, measure, stop it."""
    environment = {
        **os.environ,
        "SHARDWISE_PORT": str(PORT),
        "SHARDWISE_WORKERS": "1",
        "SHARDWISE_LOG_LEVEL": "warning",
    }
    with subprocess.Popen([sys.executable, "-m", "benchmarks.serve"], env=environment) as server:
        try:
            for _ in range(600):
                try:
                    httpx.get(f"{ADDRESS}/live", timeout=1)
                    break
                except httpx.HTTPError:
                    time.sleep(0.1)
            wait_until_idle(server.pid)
            asyncio.run(compare(server.pid))
        finally:
            server.terminate()
            server.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
