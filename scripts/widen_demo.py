"""Widen the demo target with inert MLP units: the same function at the cost per token of a larger model.

Each layer gets random gate and up rows and zero down columns, so that the added units contribute nothing.
`--layers` adds whole layers whose outputs are zero. Needs torch and safetensors.
"""

import argparse
import hashlib
import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEMO = Path(__file__).resolve().parents[1] / "demo"
INTERMEDIATE_SIZE = 65536  # 4 layers x 256 x 3 of it: 203 M parameters with the rest
SEED = 20261121
INDEX = "model.safetensors.index.json"
DRAWN_ROWS = 65536  # more rows repeat these: drawing billions of numbers would take minutes
MANIFEST = "widened.json"  # written last: a folder that has it is whole


class WidenError(Exception):
    """The widened model cannot be written; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Size:
    """How large the widened model is; None: as the small one."""

    intermediate_size: int = INTERMEDIATE_SIZE
    layers: int | None = None
    dtype: str | None = None


def recipe(small: Path, *, size: Size) -> dict[str, Any]:
    """What the result is made from; equal recipes make equal folders."""
    files = sorted(path for path in small.glob("*") if path.is_file())
    if not {"config.json", "model.safetensors"} <= {path.name for path in files}:
        raise WidenError(f"{small} holds no model (config.json and model.safetensors)")
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    made = {
        "source_sha256": digest.hexdigest(),
        "intermediate_size": size.intermediate_size,
        "seed": SEED,
        "format": 1,
    }
    return made | {name: value for name in ("layers", "dtype") if (value := getattr(size, name)) is not None}


def is_complete(out: Path, wanted: dict[str, Any]) -> bool:
    """Whether `out` is the whole result of this recipe: the manifest agrees and every file has its size."""
    try:
        manifest = json.loads((out / MANIFEST).read_text(encoding="utf-8"))
        sizes = {name: (out / name).stat().st_size for name in manifest["size_bytes"]}
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return bool(manifest["recipe"] == wanted and manifest["size_bytes"] == sizes)


def need_disk(out: Path, config: dict[str, Any]) -> None:
    """Refuse before writing when the disk cannot hold a model of this configuration (10 % to spare)."""
    weights = 3 * config["num_hidden_layers"] * config["hidden_size"] * config["intermediate_size"]
    width = 4 if config["dtype"] == "float32" else 2
    need_bytes = int(width * weights * 1.1) + 50_000_000
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
        drawn = min(extra, DRAWN_ROWS)
        rows = torch.empty(drawn, tensor.shape[1], dtype=tensor.dtype).normal_(std=0.02, generator=generator)
        repeats = -(-extra // drawn) if drawn else 1
        return torch.cat([tensor, rows.repeat(repeats, 1)[:extra]])
    if name.endswith("mlp.down_proj.weight"):
        return torch.cat([tensor, tensor.new_zeros(tensor.shape[0], extra)], 1)
    return tensor


def inert(name: str, tensor: Any) -> Any:
    """The same tensor of an added layer: what it writes into the residual stream is zero."""
    return tensor.zero_() if name.endswith(("self_attn.o_proj.weight", "mlp.down_proj.weight")) else tensor


def write_weights(small: Path, part: Path, *, small_config: dict[str, Any], config: dict[str, Any]) -> None:
    """One shard per layer and one for the rest, so that memory holds one layer at a time."""
    import torch
    from safetensors import safe_open
    from safetensors.torch import save_file

    extra = config["intermediate_size"] - small_config["intermediate_size"]
    own, layers = small_config["num_hidden_layers"], config["num_hidden_layers"]
    if extra < 0 or layers < own:
        raise WidenError("the widened model would be smaller than the small one")
    dtype = getattr(torch, config["dtype"])
    generator = torch.Generator().manual_seed(SEED)
    where: dict[str, str] = {}
    with safe_open(small / "model.safetensors", framework="pt") as source:
        names = sorted(source.keys())
        for number in range(layers + 1):
            copied = f"model.layers.{min(number, own - 1)}."
            mine = [n for n in names if n.startswith(copied)]
            if number == layers:
                mine = [n for n in names if not n.startswith("model.layers.")]
            shard = f"model-{number + 1:05}-of-{layers + 1:05}.safetensors"
            tensors = {}
            for name in mine:
                tensor = source.get_tensor(name).to(dtype)
                wide = widened(name, tensor, extra=extra, generator=generator)
                is_added = own <= number < layers
                written = name.replace(copied, f"model.layers.{number}.") if is_added else name
                tensors[written] = inert(name, wide) if is_added else wide
            save_file(tensors, part / shard, metadata={"format": "pt"})
            (part / shard).chmod(0o644)  # a container's user reads it too
            where |= dict.fromkeys(tensors, shard)
            print(
                f"widening the demo target: {number + 1} of {layers + 1} files", file=sys.stderr, flush=True
            )
    size = sum(path.stat().st_size for path in part.glob("*.safetensors"))
    index = {"metadata": {"total_size": size}, "weight_map": where}
    (part / INDEX).write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")


def widen(small: Path, out: Path, *, size: Size) -> bool:
    """Write `out` unless it is there already; True when it was written. A broken-off run leaves no `out`."""
    wanted = recipe(small, size=size)
    if is_complete(out, wanted):
        return False
    if out.exists() and not (out / MANIFEST).exists() and (not out.is_dir() or any(out.iterdir())):
        raise WidenError(f"{out} exists and was not written by this script; move it away or name another OUT")
    config = json.loads((small / "config.json").read_text(encoding="utf-8"))
    wide = config | {
        "intermediate_size": size.intermediate_size,
        "num_hidden_layers": size.layers or config["num_hidden_layers"],
        "dtype": size.dtype or config["dtype"],
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    need_disk(out, wide)
    part = out.with_name(out.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    try:
        write_weights(small, part, small_config=config, config=wide)
        for path in small.glob("*"):
            if path.suffix in {".json", ".jinja", ".txt"} and path.name != "config.json":
                shutil.copyfile(path, part / path.name)
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
    parser.add_argument("--layers", type=int, metavar="N", help="add layers that compute nothing, up to N")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), help="default: the small model's")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 unless OUT is there and whole"
    )
    args = parser.parse_args()
    size = Size(args.intermediate_size, args.layers, args.dtype)
    try:
        if args.check:
            whole = is_complete(args.out, recipe(args.small, size=size))
            print(f"{args.out} is {'up to date' if whole else 'missing or out of date'}", file=sys.stderr)
            return 0 if whole else 1
        wrote = widen(args.small, args.out, size=size)
    except (WidenError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{args.out} {'written' if wrote else 'is up to date'}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
