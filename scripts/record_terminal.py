"""Make docs/terminal.svg from a real run: lint a mistake, serve the demo, ask it, verify it, stop it.

    python scripts/record_terminal.py    about a minute; needs `make setup`

The text is what the commands printed, except for shortened paths; progress and the longest lines are left out.
"""

from __future__ import annotations

import os
import re
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
HIDDEN = re.compile(r"^(  .* … |  .* tokens compared|  warm-up|curl|ask |the draft costs|starting vLLM)")
PROMPT = "def __len__(self):"
MISTAKE = """\
target:
  model: meta-llama/Llama-3.1-70B-Instruct
  tensor_parallel_size: 4
speculation:
  method: draft_model
  model: meta-llama/Llama-3.1-8B-Instruct
  num_speculative_token: 5
  draft_tensor_parallel_size: 2
"""


def main() -> None:
    """Run the commands and write the picture."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server is stopped too
    with tempfile.TemporaryDirectory() as folder:
        shown = [(command, shortened(text, folder)) for command, text in session(Path(folder))]
    OUT.write_text(drawn(shown), encoding="utf-8")
    print(f"wrote {OUT.relative_to(ROOT)}")


def drawn(shown: list[tuple[str, str]]) -> str:
    """The picture of these commands and their outputs."""
    from rich.console import Console
    from rich.text import Text

    with Path(os.devnull).open("w") as sink:
        screen = Console(record=True, width=WIDTH, file=sink)
        for command, text in shown:
            screen.print(Text.assemble(("$ ", "green"), (command, "bold")))
            for line in (line for line in text.rstrip().splitlines() if not HIDDEN.search(line)):
                screen.print(coloured(line), soft_wrap=False)
            screen.print()
        picture = screen.export_svg(title="specserve", unique_id="specserve")
    # without rich's web fonts: a page of the site asks no other host
    return re.sub(r"@font-face \{[^}]*\}\s*", "", picture)


def coloured(line: str) -> object:
    """The colours that the commands use on a terminal."""
    from rich.text import Text

    text = Text(line)
    text.highlight_regex(r"^error(\[SD\d+\])?", "red")
    text.highlight_regex(r"= help", "cyan")
    text.highlight_regex(r"^(ready in.*|LOSSLESS|NO FAULT FOUND)", "green")
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
            [BIN / "specserve", "up", "configs/demo.yaml"],
            cwd=ROOT, env=env, stdout=stream, stderr=stream,
        )  # fmt: skip
    try:
        wait_ready(up, log)
        (url,) = re.findall(r"^url +(http://\S+)/v1$", log.read_text(), flags=re.MULTILINE)
        words = [PROMPT, "--max-tokens", "48", "--temperature", "0"]
        ask = printed(["ask", *words, "--server", url], cwd=ROOT, env=env)
        words = ["--temperature", "0"]
        verify = printed(["verify", url, *words], cwd=ROOT, env=env)
        served = log.read_text()
        up.send_signal(signal.SIGINT)
        up.wait(timeout=60)
    finally:
        if up.poll() is None:
            up.terminate()
            up.wait(timeout=60)
    stopped = log.read_text().removeprefix(served)
    ask_line = f"specserve ask '{PROMPT}' --max-tokens 48 --temperature 0"
    return [
        ("specserve lint llama.yaml", lint),
        ("specserve up configs/demo.yaml", served),
        (f"{ask_line}    # in a second terminal", ask),
        ("specserve verify --temperature 0", verify),
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
