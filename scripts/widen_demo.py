"""Widen the demo target with inert MLP units: the same function at the cost per token of a larger model.

Each layer gets random gate and up rows and zero down columns, so that the added units contribute nothing.
It needs torch and safetensors, and knows nothing of vLLM and of how the pair was trained.
"""

import argparse
import hashlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

DEMO = Path(__file__).resolve().parents[1] / "demo"
INTERMEDIATE_SIZE = 65536  # 4 layers x 256 x 3 of it: 203 M parameters with the rest
SEED = 20261121
INDEX = "model.safetensors.index.json"
MANIFEST = "widened.json"  # written last: a folder that has it is whole


class WidenError(Exception):
    """The widened model cannot be written; the message says why and what to do."""


def recipe(small: Path, *, intermediate_size: int) -> dict[str, Any]:
    """What the result is made from; equal recipes make equal folders."""
    files = sorted(path for path in small.glob("*") if path.is_file())
    if not {"config.json", "model.safetensors"} <= {path.name for path in files}:
        raise WidenError(f"{small} holds no model (config.json and model.safetensors)")
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return {
        "source_sha256": digest.hexdigest(),
        "intermediate_size": intermediate_size,
        "seed": SEED,
        "format": 1,
    }


def is_complete(out: Path, wanted: dict[str, Any]) -> bool:
    """Whether `out` is the whole result of this recipe: the manifest agrees and every file has its size."""
    try:
        manifest = json.loads((out / MANIFEST).read_text(encoding="utf-8"))
        sizes = {name: (out / name).stat().st_size for name in manifest["size_bytes"]}
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return bool(manifest["recipe"] == wanted and manifest["size_bytes"] == sizes)


def need_disk(out: Path, config: dict[str, Any], *, intermediate_size: int) -> None:
    """Refuse before writing when the disk cannot hold the result (bf16, 10 % to spare)."""
    weights = 3 * config["num_hidden_layers"] * config["hidden_size"] * intermediate_size
    need_bytes = int(2 * weights * 1.1) + 50_000_000
    free_bytes = shutil.disk_usage(out.parent).free
    if free_bytes < need_bytes:
        raise WidenError(
            f"{out.parent} has {free_bytes / 1e9:.1f} GB free, the widened model needs "
            f"{need_bytes / 1e9:.1f} GB; free some space or name another OUT"
        )


def widened(name: str, tensor: Any, *, extra: int, generator: Any) -> Any:
    """One tensor of the wide model: gate and up get random rows, down gets zero columns, others stay."""
    import torch

    if name.endswith(("mlp.gate_proj.weight", "mlp.up_proj.weight")):
        rows = torch.empty(extra, tensor.shape[1], dtype=tensor.dtype).normal_(std=0.02, generator=generator)
        return torch.cat([tensor, rows])
    if name.endswith("mlp.down_proj.weight"):
        return torch.cat([tensor, tensor.new_zeros(tensor.shape[0], extra)], 1)
    return tensor


def write_weights(small: Path, part: Path, config: dict[str, Any], *, intermediate_size: int) -> None:
    """One shard per layer and one for the rest, so that memory holds one layer at a time."""
    import torch
    from safetensors import safe_open
    from safetensors.torch import save_file

    extra = intermediate_size - config["intermediate_size"]
    if extra < 0:
        raise WidenError(f"intermediate size {intermediate_size} is less than the small model's own")
    layers = config["num_hidden_layers"]
    generator = torch.Generator().manual_seed(SEED)
    where: dict[str, str] = {}
    with safe_open(small / "model.safetensors", framework="pt") as source:
        names = sorted(source.keys())
        for number in range(layers + 1):
            mine = [n for n in names if n.startswith(f"model.layers.{number}.")]
            if number == layers:
                mine = [n for n in names if not n.startswith("model.layers.")]
            shard = f"model-{number + 1:05}-of-{layers + 1:05}.safetensors"
            tensors = {n: widened(n, source.get_tensor(n), extra=extra, generator=generator) for n in mine}
            save_file(tensors, part / shard, metadata={"format": "pt"})
            (part / shard).chmod(0o644)  # a container's user reads it too
            where |= dict.fromkeys(mine, shard)
            print(
                f"widening the demo target: {number + 1} of {layers + 1} files", file=sys.stderr, flush=True
            )
    size = sum(path.stat().st_size for path in part.glob("*.safetensors"))
    index = {"metadata": {"total_size": size}, "weight_map": where}
    (part / INDEX).write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")


def widen(small: Path, out: Path, *, intermediate_size: int = INTERMEDIATE_SIZE) -> bool:
    """Write `out` unless it is there already; True when it was written. A broken-off run leaves no `out`."""
    wanted = recipe(small, intermediate_size=intermediate_size)
    if is_complete(out, wanted):
        return False
    if out.exists() and not (out / MANIFEST).exists() and (not out.is_dir() or any(out.iterdir())):
        raise WidenError(f"{out} exists and was not written by this script; move it away or name another OUT")
    config = json.loads((small / "config.json").read_text(encoding="utf-8"))
    out.parent.mkdir(parents=True, exist_ok=True)
    need_disk(out, config, intermediate_size=intermediate_size)
    part = out.with_name(out.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    try:
        write_weights(small, part, config, intermediate_size=intermediate_size)
        for path in small.glob("*"):
            if path.suffix in {".json", ".jinja", ".txt"} and path.name != "config.json":
                shutil.copyfile(path, part / path.name)
        wide = config | {"intermediate_size": intermediate_size}
        (part / "config.json").write_text(json.dumps(wide, indent=2) + "\n", encoding="utf-8")
        sizes = {path.name: path.stat().st_size for path in sorted(part.glob("*"))}
        manifest = {"recipe": wanted, "size_bytes": sizes}
        (part / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        shutil.rmtree(out, ignore_errors=True)
        part.rename(out)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return True


def main() -> int:
    """0: the wide model is there; 1: `--check` and it is not; 2: it could not be written."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("small", nargs="?", type=Path, default=DEMO / "target", metavar="SMALL")
    parser.add_argument("out", nargs="?", type=Path, default=DEMO / "wide", metavar="OUT")
    parser.add_argument("--intermediate-size", type=int, default=INTERMEDIATE_SIZE)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 unless OUT is there and whole"
    )
    args = parser.parse_args()
    try:
        if args.check:
            whole = is_complete(args.out, recipe(args.small, intermediate_size=args.intermediate_size))
            print(f"{args.out} is {'up to date' if whole else 'missing or out of date'}", file=sys.stderr)
            return 0 if whole else 1
        wrote = widen(args.small, args.out, intermediate_size=args.intermediate_size)
    except (WidenError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{args.out} {'written' if wrote else 'is up to date'}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
