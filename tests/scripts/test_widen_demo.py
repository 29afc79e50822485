"""The widened demo target is the same function as the small one, and writing it is safe to repeat."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import widen_demo as script

torch = pytest.importorskip("torch", reason="needs the engine environment")

pytestmark = pytest.mark.vllm
ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "widen_demo.py"
TARGET = ROOT / "demo" / "target"
SIZE = 2048  # the mathematics is the same at 65536, which takes 400 MB


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    out = tmp_path_factory.mktemp("demo") / "wide"
    assert script.widen(TARGET, out, size=script.Size(SIZE))
    yield out
    shutil.rmtree(out)


def logits(folder: Path, *, dtype: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    lines = (ROOT / "demo" / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    prompts = [json.loads(line)["prompt"] for line in lines]
    with torch.inference_mode():
        return [model(**tokenizer(prompt, return_tensors="pt")).logits for prompt in prompts[::32]]


# a library may split a longer sum into other partial sums: the zeros change nothing but the rounding
@pytest.mark.parametrize(("dtype", "rounding"), [("float32", 1e-4), ("bfloat16", 0.3)])
def test_the_widened_target_gives_the_logits_of_the_small_one(
    wide: Path, dtype: str, rounding: float
) -> None:
    kind = getattr(torch, dtype)
    small, large = logits(TARGET, dtype=kind), logits(wide, dtype=kind)
    assert len(small) == 2
    for one, other in zip(small, large, strict=True):
        assert one.std() > 0.5  # a trained model, not a constant
        assert (one - other).abs().max() <= rounding


def test_added_layers_compute_nothing_and_the_dtype_can_be_chosen(tmp_path: Path) -> None:
    out = tmp_path / "deep"
    assert script.widen(TARGET, out, size=script.Size(SIZE, layers=7, dtype="float32"))
    config = json.loads((out / "config.json").read_text())
    assert (config["num_hidden_layers"], config["dtype"]) == (7, "float32")
    for one, other in zip(logits(TARGET, dtype=torch.float32), logits(out, dtype=torch.float32), strict=True):
        assert (one - other).abs().max() <= 1e-4


def test_a_second_run_writes_nothing_but_a_truncated_shard(wide: Path, tmp_path: Path) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in wide.iterdir()}
    assert not script.widen(TARGET, wide, size=script.Size(SIZE))
    assert {path.name: path.stat().st_mtime_ns for path in wide.iterdir()} == before
    out = tmp_path / "wide"
    shutil.copytree(wide, out)
    shard = next(out.glob("*.safetensors"))
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-1])
    assert script.widen(TARGET, out, size=script.Size(SIZE))
    assert shard.read_bytes() == whole


def test_check_writes_nothing_and_tells_by_its_exit_code(wide: Path, tmp_path: Path) -> None:
    def check(out: Path) -> int:
        size = ["--intermediate-size", str(SIZE)]
        return subprocess.run([sys.executable, SCRIPT, TARGET, out, *size, "--check"], check=False).returncode

    assert check(wide) == 0
    assert check(tmp_path / "none") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_somebody_else_and_a_full_disk_are_told_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "mine" / "notes.txt"
    mine.parent.mkdir()
    mine.write_text("mine")
    with pytest.raises(script.WidenError, match="not written by this script"):
        script.widen(TARGET, mine.parent, size=script.Size(SIZE))
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1_000_000))
    with pytest.raises(script.WidenError, match="free some space"):
        script.widen(TARGET, tmp_path / "wide", size=script.Size(SIZE))
    assert [*tmp_path.iterdir(), *mine.parent.iterdir()] == [mine.parent, mine]
