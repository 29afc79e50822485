"""A stand-in for `vllm serve` with the faults of a real one, on the standard library. Runs no model.

    python vllm_server.py --port PORT [--fault FAULT] [--model NAME]

It logs what vLLM logs on its way, keeps an engine process, and answers /health, /metrics and /v1.
"""

from __future__ import annotations

import argparse
import contextlib
import http.server
import json
import mmap
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import FrameType

FAULTS = (
    "crash-loading",  # the engine fails to find memory; the API server says only that it failed
    "never-ready",  # stands still for ever
    "stall-busy",  # never ready, but the CPU turns
    "ignore-sigterm",  # once it serves
    "ignore-signals",  # SIGINT and SIGTERM, from the start, which never ends
    "exit-zero",  # ends with code 0 on SIGUSR1, once it serves
    "exit-slowly",  # the same, but its port closes a moment before
    "kill-self",  # SIGKILL on SIGUSR1, once it serves; the engine process lives on
    "unhealthy",  # answers 503 to the first three requests
    "orphan",  # leaves its engine process behind when it is told to stop
)
METRICS = (
    'vllm:cache_config_info{block_size="128",engine="0",kv_cache_max_concurrency="56.75",'
    'kv_cache_memory_bytes="268435456",kv_cache_size_tokens="29056",num_gpu_blocks="227"} 1.0\n'
)
LINES = (
    ("APIServer", "non-default args: {'model': 'tiny'}"),
    ("Worker", "Starting to load model /models/target..."),
    ("Worker", "Loading weights took 0.04 seconds"),
    ("Worker", "Model loading took 1.25 GiB memory and 0.10 seconds"),
    (
        "EngineCore",
        "CPU KV cache size: 29,056 tokens, Maximum concurrency for 512 tokens per request: 56.75x",
    ),
    ("APIServer", "Starting vLLM server on http://127.0.0.1"),
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--fault", choices=FAULTS)
    parser.add_argument("--pause", type=float, default=0.05, help="seconds per log line")
    parser.add_argument("--shutdown-timeout", type=float)
    args = parser.parse_args()
    engine = _start_engine(group=0 if args.fault == "orphan" else None)

    def leave(_number: int, _frame: FrameType | None) -> None:
        if args.fault != "orphan":
            engine.kill()
            for path in _files():
                path.unlink(missing_ok=True)
        os._exit(0)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN if args.fault == "ignore-signals" else leave)
    assert engine.stdout is not None
    engine.stdout.readline()  # it holds its shared memory by then, and says no word about a pipe that broke
    _load(args)
    if args.fault == "ignore-sigterm":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _serve(args, engine)


def _start_engine(*, group: int | None) -> subprocess.Popen[bytes]:
    """A process that ignores the polite signals, as a busy engine core does."""
    # a killed one of that id may have left it, and the engine would die of it
    Path(f"/dev/shm/psm_leak{os.getpid()}").unlink(missing_ok=True)
    code = (
        "import signal, sys, time\n"
        "from multiprocessing.shared_memory import SharedMemory\n"
        "for number in (signal.SIGINT, signal.SIGTERM): signal.signal(number, signal.SIG_IGN)\n"
        "leaked = SharedMemory(f'psm_leak{sys.argv[1]}', create=True, size=64)\n"
        "leaked.close()\n"  # from now on only Python's resource tracker knows of it
        "print(flush=True)\n"
        "time.sleep(600)"
    )
    return subprocess.Popen(
        [sys.executable, "-S", "-E", "-c", code, str(os.getpid())],
        stdout=subprocess.PIPE,
        process_group=group,
    )


def _load(args: argparse.Namespace) -> None:
    for number, (process, text) in enumerate(LINES):
        if number == 3 and args.fault == "crash-loading":
            _crash()
        if number == 3 and args.fault in {"never-ready", "ignore-signals"}:
            while True:
                time.sleep(60)
        if number == 3 and args.fault == "stall-busy":
            while True:
                pass
        print(f"({process} pid=7) INFO 11-21 01:44:37 [a.py:1] {text}", flush=True)
        time.sleep(args.pause)


def _crash() -> None:
    print("(EngineCore pid=7) ERROR 11-21 01:50:07 [core.py:1510] Traceback (most recent call last):")
    print(
        "(EngineCore pid=7) ERROR 11-21 01:50:07 [core.py:1510] torch.OutOfMemoryError: CUDA out of memory. "
        "Tried to allocate 1.02 GiB. GPU 0 has a total capacity of 79.19 GiB"
    )
    print("Traceback (most recent call last):")
    print(
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
        flush=True,
    )
    os._exit(1)


def _serve(args: argparse.Namespace, engine: subprocess.Popen[bytes]) -> None:
    shared, address = _files()
    shared.write_bytes(b"\0" * 4096)
    with shared.open("r+b") as file:
        mapped = mmap.mmap(file.fileno(), 4096)
    ipc = socket.socket(socket.AF_UNIX)
    address.unlink(missing_ok=True)  # a killed one of that id may have left it
    ipc.bind(str(address))
    ipc.listen()

    refusals = [503] * (3 if args.fault == "unhealthy" else 0)

    class Handler(http.server.BaseHTTPRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError):  # a client that went away is no cause of a death
                super().handle()

        def do_GET(self) -> None:
            body = ""
            if self.path == "/metrics":
                body = METRICS
            elif self.path == "/v1/models":
                body = json.dumps({"data": [{"id": args.model}]})
            self.send_response(refusals.pop() if refusals else 200)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer((args.host, args.port), Handler)
    if args.fault in {"exit-zero", "exit-slowly", "kill-self"}:
        ending = {"engine": engine, "fault": args.fault, "server": server}
        end = threading.Thread(target=_end, kwargs=ending)
        signal.signal(signal.SIGUSR1, lambda *_: end.start())
    server.serve_forever()
    del mapped


def _files() -> tuple[Path, Path]:
    """Shared memory and a socket, as vLLM has them."""
    folder = os.environ.get("VLLM_RPC_BASE_PATH") or tempfile.gettempdir()
    return Path(f"/dev/shm/psm_fake{os.getpid()}"), Path(folder, f"fake-{os.getpid()}")


def _end(*, engine: subprocess.Popen[bytes], fault: str, server: http.server.HTTPServer) -> None:
    if fault == "kill-self":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "exit-slowly":
        server.shutdown()
        server.server_close()
        time.sleep(0.3)
    engine.kill()
    os._exit(0)


if __name__ == "__main__":
    main()
