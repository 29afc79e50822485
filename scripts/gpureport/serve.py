"""serve: the pair answers, its greedy text is that of the server without speculation, and drafts are accepted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpureport import bootlog, memory, pair, store
from gpureport.children import filled
from gpureport.servers import Start, servers
from gpureport.step import Folders, Outcome, Run, Step, StepFailed, StepSkipped, Target

_START_LIMIT_S = 420.0
_ASK_S, _WIDEN_S = 1.5, 45.0
_MAX_TOKENS = 48


def steps(target: Target, folders: Folders) -> Iterator[Step]:
    """The widened model, the runner that vLLM takes, then each of the two."""
    if not target.is_small:
        yield Step(
            "serve", "models", "the demo target widened to the bytes of an 8B model", 1, _widen,
            work_s=_WIDEN_S, commands={"widen": pair.widen_command(target, folders)},
        )  # fmt: skip
    yield _pair_step(target, None, tier=1)
    if not target.is_small:  # the CPU engine has one runner
        yield _pair_step(target, "v2", tier=2)
        yield _pair_step(target, "v1", tier=2)


def _pair_step(target: Target, runner: str | None, *, tier: int) -> Step:
    name = f"serve-{runner or 'pair'}.yaml"
    profile = f"{{profiles}}/{name}"
    start = ("specserve", "up", profile, "--no-check", "--log-format", "json")
    ask = ("specserve", "ask", "{prompt}", "--completion", "--url", "{url}", "--max-tokens", str(_MAX_TOKENS))
    seconds = "20"
    count = len(_prompts(target))
    return Step(
        "serve",
        runner or "pair",
        f"greedy text and acceptance, {f'runner {runner.upper()}' if runner else 'the runner that vLLM takes'}",
        tier,
        _run,
        work_s=float(seconds) + 15 + 3 * count * _ASK_S * (2 if target.is_small else 1),
        starts={"demo": 1.3},
        commands={
            "check": target.check(profile),
            "speculation": start,
            "baseline": (*start, "--baseline"),
            "greedy": (*ask, "--temperature", "0", "--format", "json"),
            "sampled": (*ask, "--temperature", "0.7", "--seed", "1", "--format", "json"),
            "verify": (
                "specserve", "verify", "{url}", "--against", "{against}", "--no-smoke", "--seconds", seconds,
                "--format", "json",
            ),
        },
        profiles={name: pair.profile(target, runner=runner)},
        models=pair.MODELS,
    )  # fmt: skip


def _prompts(target: Target) -> list[str]:
    return pair.prompts(4 if target.is_small else 6)


def _widen(run: Run, step: Step) -> Outcome:
    values = {"models": str(run.folders.models)}
    argv = filled(step.commands["widen"], values)
    run.children.run(argv, folder=run.folders.work(step.key), name="widen", limit_s=900)
    wide = int(argv[-1])
    read = pair.step_bytes(wide)
    result = {"layers": pair.LAYERS, "intermediate_size": wide, "step_bytes": read}
    return Outcome(
        result, f"{pair.LAYERS} layers with an MLP width of {wide:,}: {read / 1e9:.1f} GB for each step"
    )


def _run(run: Run, step: Step) -> Outcome:
    if not run.target.is_small and not (run.folders.models / "wide" / "config.json").exists():
        raise StepSkipped("there is no widened target: the step serve-models writes it")
    if step.name == _runner_of_pair(run):
        raise StepSkipped("vLLM took this runner by itself: see serve-pair")
    folder = run.folders.work(step.key)
    commands = {
        name: filled(argv, {"profiles": str(run.folders.profiles)}) for name, argv in step.commands.items()
    }
    checked = run.children.run_json(commands["check"], folder=folder, name="check", limit_s=120)
    findings = memory.codes(checked)
    both = {name: commands[name] for name in ("speculation", "baseline")}
    with servers(run.children, both, folder=folder, limit_s=_START_LIMIT_S) as started:
        fast, plain = started["speculation"], started["baseline"]
        base: dict[str, Any] = {"findings": findings, "runner": bootlog.runner(fast.log)}
        if not fast.is_ready:
            return _refused(base, fast)
        if not plain.is_ready:
            raise StepFailed(f"the server without speculation: {plain.cause}", log=plain.log_tail)
        run.learned("demo", max(fast.took_s, plain.took_s) / 1.3)  # two at once
        result: dict[str, Any] = base | {"is_ready": True, "ready_s": round(fast.took_s, 1)}
        result |= {"logged": bootlog.logged(fast.log), **_ask_both(run, step, commands, fast, plain)}
        result["verify"] = _verify(run, step, commands, fast, plain)
    return Outcome(result, _line(result))


def _runner_of_pair(run: Run) -> str | None:
    """The runner that served when none was demanded; None if that is not known."""
    found = store.finished(run.folders.root, "serve-pair") or {}
    runner: str | None = found.get("result", {}).get("runner")
    return runner


def _refused(base: Mapping[str, Any], start: Start) -> Outcome:
    """A runner that does not know the method is a finding, not a fault of the step."""
    result = {**base, "is_ready": False, "cause": start.cause, "log_tail": start.log_tail}
    return Outcome(result, f"vLLM refuses it: {start.cause}")


def _ask_both(
    run: Run, step: Step, commands: Mapping[str, Sequence[str]], fast: Start, plain: Start
) -> dict[str, Any]:
    """Greedy text of both servers, and the acceptance at temperature 0 and 0.7."""
    asked = _prompts(run.target)
    greedy = [_ask(run, step, commands["greedy"], fast, prompt) for prompt in asked]
    sampled = [_ask(run, step, commands["sampled"], fast, prompt) for prompt in asked]
    alone = [_ask(run, step, commands["greedy"], plain, prompt) for prompt in asked]
    same = sum(one["text"] == other["text"] for one, other in zip(greedy, alone, strict=True))
    return {
        "prompts": len(asked),
        "same_text": same,
        "acceptance": {"0": acceptance(greedy), "0.7": acceptance(sampled)},
        "tokens_per_s": {
            "speculation": _median_rate(greedy),
            "baseline": _median_rate(alone),
        },
    }


def _ask(run: Run, step: Step, argv: Sequence[str], start: Start, prompt: str) -> dict[str, Any]:
    values = {"url": (start.url or "").removesuffix("/v1"), "prompt": prompt}
    return run.children.run_json(
        filled(argv, values), folder=run.folders.work(step.key), name="ask", limit_s=180
    )


def acceptance(answers: Sequence[Mapping[str, Any]]) -> dict[str, float] | None:
    """Acceptance rate and mean acceptance length over answers; None if nothing was drafted."""
    counts = [answer["speculation"] for answer in answers if answer.get("speculation")]
    drafted = sum(each.get("num_draft_tokens") or 0 for each in counts)
    steps_taken = sum(each.get("num_drafts") or 0 for each in counts)
    accepted = sum(each.get("num_accepted_tokens") or 0 for each in counts)
    if not drafted or not steps_taken:
        return None
    return {
        "rate": round(accepted / drafted, 4),
        "mean_length": round(1 + accepted / steps_taken, 3),
        "draft_tokens": drafted,
    }


def _median_rate(answers: Sequence[Mapping[str, Any]]) -> float | None:
    rates = sorted(answer["tokens_per_s"] for answer in answers if answer.get("tokens_per_s"))
    return rates[len(rates) // 2] if rates else None


def _verify(
    run: Run, step: Step, commands: Mapping[str, Sequence[str]], fast: Start, plain: Start
) -> dict[str, Any]:
    """The verdict of `verify`, with the scores of the server without speculation."""
    values = {
        "url": (fast.url or "").removesuffix("/v1"),
        "against": (plain.url or "").removesuffix("/v1"),
    }
    argv = filled(commands["verify"], values)
    return verdict(run.children.run_json(argv, folder=run.folders.work(step.key), name="verify", limit_s=400))


def verdict(found: Mapping[str, Any]) -> dict[str, Any]:
    """What a report keeps of a verification: verdicts, how much was measured, what it excludes."""
    greedy = found.get("greedy") or {}
    tokens = (greedy.get("tokens") or 0) + sum(item.get("tokens") or 0 for item in found.get("sampled") or ())
    excluded = {
        name: value for name, value in found.items() if name.startswith("excluded") and value is not None
    }
    return {
        "verdict": found["verdict"],
        "against": found.get("against"),
        "tokens": tokens,
        "elapsed_s": found.get("elapsed_s"),
        "excluded": excluded,
        "smoke_not_ok": found.get("not_ok") or [],
    }


def _line(result: Mapping[str, Any]) -> str:
    lengths = [
        f"{found['rate']:.2f} at T = {temperature}"
        for temperature, found in result["acceptance"].items()
        if found
    ]
    text = f"greedy text equal on {result['same_text']} of {result['prompts']} prompts"
    text += f", acceptance {', '.join(lengths)}" if lengths else ", acceptance unknown"
    return f"{text}; verify: {result['verify']['verdict']}"
