"""Measure specserve and vLLM on the GPU of this machine, in the minutes given: JSON and one page.

    python scripts/gpu_report.py [-o DIR] [--minutes 15] [--steps LIST]
    python scripts/gpu_report.py --small       the same steps on a CPU, with tiny shapes
    python scripts/gpu_report.py --dry-run     every step with its commands; starts nothing
    python scripts/gpu_report.py --read FILE   a row for each `specserve doctor --report` in the file

Steps run in order of value, or those of `--steps` in its order. Each result is written at once to
DIR/STEP.json; a step whose file is there is not run again, so the same command resumes. Models
stay in DIR/models, logs in DIR/logs. Needs vLLM and no network. What is run: gpu_report.yaml.
Exit code 1: a step failed; 2: nothing could be measured; 130: interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import html
import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # nothing has to be installed
from specserve import __version__
from specserve.memory import starts
from specserve.vllm.versions import installed, known_versions

Json = dict[str, Any]
ROOT = Path(__file__).resolve().parents[1]
DATA: Json = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
CLOSING_S, STOP_LIMIT_S = 15.0, 60.0  # kept for the end; given to a command before it is killed
READ_BACK = {
    "model_runner": "model runner",
    "weights_gib": "weights",
    "activation_gib": "activations",
    "cudagraph_gib": "CUDA graphs",
    "kv_gib": "KV cache",
    "kv_tokens": "KV cache, tokens",
}
"""Figures of a start that have a column in docs/results."""
ENDS = {
    "serves": r"init engine \(",  # the engine counts, not the API server on top of it
    "oom": r"(?i)out of memory|OutOfMemoryError",
    "does_not_fit": r"No available memory for the cache|KV cache is needed|less than desired GPU",
}
dumps = partial(json.dumps, ensure_ascii=False)
say = partial(print, file=sys.stderr, flush=True)


class Failed(Exception):
    """The step could not be done."""


@dataclass(frozen=True)
class Step:
    """One measurement. Its commands run in the report's folder, once `{…}` is filled in."""

    name: str
    seconds: float  # about what it takes, servers included (assumed)
    commands: Mapping[str, str]
    profiles: Mapping[str, Json]


@dataclass
class Server:
    """One `specserve up`, and how its start ended as its events tell."""

    child: subprocess.Popen[bytes]
    file: Path
    url: str | None = None
    cause: str | None = None
    log: str = ""

    def has_started(self) -> bool:
        """Whether it is ready, or has failed for a cause."""
        is_gone = self.child.poll() is not None  # asked first: what it wrote before is there then
        events: Json = {}
        for line in read(self.file).splitlines():
            with contextlib.suppress(ValueError, TypeError, KeyError):
                event = json.loads(line)
                events[event["event"]] = event
        self.log = read(Path(events.get("started", {}).get("log_path", self.file)))
        if ready := events.get("ready"):
            self.url = ready["url"]
        elif is_gone or "failed" in events:
            causes = events.get("failed", {}).get("causes")
            self.cause = "; ".join(causes or ()) or last_line(read(self.file))
        return bool(self.url or self.cause)


class Session:
    """The folder of the report and the time left: starts commands, and always ends them."""

    def __init__(self, folder: Path, minutes: float, values: Mapping[str, str]) -> None:
        self.folder, self.values = folder, values
        self._end_s = time.monotonic() + 60 * minutes - CLOSING_S

    def left_s(self) -> float:
        """Seconds that steps may still use."""
        return self._end_s - time.monotonic()

    def run(self, step: Step, name: str, **values: str) -> str:
        """What a command prints. With code 1 that is an answer too: findings, a missed limit."""
        child, file = self._start(step, name, **values)
        try:
            child.wait(timeout=max(0.0, self.left_s()))
        except subprocess.TimeoutExpired:
            raise Failed("the minutes given are over") from None
        finally:
            end([child])
        printed = read(file.with_suffix(".out"))
        if child.returncode not in (0, 1 if printed else 0):
            raise Failed(f"`{name}` ended with code {child.returncode}: {last_line(read(file))}")
        return printed

    @contextlib.contextmanager
    def servers(self, step: Step, names: Iterable[str]) -> Iterator[list[Server]]:
        """Start servers side by side, wait until each is ready or has failed, end them after."""
        started: list[Server] = []
        try:
            for name in names:
                started.append(Server(*self._start(step, name)))
            while not all(server.has_started() for server in started):
                if self.left_s() <= 0:
                    raise Failed("the minutes given are over")
                time.sleep(0.2)
            yield started
        finally:
            end([server.child for server in started])

    def _start(self, step: Step, name: str, **more: str) -> tuple[subprocess.Popen[bytes], Path]:
        """The command, and the file of its stderr; that of its stdout stands beside it."""
        program, *words = filled(step.commands[name], {**self.values, **more})
        own = [sys.executable] if program == "python" else [sys.executable, "-m", program]
        file = self.folder / "logs" / f"{step.name}-{name}.log"
        file.parent.mkdir(exist_ok=True)
        env = os.environ | {
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_USE_FLASHINFER_SAMPLER": "0",
            "PYTHONDONTWRITEBYTECODE": "",  # without byte code, a start takes twice as long
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.getenv("PYTHONPATH")])),
            "SPECSERVE_STATE_DIR": str(self.folder / "state"),
        }
        with file.open("wb") as stderr, file.with_suffix(".out").open("wb") as stdout:
            child = subprocess.Popen(
                [*own, *words],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env=env,
                cwd=self.folder,
                start_new_session=True,  # Ctrl-C comes here, and goes on from here
            )
        return child, file


def end(children: Sequence[subprocess.Popen[bytes]]) -> None:
    """End commands as Ctrl-C does; a second Ctrl-C does not break into that."""
    running = [child for child in children if child.poll() is None]
    signals = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, signal.SIG_IGN) for number in signals]
    for child in running:
        child.send_signal(signal.SIGINT)
    for child in running:
        try:
            child.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    for number, handler in zip(signals, before, strict=True):
        signal.signal(number, handler)


def filled(command: str, values: Mapping[str, str]) -> list[str]:
    """The words of a command with `{name}` filled in, where the name has a value."""
    name = r"\{(\w+)\}"
    return [re.sub(name, lambda m: values.get(m[1], m[0]), w) for w in shlex.split(command)]


def read(file: Path) -> str:
    """The text of a file; empty if it is not there."""
    return file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""


def last_line(text: str) -> str:
    """The line that says why a command failed: that of `error:`, else the last."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return ([line for line in lines if line.startswith("error")] or lines or ["no output"])[-1]


def plan(machine: Json) -> tuple[list[Step], dict[str, str]]:
    """All steps, the most valuable first, and what is filled into their commands."""
    data = DATA["gpu" if machine["gpu"] else "small"]
    paths = {"repository": str(ROOT), "prompts": str(ROOT / "demo" / "prompts.jsonl")}
    steps = [
        Step(name, seconds, commands, {} if name == "widen" else {"pair.yaml": data["pair"]})
        for name, (seconds, commands) in DATA["steps"].items()
        if machine["gpu"] or name != "widen"
    ]
    version = ".".join((machine["vllm"] or "").split(".")[:2])
    judge_by = f"--no-ask --offline {f'--vllm {version}' * (version in known_versions())} --format json"
    start = "--no-check --format json"
    base, judged = data["judged"], {}
    for number, case in enumerate(DATA["judge"].values(), start=1):
        changed = {key: base.get(key, {}) | new for key, new in case.items()}
        judged[f"judge-{number}.yaml"] = base | changed
    starts = {f"memory-{name}": {f"{name}.yaml": each} for name, each in data["memory"].items()}
    for name, profiles in {**starts, "judge": judged}.items():
        commands = {f"check-{file}": f"specserve check {file} {judge_by}" for file in profiles}
        commands |= {f"up-{file}": f"specserve up {file} {start}" for file in profiles}
        steps.append(Step(name, 60 + 10 * len(profiles), commands, profiles))
    return steps, data["values"] | paths


def write_models(models: Path) -> None:
    """The demo's pair, and the shapes as configurations with the demo's tokenizer."""
    for name in ("target", "draft"):
        shutil.copytree(ROOT / "demo" / name, models / f"demo-{name}", dirs_exist_ok=True)
    for name, shape in DATA["shapes"].items():
        model = models / name
        model.mkdir(exist_ok=True)
        write(model / "config.json", dumps(shape))
        write_weights(model / "model.safetensors", shape)
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copyfile(ROOT / "demo" / "target" / file, model / file)


def write_weights(file: Path, shape: Json) -> None:
    """A file that takes no room: a header by which `check` weighs the model, and a hole."""
    hidden, inner, heads = (shape[key] for key in ("hidden_size", "intermediate_size", "head_dim"))
    queries, keys = (heads * shape[f"num_{each}_heads"] for each in ("attention", "key_value"))
    is_head, experts = "draft_vocab_size" in shape, range(shape.get("num_experts", 0))
    inner = shape.get("moe_intermediate_size", inner)
    wide = 2 * hidden if is_head else hidden  # a head reads the embedding beside its hidden state
    sizes = {f"self_attn.{each}_proj": (keys, wide) for each in "kv"}
    sizes |= {"self_attn.q_proj": (queries, wide), "self_attn.o_proj": (hidden, queries)}
    for part in [f"mlp.experts.{at}" for at in experts] or ["mlp"]:
        sizes |= {f"{part}.{each}_proj": (inner, hidden) for each in ("gate", "up")}
        sizes[f"{part}.down_proj"] = (hidden, inner)
    stored, root = ("F8_E4M3", 1) if "quantization_config" in shape else ("BF16", 2), "model.layers"
    tensors = {
        f"midlayer.{name}.weight" if is_head else f"{root}.{at}.{name}.weight": (*stored, size)
        for at in range(shape["num_hidden_layers"])
        for name, size in sizes.items()
    }
    table = ("BF16", 2, (shape["vocab_size"], hidden))
    if is_head:
        tensors["fc.weight"] = ("BF16", 2, (hidden, 3 * hidden))
        tensors["lm_head.weight"] = ("BF16", 2, (shape["draft_vocab_size"], hidden))
    else:
        tensors["model.embed_tokens.weight"] = table
        tensors |= {} if shape["tie_word_embeddings"] else {"lm_head.weight": table}
    header, end = {}, 0
    for name, (dtype, width, size) in tensors.items():
        start, end = end, end + width * math.prod(size)
        header[name] = {"dtype": dtype, "shape": size, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text)
    os.truncate(file, 8 + len(text) + end)


def measured(session: Session, step: Step, machine: Json) -> tuple[Json, list[Json]]:
    """What a step found, and its main figures as rows of a table."""
    if step.name == "widen":
        if not (session.folder / "models" / "wide" / "widened.json").exists():
            session.run(step, "widen")
        return {}, [{"model": "models/wide, 32 layers, 16 GB"}]
    if step.name == "text":
        return compare_text(session, step)
    if step.name not in DATA["steps"]:
        return start_each(session, step, machine)
    found = json.loads(session.run(step, step.name))
    rows = []
    for item in found.get("comparisons") or found.get("rows") or ():  # of bench, of tune
        speedup = item.get("speedup") or {}
        row = {key: speedup.get(key) and round(speedup[key], 3) for key in ("value", "low", "high")}
        where = {"concurrency": (item.get("point") or {}).get("concurrency")}
        if "num_speculative_tokens" in item:
            where["K"] = item["num_speculative_tokens"]
        rows.append({**where, **row, "verdict": (item.get("verdict") or {}).get("word")})
    return found, rows


def compare_text(session: Session, step: Step) -> tuple[Json, list[Json]]:
    """The same prompts to both servers, greedy; sampled too, and verified, with speculation."""
    lines = read(Path(session.values["prompts"])).splitlines()[:5]
    prompts = [json.loads(line)["prompt"] for line in lines]
    with session.servers(step, ["speculation", "baseline"]) as (fast, plain):
        if fast.cause or plain.cause:
            raise Failed(f"a server did not start: {fast.cause or plain.cause}")
        greedy, alone, sampled = (
            [json.loads(session.run(step, name, prompt=p, url=str(server.url))) for p in prompts]
            for name, server in (("greedy", fast), ("greedy", plain), ("sampled", fast))
        )
        verified = json.loads(session.run(step, "verify", url=str(fast.url)))
    same = sum(one["text"] == other["text"] for one, other in zip(greedy, alone, strict=True))
    row: Json = {"greedy text equal": f"{same} of {len(greedy)}"}
    for temperature, answers in (("0", greedy), ("0.7", sampled)):
        counts = [answer["speculation"]["acceptance"] or {} for answer in answers]
        drafted = sum(each.get("draft_tokens", 0) for each in counts)
        accepted = sum(each.get("accepted_tokens", 0) for each in counts)
        row[f"acceptance at T = {temperature}"] = round(accepted / drafted, 3) if drafted else None
    row |= {"verify": (verified.get("verdict") or {}).get("word"), "seconds": verified.get("elapsed_s")}
    return {"greedy": greedy, "alone": alone, "sampled": sampled, "verify": verified}, [row]


def start_each(session: Session, step: Step, machine: Json) -> tuple[Json, list[Json]]:
    """What check says of each profile, and what vLLM does and logs when it starts it."""
    rows, points = [], []
    files, together = list(step.profiles), 4 if machine["gpu"] else 2
    titles = list(DATA["judge"]) if step.name == "judge" else files
    for at in range(0, len(files), together):
        group = files[at : at + together]
        checked = []
        for file in group:
            try:
                checked.append(json.loads(session.run(step, f"check-{file}")))
            except Failed as error:  # such as a vLLM that check does not know
                checked.append({"findings": [{"severity": "failed:", "code": str(error)}]})
        with session.servers(step, [f"up-{file}" for file in group]) as servers:
            pass
        for file, said, server in zip(group, checked, servers, strict=True):
            found = [f"{item['severity']} {item['code']}" for item in said.get("findings") or ()]
            notable = [code for code in found if not code.startswith("info")]
            is_error = any(code.startswith("error ") for code in notable)
            memory = ((said.get("verdicts") or [{}])[0]).get("memory") or {}
            tokens = memory.get("kv_cache_tokens") or {}
            point = memory_point(step.name, step.profiles[file], machine, server)
            points.append({**point, "predicted": memory})
            rows.append(
                {
                    "profile": titles[files.index(file)],
                    "check": ", ".join(notable) or "ok",
                    "vLLM": point["outcome"],
                    "agree": is_error == (point["outcome"] != "serves"),
                    "check's KV tokens": f"{tokens.get('low')} to {tokens.get('high')}",
                    "vLLM's KV tokens": point["reported_kv_tokens"],
                    "cause": server.cause,
                }
            )
    return {"starts" if step.name == "judge" else "memory_points": points}, rows


def memory_point(name: str, profile: Json, machine: Json, server: Server) -> Json:
    """One line of points.jsonl: the launch, and what its log says of memory."""
    target, draft, engine = profile["target"], profile.get("speculation"), profile["engine"]
    point: Json = {"id": name, "model": Path(target["model"]).name, "config": sizes(target)}
    point |= {"dtype": target.get("dtype", "bf16"), "draft": None}
    if draft and "model" in draft:
        point["draft"] = {"method": draft["method"], "k": draft["num_speculative_tokens"]}
        point["draft"] |= {"config": sizes(draft)}
    point["quant"] = "fp8" if "fp8" in point["model"] else None
    point |= {"gpu": machine["gpu"] or "cpu", "max_model_len": target["max_model_len"]}
    for key in ("gpu_memory_utilization", "max_num_seqs", "max_num_batched_tokens"):
        point[key] = engine.get(key)
    point |= {"enforce_eager": "enforce_eager" in engine, "vllm_version": machine["vllm"]}
    logged: Json = dict.fromkeys(starts.LOGGED)
    found: Json = {}
    for line in server.log.splitlines():
        starts.note(found, line)
    point |= {f"reported_{what}": value for what, value in (logged | found).items()}
    point["gpu_mem_gib"] = point.pop("reported_total_gib") or machine["total_gib"]
    ends = [word for word, sign in ENDS.items() if server.url or re.search(sign, server.log)]
    point["outcome"] = [*ends, "fails"][0]
    point["regime"] = "v2" if found.get("model_runner") == 2 else "v1_graph_deducted"
    point["notes"] = "; ".join(filter(None, ["dummy weights", server.cause]))
    return point | {"source": "scripts/gpu_report.py", "tier": "A"}


def sizes(model: Json) -> Json:
    """The shape that a section of a profile names, in the words of a memory point."""
    shape = DATA["shapes"][Path(model["model"]).name]
    return {name: shape[key] for name, key in DATA["sizes"].items() if key in shape}


def main() -> int:
    """The exit code."""
    keep = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=keep)
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "build" / "gpu-report")
    parser.add_argument("--minutes", type=float, default=15.0, metavar="N", help="time to use (15)")
    parser.add_argument("--steps", metavar="LIST", help="only these, in this order: bench,text")
    parser.add_argument("--small", action="store_true", help="on the CPU, with tiny shapes")
    parser.add_argument("--dry-run", action="store_true", help="print the steps, start nothing")
    parser.add_argument("--read", type=Path, nargs="+", metavar="FILE", help="rows of others' starts")
    args = parser.parse_args()
    if args.read:
        print("\n".join(read_back(args.read)))
        return 0
    machine = describe(is_small=args.small)
    if args.dry_run and not args.small and not machine["gpu"]:
        machine["gpu"] = "NVIDIA GPU (assumed)"
    steps, values = plan(machine)
    known = {step.name: step for step in steps}
    names = args.steps.split(",") if args.steps else list(known)
    if unknown := [name for name in names if name not in known]:
        say(f"error: there is no step `{unknown[0]}`; there are {', '.join(known)}")
        return 2
    if "widen" in known and any("pair.yaml" in known[name].profiles for name in names):
        names.insert(0, "widen")
    chosen = [known[name] for name in dict.fromkeys(names)]
    if args.dry_run:
        print(f"{machine['gpu'] or 'CPU'}, {args.minutes:g} minutes; nothing is started")
        for step in chosen:
            print(f"\n{step.name} (about {step.seconds:.0f} s, assumed)")
            for command in step.commands.values():
                print(f"  $ {shlex.join(filled(command, values))}")
            for name, profile in step.profiles.items():
                print(f"  {name}: {json.dumps(profile)}")
        return 0
    if not machine["vllm"] or not (machine["gpu"] or args.small):
        say("error: this needs vLLM and an NVIDIA GPU; `--small` measures on the CPU")
        return 2
    session = Session(args.output.resolve(), args.minutes, values)
    return measure(session, machine, chosen, list(known))


def read_back(files: Iterable[Path]) -> Iterator[str]:
    """Rows for the table of docs/results: of each block of `specserve doctor --report` in the files."""
    columns = ["accelerator", "vLLM", "launch", *READ_BACK.values(), "check had said", "verdict"]
    yield from (f"| {' | '.join(cells)} |" for cells in (columns, ["---"] * len(columns)))
    for block in (b for file in files for b in re.findall(r"(?ms)^```json\n(.*?)\n```", read(file))):
        point = json.loads(block)
        asked, logged, told = point["asked"], point["logged"], point["predicted"]
        models = [asked[role]["model"] for role in ("target", "draft") if role in asked]
        chosen = {key: value for key, value in asked.get("engine", {}).items() if key.startswith("max_")}
        chosen |= {"K": asked.get("speculation", {}).get("num_speculative_tokens")}
        launch = [*models, *(f"{key} {value}" for key, value in chosen.items() if value is not None)]
        band = told.get("kv_gib") or told.get("kv_tokens") or ()
        cells = [asked.get("accelerator", ["?"])[0], point["vllm"], ", ".join(launch)]
        cells += [f"{logged[key]:,}" if key in logged else "-" for key in READ_BACK]
        cells += [" to ".join(dict.fromkeys(f"{end:,.2f}" for end in band)) or "-", point["verdict"]]
        yield f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def describe(*, is_small: bool) -> Json:
    """The first GPU, unless the CPU is to be measured; versions. Nothing names host or user."""
    gpu, total = None, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if not is_small:
        with contextlib.suppress(Exception):  # no library, no driver, no GPU
            import pynvml as nvml

            nvml.nvmlInit()
            device = nvml.nvmlDeviceGetHandleByIndex(0)
            gpu, total = nvml.nvmlDeviceGetName(device), nvml.nvmlDeviceGetMemoryInfo(device).total
    about: Json = {"gpu": gpu, "total_gib": round(total / 2**30, 2), "cores": os.cpu_count()}
    vllm = installed()
    about |= {"python": sys.version.split()[0], "vllm": vllm and vllm.version}
    with contextlib.suppress(metadata.PackageNotFoundError):
        about["torch"] = metadata.version("torch")
    return about | {"specserve": __version__}


def measure(session: Session, machine: Json, chosen: Sequence[Step], known: Sequence[str]) -> int:
    """Run what is missing, keep each result at once, and give the exit code."""
    folder = session.folder
    earlier = json.loads(read(folder / "report.json") or "{}").get("machine", machine)
    if any(earlier.get(key) != machine[key] for key in ("gpu", "vllm")):
        say(f"error: {folder} has results of {earlier['gpu'] or 'a CPU'}, vLLM {earlier['vllm']}")
        return 2
    for number in (signal.SIGINT, signal.SIGTERM):  # also where a shell let it ignore Ctrl-C
        signal.signal(number, signal.default_int_handler)
    try:
        write_models(folder / "models")
        kept = [name for name in known if (folder / f"{name}.json").exists()]
        records = {name: json.loads(read(folder / f"{name}.json")) for name in kept}
        for step in chosen:
            if step.name in records:
                say(f"{step.name}: done before")
            else:
                records[step.name] = attempt(session, step, machine)
            made = [records[name] for name in known if name in records]
            write(folder / "report.json", dumps({"machine": machine, "steps": made}))
            points = [dumps(p) for r in made for p in r.get("result", {}).get("memory_points", ())]
            write(folder / "points.jsonl", "".join(f"{point}\n" for point in points))
            write(folder / "report.html", page(machine, made))
    except KeyboardInterrupt:
        say(f"interrupted; the same command goes on from {folder}")
        return 130
    say(folder / "report.html")
    return int("failed" in [record["status"] for record in records.values()])


def attempt(session: Session, step: Step, machine: Json) -> Json:
    """One step; no fault of it ends the run. Only what was measured becomes its file."""
    record: Json = {"name": step.name, "status": "not run", "rows": []}
    record |= {"commands": dict(step.commands), "profiles": dict(step.profiles)}
    if session.left_s() < step.seconds:
        say(f"{step.name}: not run: it takes about {step.seconds:.0f} s, more than is left")
        return record
    say(f"{step.name} (about {step.seconds:.0f} s)")
    began = time.monotonic()
    try:
        for name, profile in step.profiles.items():
            write(session.folder / name, yaml.safe_dump(profile, sort_keys=False))
        result, rows = measured(session, step, machine)
    except Exception as error:
        cause = str(error) if isinstance(error, Failed) else f"{type(error).__name__}: {error}"
        say(f"  failed: {cause}")
        return record | {"status": "failed", "rows": [{"cause": cause}]}
    record |= {"status": f"done in {time.monotonic() - began:.0f} s"}
    record |= {"rows": rows, "result": result}
    write(session.folder / f"{step.name}.json", dumps(record, indent=1))
    for row in rows:
        say("  " + ", ".join(f"{key} {value}" for key, value in row.items() if value is not None))
    return record


def write(file: Path, content: str) -> None:
    """The text without the folders of this machine; a file that is there is always whole."""
    for path, name in ((file.parent, "{report}"), (ROOT, "{repository}"), (Path.home(), "~")):
        content = content.replace(str(path), name) if len(path.parts) > 1 else content
    part = file.with_suffix(".part")
    part.write_text(content, encoding="utf-8")
    part.replace(file)


def page(machine: Json, records: Sequence[Json]) -> str:
    """The report as one HTML page without scripts."""

    def cells(tag: str, values: Iterable[Any]) -> str:
        texts = ["" if value is None else html.escape(str(value)) for value in values]
        return f"<tr>{''.join(f'<{tag}>{text}</{tag}>' for text in texts)}</tr>"

    style = ":root{color-scheme:light dark}td,th{text-align:left;padding:.2em .8em}"
    about = ", ".join(f"{name} {value}" for name, value in machine.items() if value is not None)
    parts = [f"<!doctype html><meta charset=utf-8><style>{style}</style>", html.escape(about)]
    for record in records:
        parts += [f"<h2>{record['name']}</h2><p>{record['status']}</p>"]
        lines = [cells("th", row) for row in record["rows"][:1]]
        lines += [cells("td", row.values()) for row in record["rows"]]
        parts += ["<table>", *lines, "</table>"]
        lines = [f"$ {command}" for command in record["commands"].values()]
        lines += [f"\n# {name}\n{yaml.safe_dump(p)}" for name, p in record["profiles"].items()]
        text = html.escape("\n".join(lines))
        parts += [f"<details><summary>commands</summary><pre>{text}</pre></details>"]
    return "\n".join(parts)


if __name__ == "__main__":
    sys.exit(main())
