"""Two launches side by side: the profiles, commits, locks and commands that name them, their models and memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specserve.checks.gather import CheckOptions, Gathered, gather
from specserve.checks.oracle import vllm_to_ask
from specserve.checks.oraclechild import Judged
from specserve.convert.command import NoStart, profile_of
from specserve.convert.invocation import is_command
from specserve.diagnostics import Severity
from specserve.errors import FactError, ProfileError, UsageError, quoted
from specserve.hardware.accelerators import Machine
from specserve.memory.constants import Bounds
from specserve.memory.estimate import MemoryEstimate
from specserve.models.facts import ModelFacts
from specserve.models.lock import Lock, read_lock
from specserve.plan.compare import Difference, LaunchComparison, Side, Written, compare, differences
from specserve.plan.launch import launch
from specserve.plan.locking import locked
from specserve.profile.find import at_revision, load_at
from specserve.profile.load import load_profile, with_alternative
from specserve.profile.schema import Profile
from specserve.vllm.versions import in_range, known_versions, table

_LOCK = ".lock.json"
_HINT = "`specserve check --vllm installed` shows more"
_SHAPE = (
    "model_type", "vocab_size", "draft_vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "num_experts", "num_local_experts", "n_routed_experts",
    "max_position_embeddings", "sliding_window", "tie_word_embeddings",
)  # fmt: skip
Differences = tuple[Difference, ...]


@dataclass(frozen=True, slots=True)
class Compared:
    """A profile with the name that its side has; with a lock: at its commits, with the facts that it holds."""

    label: str
    profile: Profile
    lock: Lock | None = None
    ignored: tuple[str, ...] = ()
    """What is not compared of a command, because vLLM does not have it."""


def both_sides(
    words: list[str],
    alternative: str | None,
    settings: Iterable[str],
    *,
    is_alone: bool,
    running: Callable[[str], list[str] | None],
) -> tuple[Compared, Compared]:
    """Both sides by the words that name them; an alternative (`baseline`: no speculation) is a side of its own.

    `is_alone`: the same launch twice, if no other is named; `running`: the command of a server of that name. Raises
    UsageError, ProfileError, FactError.
    """

    def side(words: list[str]) -> Compared:
        command = running(words[0]) if len(words) == 1 and not Path(words[0]).is_file() else None
        made = _side(command or words, settings)
        return replace(made, label=f"{words[0]} (running)") if command else made

    first, second = _split(words)
    a = side(first)
    if alternative:
        if second:
            text = "`--alternative` derives B from A, so a second launch cannot be given"
            raise UsageError(text)
        changed = with_alternative(a.profile, alternative)
        return a, Compared(f"{a.label} (alternative {alternative})", changed, a.lock)
    if not second and not is_alone:
        hint = "add a second one, or derive it by `--alternative` or `--vllm-source`"
        raise UsageError("`specserve diff` takes two launches; found one", hint=hint)
    return a, side(second) if second else a


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """The words of each side: a profile is one word, a command several; a second `--` may stand between them."""
    if "--" in words:
        at = words.index("--")
        return words[:at], words[at + 1 :]
    if len(words) <= 2 or is_command(words[1:]):
        return words[:1], words[1:]
    if is_command(words):
        return words, []
    text = f"`specserve diff` takes two launches; found {len(words)} arguments"
    raise UsageError(text, hint="write a vLLM command after `--`")


def _side(words: Sequence[str], settings: Iterable[str]) -> Compared:
    """A profile, `PROFILE@REVISION`, `NAME.lock.json`, or the words of a vLLM command."""
    if len(words) != 1:
        return _converted(words, settings)
    name = words[0]
    if name.startswith(("http://", "https://")):
        hint = "write the server's command line after `--`"
        raise UsageError(f"{quoted(name)} is a URL, which `specserve diff` does not accept", hint=hint)
    if name.endswith(_LOCK):
        return _beside_lock(name, settings)
    place = at_revision(name)
    try:
        profile = load_at(*place, settings=settings) if place else load_profile(name, settings=settings)
    except ProfileError as error:
        if not place and Path(name).is_file() and Path(name).suffix not in (".yaml", ".yml"):
            error.hint = f"if it is a script, `specserve convert {name}` makes a profile of it"
        raise
    return Compared(name, profile)


def _beside_lock(name: str, settings: Iterable[str]) -> Compared:
    """The profile beside a lock, at the commits of the lock."""
    stem, lock = name.removesuffix(_LOCK), read_lock(Path(name))
    beside = [file for file in (f"{stem}.yaml", f"{stem}.yml") if Path(file).is_file()]
    if lock is None or not beside:
        missing = f"there is no lock `{name}`" if lock is None else f"there is no profile beside `{name}`"
        raise UsageError(missing, hint="`specserve lock PROFILE` writes NAME.lock.json beside NAME.yaml")
    return Compared(name, load_profile(beside[0], settings=settings), lock)


def _converted(words: Iterable[str], settings: Iterable[str]) -> Compared:
    try:
        profile, findings = profile_of(words, settings=settings)
    except NoStart as error:
        error.hint = "write `specserve diff A -- vllm serve MODEL …`"
        raise
    errors = (item for item in findings if item.severity is Severity.ERROR)
    unread = (
        item for item in errors if item.code.startswith("SD0") or (item.code == "SD105" and item.span.path)
    )
    if profile is None or any(unread):
        raise ProfileError("specserve cannot plan this command", findings=tuple(findings))
    ignored = tuple(item.message for item in findings if item.code == "SD102")
    if "server.host" not in profile.spans and not profile.frontend.get("uds"):
        # without `--host`, vLLM listens on every interface; a profile listens on loopback
        profile = replace(profile, server=replace(profile.server, host="0.0.0.0"))  # noqa: S104
    return Compared(profile.file, profile, ignored=ignored)


def compare_sides(
    taken: tuple[Compared, Compared], vllm: str | None, sources: Sequence[Path], *, models: bool
) -> tuple[LaunchComparison, tuple[Side, Side], list[str]]:
    """What differs, the two launches, and why models and memory are not compared, if they are not.

    With sources also what the two vLLMs make of the launches. Raises UsageError, FactError.
    """
    if not sources:
        sides = _launches(taken, (vllm, vllm))
        found, why = compare(*sides), list[str]()
        if models:
            facts, memory, why = _compare_known(taken, [side.plan.vllm for side in sides])
            found = replace(found, models=facts, memory=memory)
        return found, sides, why
    both = (sources[0] if len(sources) > 1 else None), sources[-1]  # None: the installed vLLM
    versions = [vllm_to_ask(source).version for source in both]
    if vllm and table(vllm).minor != table(versions[0]).minor:
        text = f"`--vllm {vllm}` does not match the vLLM of A, which is {versions[0]}"
        raise UsageError(text, hint="give the wheel of that version as the first `--vllm-source`")
    sides = _launches(taken, versions)
    pairs = zip(taken, both, strict=True)
    a, b = (effective(item.profile, source=source, offline=True).answer.effective for item, source in pairs)
    shared = [name for name in a if name in b]  # of what both know
    changed = differences(*({name: Written(values[name]) for name in shared} for values in (a, b)))
    return replace(compare(*sides), effective=changed), sides, []


def _launches(taken: tuple[Compared, Compared], versions: Sequence[str | None]) -> tuple[Side, Side]:
    """The launch of each side by its version, or by the newest that both are for; not for this machine."""
    ranges = [in_range(item.profile.vllm or "") or known_versions() for item in taken]
    common = [version for version in ranges[0] if version in ranges[1]]
    named = [item.profile.hardware.accelerator for item in taken if item.profile.hardware]
    sides = []
    for item, known, vllm in zip(taken, ranges, versions, strict=True):
        profile = locked(item.profile, item.lock) if item.lock else item.profile
        version = vllm or (common or list(known))[-1]
        # a command names no hardware: it is for the machine of the other side
        cpu = "+cpu" in version or "cpu" in ([profile.hardware.accelerator] if profile.hardware else named)
        plan = launch(profile, table=table(version), platform="cpu" if cpu else "cuda", version=version)
        sides.append(Side(profile, plan))
    return sides[0], sides[1]


def _compare_known(
    taken: tuple[Compared, Compared], versions: Sequence[str]
) -> tuple[Differences | None, Differences | None, list[str]]:
    """What differs of the models and of the memory, None if it is not known of both; and why it is not."""
    why: dict[str, None] = {}
    left, right = (_known(side, version, why) for side, version in zip(taken, versions, strict=True))
    if left is None or right is None:
        return None, None, list(why)
    models = differences(_model_values(left, right), _model_values(right, left))
    memory = [next(iter(known.context.memory.values()), None) for known in (left, right)]
    if None in memory:
        why.update(dict.fromkeys(reason for known in (left, right) for reason in known.missing.values()))
        return models, None, list(why)
    return models, differences(*(_memory_values(estimate) for estimate in memory if estimate)), list(why)


def _known(side: Compared, version: str, why: dict[str, None]) -> Gathered | None:
    """The profile's models and memory without its alternatives; None if a model of it could not be read."""
    is_locked, minor = side.lock is not None, ".".join(version.split(".")[:2])
    wanted = CheckOptions(offline=True, version=minor, locked=is_locked)
    try:
        known = gather(replace(side.profile, alternatives={}), wanted=wanted)
    except FactError as error:
        why[error.message] = None
        return None
    why.update(dict.fromkeys(item.error.message for item in known.unread))
    return None if known.unread else known


def _model_values(known: Gathered, other: Gathered) -> dict[str, Written]:
    """What tells the models of one side from those of the other; of a model that the other has not, its name."""
    values: dict[str, Written] = {}
    sides = (known.context, other.context)
    targets, drafts = ([side.target for side in sides], [side.drafts.get("speculation") for side in sides])
    for role, (own, counterpart) in (("target", targets), ("draft", drafts)):
        every = _values_of(role, own) if own else {}
        values |= {name: value for name, value in every.items() if counterpart or name == f"{role}.model"}
    return values


def _values_of(role: str, facts: ModelFacts) -> dict[str, Written]:
    """What tells two models apart, by `target.…` or `draft.…`; sizes in bytes of the checkpoint."""
    text = facts.config.get("text_config")
    config: Mapping[str, Any] = {**facts.config, **(text if isinstance(text, Mapping) else {})}
    quantization = config.get("quantization_config")
    found: dict[str, Any] = {
        "model": facts.model,
        "commit": facts.commit,
        "architectures": ", ".join(facts.architectures) or None,
        **{name: config.get(name) for name in _SHAPE},
        "dtype": config.get("dtype") or config.get("torch_dtype"),
        "quant_method": quantization.get("quant_method") if isinstance(quantization, Mapping) else None,
        "checkpoint_bytes": _checkpoint_bytes(facts),
    }
    return {f"{role}.{key}": Written(value) for key, value in found.items() if value is not None}


def _checkpoint_bytes(facts: ModelFacts) -> int | None:
    try:
        return sum(tensor.size_bytes for tensor in facts.tensors.values()) if facts.tensors else None
    except KeyError:  # a type of number that this specserve does not know
        return None


def _memory_values(estimate: MemoryEstimate) -> dict[str, Written]:
    """The estimate's figures by name: bytes are those of the fullest GPU, bounds have two ends; None: not known."""
    gpu, is_known = estimate.per_gpu_bytes, not estimate.unknown_draft

    def ends(bounds: Bounds) -> dict[str, int]:
        return {"low": int(bounds.low), "high": int(bounds.high)}

    most = estimate.max_concurrency
    values: dict[str, Any] = {
        "verdict": estimate.verdict,
        "total_bytes": gpu.total,
        "budget_bytes": gpu.budget,
        "target_weights_bytes": gpu.target_weights,
        "draft_weights_bytes": gpu.draft_weights if is_known else None,
        "target_kv_bytes_per_token": estimate.target_kv_bytes_per_token,
        "draft_kv_bytes_per_token": estimate.draft_kv_bytes_per_token if is_known else None,
        "max_model_len": estimate.max_model_len,
        "activation_bytes": ends(gpu.activation),
        "other_bytes": ends(gpu.other),
        "kv_cache_bytes": ends(gpu.kv_cache),
        "kv_cache_tokens": ends(estimate.kv_cache_tokens),
        "largest_max_model_len": ends(estimate.largest_max_model_len),
        "max_concurrency": {"low": round(most.low, 2), "high": round(most.high, 2)},
    }
    return {name: Written(value) for name, value in values.items()}


def effective(
    profile: Profile,
    *,
    source: Path | None = None,
    machine: Machine | None = None,
    offline: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> Judged:
    """What vLLM makes of a profile, without its alternatives. `source`: another vLLM than the installed one.

    Raises FactError if vLLM refuses the launch or cannot judge it here.
    """
    options = CheckOptions(offline, machine, "always", source, tell=tell)
    known = gather(replace(profile, alternatives={}), wanted=options)
    path = "speculation" if profile.speculation else ""
    judged = next((item for item in known.context.vllm if item.path == path), None)
    if judged is None or judged.answer.not_judged:
        why = known.missing.get("vllm") or "the draft could not be read"
        raise FactError(f"vLLM was not asked: {why}", hint=_HINT)
    if judged.answer.refused:
        raise FactError(f"{judged.basis} refuses this launch: {judged.answer.refused}", hint=_HINT)
    return judged
