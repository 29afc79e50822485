"""Start the demo server with `specserve up`, which says how to ask it, unless it serves already.

It runs in the environment of `make setup`, and knows nothing of how that was made.
"""

import argparse
import json
import os
import shutil
import socket
import sys
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROFILE = ROOT / "configs/demo.yaml"
GPU = """\
The demo runs on the CPU. For your own models on the NVIDIA GPU of this machine:
  python3 -m venv .venv-gpu && .venv-gpu/bin/pip install '.[vllm]'
  .venv-gpu/bin/specserve up PROFILE
"""


def ask_command(port: int) -> str:
    """What to type in a second terminal; the demo's model only continues Python."""
    words = "'def __len__(self):' --max-tokens 48 --temperature 0"
    return f".venv/bin/specserve ask {words} --server http://127.0.0.1:{port}"


def served_models(port: int) -> list[str]:
    """Names of the models that a server on this port of the loopback offers; none if nothing answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=2) as answer:
            return [str(model["id"]) for model in json.load(answer)["data"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def is_taken(port: int) -> bool:
    """Whether another program listens on this port of the loopback; 0 is always free."""
    with socket.socket() as attempt:
        attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            attempt.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def main(arguments: list[str] | None = None) -> None:
    """Become `specserve up`, with its exit status; end here if the demo serves already, or cannot."""
    import yaml

    parser = argparse.ArgumentParser(prog="make demo", add_help=False)
    parser.add_argument("--port", type=int)
    asked = parser.parse_args(arguments).port
    server = yaml.safe_load(PROFILE.read_text(encoding="utf-8")).get("server") or {}
    port = server.get("port", 8000) if asked is None else asked
    name = server.get("served_model_name") or PROFILE.stem
    if name in served_models(port):
        print(f"The demo already serves on http://127.0.0.1:{port}. Ask it:\n  {ask_command(port)}")
        return
    if is_taken(port):
        print(f"error: port {port} is taken by another program", file=sys.stderr)
        sys.exit("hint: `make demo PORT=8001` takes another one, `make demo PORT=0` a free one")
    if Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi"):
        print(GPU)
    sys.stdout.flush()
    os.chdir(ROOT)
    command = [str(Path(sys.executable).with_name("specserve")), "up", str(PROFILE.relative_to(ROOT))]
    if asked is not None:
        command += ["--port", str(asked)]
    # Everything that the demo needs is in the repository: nothing is asked of the Hub, nothing reported.
    os.execve(command[0], command, os.environ | {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"})


if __name__ == "__main__":
    main()
