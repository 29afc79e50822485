"""Small inputs of a stranger: each ends with findings or with exit code 2 and words, and soon."""

from __future__ import annotations

import json
import shlex
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specserve.cli.app import _run

Write = Callable[..., Path]
ROOT = Path(__file__).parents[2]
Ended = Callable[..., tuple[int, str]]
DEMO = json.loads((ROOT / "demo/target/config.json").read_text(encoding="utf-8"))
DIGITS = "9" * 5000
EMPTY = {"dtype": "BF16", "shape": [0, 64], "data_offsets": [0, 0]}
LAYER = "model.layers.{}.mlp.down_proj.weight"


@pytest.fixture
def ended(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Runs a command: its exit code, and all that it says, in which there is no bug."""

    def run(*arguments: str | Path) -> tuple[int, str]:
        code = _run([str(each) for each in arguments])
        said = "".join(capsys.readouterr())
        assert code in (0, 1, 2) and "Traceback" not in said and "a way it did not expect" not in said, said
        return code, said

    return run


def with_number(key: str, number: str) -> str:
    return json.dumps({**DEMO, key: "@"}).replace('"@"', number)


def weights(header: dict[str, Any]) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text


HUGE = "1" + "0" * 400
MODELS: dict[str, tuple[str, dict[str, Any] | None, str]] = {
    "context": (with_number("max_position_embeddings", HUGE), None, "holds no weights"),
    "vocabulary": (with_number("vocab_size", "-" + HUGE), None, "expected a whole number"),
    "unreadable": (with_number("hidden_size", DIGITS), None, "Exceeds the limit"),
    "layers": (with_number("num_hidden_layers", "1000000000"), None, "is not known without vLLM"),
    "infinite": (with_number("num_attention_heads", "1e999"), None, "is not known without vLLM"),
    "name": (json.dumps(DEMO), {LAYER.format(DIGITS): EMPTY, "x": EMPTY}, "holds no tokenizer"),
    "offset": (json.dumps(DEMO), {"x": {**EMPTY, "data_offsets": [0, 10**99]}}, "do not agree"),
}


@pytest.mark.parametrize(
    ("name", "role"), [*((name, "target") for name in MODELS), ("unreadable", "draft"), ("offset", "draft")]
)
def test_a_model_folder_that_cannot_be_meant_is_a_finding(
    name: str, role: str, write: Write, ended: Ended
) -> None:
    config, header, words = MODELS[name]
    folder = write(config, "model/config.json").parent
    if header is not None:
        (folder / "model.safetensors").write_bytes(weights(header))
    models = {"target": str(ROOT / "demo/target"), "draft": str(ROOT / "demo/draft"), role: str(folder)}
    profile = write(
        f"target: {{model: {models['target']}, max_model_len: 512}}\n"
        f"speculation: {{method: draft_model, model: {models['draft']}, num_speculative_tokens: 3}}\n"
    )
    code, said = ended("check", profile, "--no-ask", "--offline", "--assume", "1xH100-80GB")
    said = " ".join(said.split())
    assert code in (0, 1), said
    assert words in said or role == "draft", said  # without weights a draft is no model at all


LONG = "a" * 300


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["up", "configs/demo.yaml", "--detach", "--name", LONG], "use at most 63 lower-case letters"),
        (["up", "configs/demo.yaml", "--detach", "--name", ""], "`` is not a valid server name"),
        (["up", "configs/demo.yaml", "--detach", "--name", "../x"], "`../x` is not a valid server name"),
        (["watch", LONG, "--once"], "is too long for the name of a file"),
        (["verify", LONG], "is too long for the name of a file"),
        (["bench", LONG, "--dry-run"], "file name too long"),
        (["lint", LONG], "is too long for the name of a file"),
        (["plan", "configs/demo.yaml", "--vllm", f"0.{DIGITS}rc1"], "is not among the versions"),
        (["plan", "configs/demo.yaml", "--alternative", "x\n::error::y"], "no alternative `x\\n::error::y`"),
        (["plan", "configs/demo.yaml", "--alternative", ""], "has no alternative ``"),
    ],
)
@pytest.mark.vllm
@pytest.mark.installed
def test_a_name_that_cannot_be_one_is_refused(ended: Ended, arguments: list[str], words: str) -> None:
    code, said = ended(*arguments)
    assert (code, words in said) == (2, True), said


@pytest.mark.parametrize(
    ("arguments", "closed", "code", "words"),
    [
        ("rules", ">&-", 2, "error: cannot write to stdout: Bad file descriptor"),
        ("lint configs/demo.yaml", ">&-", 0, "All checks passed"),
        ("convert -", "<&-", 2, "found nothing in `stdin` that starts vLLM"),
        ("plan -", "<&- 2>&-", 2, ""),
    ],
)
def test_a_closed_stream_is_no_bug(arguments: str, closed: str, code: int, words: str) -> None:
    command = ["sh", "-c", f"exec {shlex.quote(sys.executable)} -m specserve {arguments} {closed}"]
    done = subprocess.run(command, capture_output=True, cwd=ROOT, timeout=120, check=False)
    said = (done.stdout + done.stderr).decode()
    assert (done.returncode, words in said, "Traceback" in said) == (code, True, False), said


@pytest.mark.parametrize("form", ["text", "concise", "github", "json", "sarif"])
def test_a_file_name_writes_no_command_of_ci_and_no_escape(form: str, tmp_path: Path, ended: Ended) -> None:
    file = tmp_path / "a\n::error::b\r::error::c\x1b[31m%0A::d\u2028::e,::x.yaml"
    file.write_text("target: {modl: x}\n")
    code, said = ended("lint", file, "--format", form)
    lines = [line for line in said.splitlines() if line.lstrip().startswith("::")]
    assert (code, len(lines)) == (1, form == "github")
    assert all(line.startswith("::error title=specserve") for line in lines)
    assert not set("\x1b\r\u2028") & set(said)


def test_an_error_that_names_a_file_is_one_line(ended: Ended, tmp_path: Path) -> None:
    (tmp_path / "a\n::error::x.yaml").write_text("target: {modl: x}\n")
    for command in ("plan", "lock", "convert"):
        code, said = ended(command, tmp_path / "a\n::error::x.yaml")
        assert code == 2 and not [line for line in said.splitlines() if line.lstrip().startswith("::")], said


def many(form: str, count: int, *, between: str = "") -> str:
    return between.join(form.format(number) for number in range(count))


SCRIPTS = {
    "evals": "eval " * 1000 + "vllm serve x/y\n",
    "evals of a variable": "X='" + "a " * 2000 + "'\n" + "eval eval eval vllm serve x/y $X\n" * 20,
    "lines of eval": many("eval 'X{}=1'\n", 2000) + "vllm serve x/y\n",
    "defaults": "vllm serve " + "${a:-" * 1500 + "x" + "}" * 1500 + "\n",
    "arithmetic": "vllm serve x --port " + "$((" * 5000 + "1" + "))" * 5000 + "\n",
    "unknown options": "vllm serve x/y " + many("--unknown-option-{} 1 ", 1000) + "\n",
    "image": f"docker run vllm/vllm-openai:v0.{DIGITS} --model x/y\n",
    "port": f"vllm serve x/y --port {DIGITS} --max-model-len {DIGITS}\n",
}


@pytest.mark.timeout(120)  # far above what any of them takes, and below what they took
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_read_soon_or_refused(ended: Ended, name: str, write: Write) -> None:
    code, said = ended("convert", write(SCRIPTS[name], "run.sh"))
    assert code != 2 or "error: " in said, said


X = "target: {model: x/y}\n"
PROFILES = {
    "engine": X + "engine:\n" + many("  unknown_kex_number_{}: 1\n", 500),
    "one line": X + f"engine: {{compilation_config: {{{many('unknown_{}: 1', 500, between=', ')}}}}}\n",
    "alternatives": X + "alternatives:\n" + many("  a{}: {{method: ngrm, k: 1}}\n", 1000),
    "range": X + f"vllm: '{many('>=0.{}', 20_000, between=',')}'\n",
    "version": X + f"vllm: '>=0.{DIGITS}'\n",
    "numbers": f"target: {{model: x/y, max_model_len: {DIGITS}}}\nengine: {{seed: -{HUGE}, block_size: 1e400}}\n",
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_is_judged_soon(ended: Ended, name: str, write: Write) -> None:
    code, said = ended("lint", write(PROFILES[name]))
    assert code == 1 and "Found" in said, said[-500:]
