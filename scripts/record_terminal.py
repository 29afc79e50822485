"""Make docs/terminal.svg anew from a real run: lint a mistake, serve the demo, ask it, stop it.

Needs `make setup`. Runs for about a minute; the text is what the commands printed, shortened paths apart.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "docs/terminal.svg"
BIN = Path(sys.executable).parent
WIDTH = 100
PROMPT = "def __len__(self):"
MISTAKE = """\
target:
  model: meta-llama/Llama-3.1-70B-Instruct
  tensor_parallel_size: 4
speculation:
  method: draft_model
  model: meta-llama/Llama-3.1-8B-Instruct
  num_speculative_token: 5
  draft_tensor_parallel_size: 1
"""


def main() -> None:
    """Run the commands, write the picture."""
    from rich.console import Console
    from rich.text import Text

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server is stopped too
    with Path(os.devnull).open("w") as sink, tempfile.TemporaryDirectory() as folder:
        screen = Console(record=True, width=WIDTH, file=sink)
        for command, text in session(Path(folder)):
            screen.print(Text.assemble(("$ ", "green"), (command, "bold")))
            for line in shortened(text, folder).rstrip().splitlines():
                screen.print(coloured(line), soft_wrap=False)
            screen.print()
        OUT.write_text(screen.export_svg(title="specserve", unique_id="specserve"), encoding="utf-8")
    print(f"wrote {OUT.relative_to(ROOT)}")


def coloured(line: str) -> object:
    """The colours that the commands use on a terminal."""
    from rich.text import Text

    text = Text(line)
    text.highlight_regex(r"^error(\[SD\d+\])?", "red")
    text.highlight_regex(r"= help", "cyan")
    text.highlight_regex(r"^ready in.*", "green")
    return text


def session(folder: Path) -> list[tuple[str, str]]:
    """Each command as it would be typed, and what it printed."""
    env = {**os.environ, "SPECSERVE_STATE_DIR": str(folder), "HF_HUB_OFFLINE": "1", "NO_COLOR": "1"}
    env["COLUMNS"] = str(WIDTH)
    env["PATH"] = f"{BIN}{os.pathsep}{env.get('PATH', os.defpath)}"  # `specserve` is then what is typed
    (folder / "llama.yaml").write_text(MISTAKE)
    lint = printed(["lint", "llama.yaml"], cwd=folder, env=env)
    log = folder / "up.txt"
    with log.open("wb") as stream:
        up = subprocess.Popen(
            [BIN / "specserve", "up", "configs/demo.yaml"], cwd=ROOT, env=env, stdout=stream, stderr=stream
        )
    try:
        wait_ready(up, log)
        words = ["--completion", PROMPT, "--max-tokens", "48", "--temperature", "0"]
        ask = printed(["ask", *words], cwd=ROOT, env=env)
        served = log.read_text()
        up.send_signal(signal.SIGINT)
        up.wait(timeout=60)
    finally:
        if up.poll() is None:
            up.terminate()
            up.wait(timeout=60)
    stopped = log.read_text().removeprefix(served)
    ask_line = f"specserve ask --completion '{PROMPT}' --max-tokens 48 --temperature 0"
    return [
        ("specserve lint llama.yaml", lint),
        ("specserve up configs/demo.yaml", served),
        (f"{ask_line}    # in a second terminal", ask),
        ("^C", stopped),
    ]


def printed(command: list[str], *, cwd: Path, env: dict[str, str]) -> str:
    """What a command of specserve writes to both streams."""
    done = subprocess.run(
        [str(BIN / "specserve"), *command],
        cwd=cwd, env=env, timeout=120, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    return done.stdout


def wait_ready(up: subprocess.Popen[bytes], log: Path) -> None:
    """Until `up` has said where it serves."""
    deadline = time.monotonic() + 180
    while "Ctrl-C stops it" not in log.read_text():
        if up.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"error: the demo did not start:\n{log.read_text()}")
        time.sleep(0.2)


def shortened(text: str, folder: str) -> str:
    """The text without the paths of the machine that made the picture."""
    return text.replace(folder, "~/.local/state/specserve").replace(f"{ROOT}/", "")


if __name__ == "__main__":
    main()
