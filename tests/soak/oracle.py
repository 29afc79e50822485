"""Compare what vLLM itself says of launches with what the rules say, and list every disagreement.

    python tests/soak/oracle.py [--vllm-source WHEEL|DIR] [--assume 8xH200-141GB]

The launches: the shipped profiles, the public recipes of tests/data, and the sound profiles and mistakes of
tests/engine/matrix.py. Models that are not on this machine are judged by their published configuration, or left out.
Then the small models of tests/memory, on one GPU and on two: how far the estimate is from what vLLM builds and plans.
Exit code 1 if vLLM refuses a launch that is known to work.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import yaml  # noqa: E402

from specserve.checks.check import Checked, check  # noqa: E402
from specserve.checks.collect import CheckOptions  # noqa: E402
from specserve.checks.oracle import vllm_in  # noqa: E402
from specserve.checks.oraclechild import CHILD, answers  # noqa: E402
from specserve.convert.convert import converted  # noqa: E402
from specserve.convert.reading import read  # noqa: E402
from specserve.diagnostics import ProfileVerdict, Report, Severity  # noqa: E402
from specserve.hardware.accelerators import Machine, assume  # noqa: E402
from specserve.memory.gpu import kv_cache, per_gpu, target_weights  # noqa: E402
from specserve.profile.load import examine  # noqa: E402
from tests.engine.matrix import FAILS_LOADING, REFUSED, SOUND  # noqa: E402
from tests.memory.models import recorded  # noqa: E402
from tests.memory.test_built import CASES, inputs_of  # noqa: E402

NAMES = {"python": "offline.py", "yaml": "compose.yaml"}
"""The file that a recipe of this form is read from."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A profile, and whether it is known to work."""

    kind: str
    name: str
    file: Path
    works: bool


def launches(folder: Path) -> Iterator[Launch]:
    """Every launch, as a profile."""
    for file in sorted((ROOT / "configs").glob("[!_]*.yaml")):
        yield Launch("shipped", file.name, file, True)
    for number, recipe in enumerate(yaml.safe_load((ROOT / "tests/data/recipes.yaml").read_text())):
        if "refused" not in recipe:
            place = folder / f"recipe{number}"
            place.mkdir()
            for name, text in recipe.get("files", {}).items():
                (place / name).write_text(text, encoding="utf-8")
            source = NAMES.get(recipe.get("form", ""), "serve.sh")
            (start, *_) = read(recipe["text"], file=source, folder=place)
            file = place / "p.yaml"
            file.write_text(converted(start, origin=source).text, encoding="utf-8")
            yield Launch("recipe", recipe["source"], file, True)
    for kind, cases in (("sound", SOUND), ("mistake", (*REFUSED, *FAILS_LOADING))):
        for number, case in enumerate(cases):
            place = folder / f"{kind}{number}"
            place.mkdir()
            yield Launch(kind, case.name, case.lay_out(place), kind == "sound")


def outcome(launch: Launch, verdict: ProfileVerdict, report: Report) -> tuple[str, str]:
    """Who refuses the launch, and the words."""
    file = str(launch.file)
    mine = [item for item in report.findings if item.span.file == file and item.severity is Severity.ERROR]
    rules = [f"{item.code} {item.message}" for item in mine if not item.code.startswith("SD5")]
    judged = verdict.vllm if isinstance(verdict, Checked) else ()
    if not judged:
        reasons = (item.reason for item in report.skipped if (item.profile, item.group) == (file, "vllm"))
        return ("rules, vLLM not asked" if rules else "not asked"), (rules or [*reasons, ""])[0]
    refused = [item.refused for item in judged if item.refused]
    if refused:
        return ("both" if rules else "vLLM"), f"{refused[0]}{f' / {rules[0]}' if rules else ''}"
    skipped = [
        f"{step}: {why}"
        for item in judged
        for step, why in ({"all": item.not_judged} if item.not_judged else item.skipped).items()
    ]
    if rules:
        return "rules", rules[0]
    return ("accepted in part" if skipped else "accepted"), "; ".join(dict.fromkeys(skipped))


def estimates(machine: Machine) -> Iterator[str]:
    """What the estimate makes of each recorded model, beside what vLLM builds and plans of it today."""
    cases = [case for case in CASES if case["name"] in (f"{case['model']}-tp1", f"{case['model']}-tp2")]
    requests = [
        {
            "argv": [
                "target",
                *(f"--{key.replace('_', '-')}={value}" for key, value in case["engine"].items()),
            ],
            "models": {"target": recorded(case["model"]).config},
            "build": {"draft_lacks": [], "beside": [0]},
            "count": 2,
        }
        for case in cases
    ]
    kind = machine.accelerator
    gpu = {
        "name": f"NVIDIA {kind.name}",
        "capability": kind.compute_capability,
        "total_bytes": kind.total_bytes,
    }
    said = answers((*CHILD, "--gpu", json.dumps(gpu)), requests)
    for case, answer in zip(cases, said, strict=True):
        inputs, built = inputs_of(case), answer.get("build", {})
        words = str(answer.get("refused") or answer.get("not_judged") or answer.get("skipped"))
        if built.get("plans"):
            (plan,), length = built["plans"], inputs.max_model_len
            weights = (
                per_gpu(target_weights(inputs), inputs, inputs.target.config, stages=1) / built["target"]
            )
            its = plan["kv_bytes"] * length / plan["tokens"]
            words = f"weights {weights - 1:+.2%}, KV cache {kv_cache(inputs).request_bytes(length) / its - 1:+.2%}"
        yield f"model    {case['name']:22} {words}"


def main() -> int:
    """0: vLLM refuses nothing that works."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--vllm-source", type=Path)
    parser.add_argument("--assume", default="8xH200-141GB")
    args = parser.parse_args()
    wanted = CheckOptions(
        offline=True,
        machine=assume(args.assume),
        asks=True,
        source=vllm_in(args.vllm_source) if args.vllm_source else None,
        here=False,
    )
    counts: Counter[tuple[str, str]] = Counter()
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="soak-oracle-") as name:
        all_ = [*launches(Path(name))]
        report = check(
            ((str(each.file), *examine(str(each.file), settings=())) for each in all_), wanted=wanted
        )
        for launch, verdict in zip(all_, report.verdicts, strict=True):
            who, words = outcome(launch, verdict, report)
            counts[launch.kind, who] += 1
            wrong += launch.works and who in ("vLLM", "both")
            if who != "not asked" and words and (launch.works or who != "both"):
                print(f"{launch.kind}: {launch.name}: {who}: {words[:300]}", flush=True)
    for (kind, who), count in sorted(counts.items()):
        print(f"{kind:8} {who:22} {count}")
    print(*estimates(assume(args.assume)), sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
