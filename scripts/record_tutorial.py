"""Writes docs/tutorial.md: runs each of its commands on the demo pair and puts what they print below them.

    python scripts/record_tutorial.py            about a quarter of an hour on two cores; needs `make setup`
    python scripts/record_tutorial.py --check    runs only what needs no server, and says if the page is stale

Figures are compared without their digits, because times and memory differ from machine to machine.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "tutorial.md"
PROGRAM = Path(sys.executable).with_name("specserve")
LIMIT_S = 1800


class Step(NamedTuple):
    """A piece of the page: what it says, and the command whose output follows."""

    text: str
    command: str = ""
    after: str = ""
    is_static: bool = False
    """Whether the command needs no server and says the same on every machine."""
    hidden: str = ""
    """The lines that the page leaves out, as a pattern; `…` stands for each run of them."""


STEPS = (
    Step("""\
# Tutorial: from the demo to a measured profile

You need Linux on x86-64 with Python 3.11, make and git; no GPU. In a clone of the repository, install the CPU engine
and the demo pair (about two minutes):

```
make setup
source .venv/bin/activate
```

The pair is a small target and a smaller draft model, trained to continue Python code. Everything below is what the
commands printed on two busy CPU cores; `…` stands for lines that are left out. Your times and paths will differ.

## 1. Is the profile right?

`configs/demo.yaml` names target, draft, the number of draft tokens and a few engine arguments. `lint` judges the file
alone, without the models, in a fraction of a second. Try a mistake, without changing the file:""",
         "specserve lint configs/demo.yaml --set speculation.num_speculative_token=4", """\
`specserve rules SD005` describes the rule. """, is_static=True),
    Step("""\
## 2. Will it start, and does it fit?

`check` also reads the models: do both tokenizers agree, does the draft fit the target, is there enough memory? The
first line answers; `-v` shows what the answer rests on.""",
         "specserve check configs/demo.yaml"),
    Step("""\
## 3. Start it

`up` checks again, without asking vLLM, so that its figures are estimates. Then it starts vLLM, and reports the server
ready as soon as it answers. `--detach` leaves it running; `ps` lists such servers. If port 8000 is taken, add
`--port 0`, which finds a free one. The line below `ready` compares the check's prediction with what vLLM logged.""",
         "specserve up configs/demo.yaml --detach", hidden="so far$|allocating|API server"),
    Step("""\
Ask something. The text goes to stdout; what the request cost goes to stderr, with the share of draft tokens that
the target accepted:""",
         "specserve ask 'def __len__(self):' --max-tokens 48 --temperature 0"),
    Step("""\
## 4. Is the text still the target's own?

Speculation must not change the text. `verify` tests that from outside, in about a minute: the server writes text with
speculation, then scores the same text without it.""", "specserve verify demo", """\
`NO FAULT FOUND` comes with its bound: the smallest fault that this run would have found. More time makes it smaller
([how verify decides](verify.md)).""", hidden="tokens compared"),
    Step("Stop the server. It may first finish the requests that it has:", "specserve down demo"),
    Step("""\
## 5. Does speculation pay here?

`bench` starts the profile and the same server without speculation, sends the same prompts to both in short
alternating blocks, and compares. `--quick` takes minutes:""", "specserve bench configs/demo.yaml --quick", """\
The interval decides. PAYS means that all of the 95 % interval is above 1.03 (and the 99.5 % interval, which is wider,
above 1). On a busy machine, the verdict is often INCONCLUSIVE; the report then says what would decide it.
Without `--quick`, bench goes on until the verdict is clear or its `--budget` ends
([how bench decides](bench.md)).""", hidden=r"^(starting|warming|\d+/\d+,|\w+ is ready)"),
    Step("""\
## 6. How many draft tokens are best?

`tune` finds the best number of draft tokens (K) for the loads that you name; here, one request and two concurrent
ones. It launches three servers: one without speculation, one with the largest K, and one with the K that these two
predict to be the best. `--budget` includes the launches:

```
specserve tune configs/demo.yaml -w code -c 1,2 --budget 15m
```

The first line is the answer, such as `PAYS: K = 4`, with the measured speedup and its interval. `--write` puts the
choice into the profile; its comments stay ([how tune chooses](tune.md))."""),
    Step("""\
## 7. Deploy it

`render` writes the launch for production, without specserve inside, for the newest vLLM that the profile allows:""",
         "specserve render configs/demo.yaml --to systemd", """\
The warning is only about vLLM's CPU build; [the Kubernetes page](how-to/kubernetes.md#models-in-local-folders) shows
how to install the plug-in.

## Where to go next

- [I already run vLLM](how-to/already-run-vllm.md): the same on your own server, without a restart.
- [Convert an old command](how-to/convert.md) that starts vLLM.
- [Profiles in CI](ci.md): lint every pull request.
- [A first 70B on four GPUs](how-to/first-70b.md).
- [The profile](reference/profile.md): every key.""",
         hidden="^(?!# (Rendered|for vLLM|Do not|sudo|Needs|/srv)|ExecStart=|warning)"),
)  # fmt: skip


def output_of(command: str, *, state: Path) -> str:
    """What a command prints on both streams, as a pipe sees it; home and scratch folders by short names."""
    env = {
        **os.environ,
        "SPECSERVE_STATE_DIR": str(state),
        "COLUMNS": "120",
        "NO_COLOR": "1",
        "HF_HUB_OFFLINE": "1",
    }
    words = [str(PROGRAM), *shlex.split(command)[1:]]
    done = subprocess.run(
        words,
        cwd=ROOT,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    text = done.stdout.replace(str(state), "~/.local/state/specserve").replace(f"{ROOT}/", "")
    return text.replace(str(ROOT), ".").replace(str(Path.home()), "~").rstrip()


def without(hidden: str, text: str) -> str:
    """A command's output with `…` in place of each run of lines that match a pattern."""
    lines = ["…" if hidden and re.search(hidden, line) else line for line in text.splitlines()]
    return "\n".join(line for k, line in enumerate(lines) if line != "…" or k == 0 or lines[k - 1] != "…")


def page(outputs: dict[str, str]) -> str:
    """The tutorial with these outputs."""
    parts = []
    for step in STEPS:
        parts.append(step.text)
        if step.command:
            parts.append(f"```\n$ {step.command}\n{without(step.hidden, outputs[step.command])}\n```")
        if step.after:
            parts.append(step.after.strip())
    note = "<!-- Written by scripts/record_tutorial.py: change its steps, then run it. -->"
    return "\n\n".join([parts[0].replace("\n\n", f"\n\n{note}\n\n", 1), *parts[1:]]) + "\n"


def without_figures(text: str) -> str:
    """The same without digits and the width of columns."""
    return re.sub(r"\s+", " ", re.sub(r"[0-9a-f]{12,}|\d[\d.,]*", "#", text))


def recorded(text: str) -> dict[str, str]:
    """The outputs on a page, by command."""
    return dict(re.findall(r"^```\n\$ (.*)\n((?:.*\n)*?)```$", text, flags=re.M))


def main() -> int:
    """Exit code 1 with --check if the page is stale."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    commands = [step for step in STEPS if step.command and (step.is_static or not args.check)]
    with tempfile.TemporaryDirectory() as folder:
        outputs = {}
        for step in commands:
            print(f"$ {step.command}", file=sys.stderr, flush=True)
            outputs[step.command] = output_of(step.command, state=Path(folder))
    if not args.check:
        PAGE.write_text(page(outputs), encoding="utf-8")
        return 0
    text = PAGE.read_text(encoding="utf-8")
    known = recorded(text)
    stale = [
        c for c, now in outputs.items() if without_figures(known.get(c, "")) != without_figures(now + "\n")
    ]
    if page({**{step.command: "" for step in STEPS}, **{c: o.rstrip() for c, o in known.items()}}) != text:
        stale.append("the words of the page")
    found = f"stale: {'; '.join(stale)}; run scripts/record_tutorial.py"
    print(found if stale else "docs/tutorial.md is up to date")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
