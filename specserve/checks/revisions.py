"""SD1xx about pinning: which commit of a model, and of its code, a server gets."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from specserve.checks.blocks import blocks
from specserve.checks.rule import Context, Hit, rule
from specserve.diagnostics import Severity

if TYPE_CHECKING:
    from specserve.models.facts import ModelFacts

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_COMMIT = re.compile(r"[0-9a-f]{7,40}")
_FLOATING = (None, "main")


@rule("SD112", "unpinned-code", Severity.WARNING)
def unpinned_code(ctx: Context) -> Iterator[Hit]:
    """Code of a model is trusted that can change with every start.

    ## Why is this bad?
    Under `trust_remote_code` the server runs what lies in the repository when it starts: whoever can push there
    runs code on the serving machine. A draft inherits the trust of its target, whoever wrote it. A branch or a tag
    can be moved; a commit cannot. It is an info where the profile trusts the target alone and nothing says that it
    brings code (`check` reads whether it does), a warning where it does, or where others are trusted with it.

    ## Example
        target: {model: org/target, revision: 0123456789012345678901234567890123456789}
        speculation: {method: eagle3, model: org/head, num_speculative_tokens: 3}
        engine: {trust_remote_code: true}  # specserve: ignore[SD111] read at that commit

    ## Use instead
        target: {model: org/target, revision: 0123456789012345678901234567890123456789}
        engine: {trust_remote_code: true}  # specserve: ignore[SD111] read at that commit

    ## Source
    vllm/config/speculative.py, `trust_remote_code=self.target_model_config.trust_remote_code`
    """
    if ctx.profile.engine.get("trust_remote_code") is not True or locked(ctx):
        return
    moving = {
        (model, revision): section
        for model, revision, section in models(ctx)
        if revision is None or not _COMMIT.fullmatch(revision)
    }
    if moving:
        ((model, revision), section), *others = moving.items()
        which = f"at `{revision}`, which can move" if revision else "without a revision"
        more = f", and that of {', '.join(f'`{other}`' for (other, _), _ in others)}" if others else ""
        alone = {name for name, _ in moving} == {ctx.profile.target.model}
        quiet = alone and not _brings_code(ctx.target)
        yield Hit(
            f"{section}.revision" if revision else f"{section}.model",
            f"code of `{model}` {'would' if quiet else 'will'} run, taken {which}{more}",
            related=(
                ("engine.trust_remote_code", "code is trusted here"),
                *((f"{place}.model", "not pinned to a commit either") for _, place in others),
            ),
            help=f"write the commit that was read as `{section}.revision`, or run `specserve lock`",
            severity=Severity.INFO if quiet else None,
        )


def _brings_code(facts: ModelFacts | None) -> bool:
    """Whether a model is known to bring code of its own, which transformers names in `auto_map`."""
    return facts is not None and (
        "auto_map" in facts.config or any(name.endswith(".py") for name in facts.files)
    )


@rule("SD113", "unpinned-revision", Severity.INFO)
def unpinned_revision(ctx: Context) -> Iterator[Hit]:
    """A model of the Hub is taken as it is on the day of the start.

    ## Why is this bad?
    Weights, configuration and chat template can change under a deployment: a restart then serves something else
    than what was measured. Under a lock this is silent.

    ## Example
        target: {model: org/target}

    ## Use instead
        target: {model: org/target, revision: 0123456789012345678901234567890123456789}

    ## Source
    vllm/config/model.py, `If unspecified, will use`
    """
    if ctx.profile.engine.get("trust_remote_code") is True or locked(ctx):
        return
    floating = {model: section for model, revision, section in models(ctx) if revision in _FLOATING}
    if floating:
        (model, section), *others = floating.items()
        more = f" (nor {', '.join(f'`{other}`' for other, _ in others)})" if others else ""
        yield Hit(
            f"{section}.model",
            f"`{model}` is not pinned to a commit{more}",
            related=tuple((f"{place}.model", "not pinned either") for _, place in others),
            help="`specserve lock` records the commits; `revision` names one by hand",
        )


@rule("SD114", "split-revision", Severity.WARNING)
def split_revision(ctx: Context) -> Iterator[Hit]:
    """The target is pinned, and its own prediction layers are not.

    ## Why is this bad?
    `mtp` and `dspark` without a model draft with layers of the target's repository, which vLLM loads a second
    time, at the revision of `speculation` alone: without one, from the default branch. Once that moves, target and
    layers come from different commits, and acceptance falls without a word.

    ## Example
        target: {model: org/target, revision: 0123456789012345678901234567890123456789}
        speculation: {method: mtp, num_speculative_tokens: 1}

    ## Use instead
        target: {model: org/target, revision: 0123456789012345678901234567890123456789}
        speculation: {method: mtp, num_speculative_tokens: 1, revision: 0123456789012345678901234567890123456789}

    ## Source
    vllm/config/speculative.py, `revision=self.revision,`
    """
    target = ctx.profile.target
    if not is_hub_id(target.model) or target.revision in _FLOATING or locked(ctx):
        return
    for path, block in blocks(ctx):
        own = block.method in ("mtp", "dspark") and block.model in (None, target.model)
        revision = block.keys.get("revision")
        if own and revision != target.revision:
            what = f"revision `{revision}`" if revision else "the default branch"
            yield Hit(
                f"{path}.revision" if revision else f"{path}.method",
                f"the prediction layers would come from {what}, not from the target's revision",
                related=(("target.revision", "the target is pinned here"),),
                help=f"write `revision: {target.revision}` under `{path}` too",
            )


def models(ctx: Context) -> Iterator[tuple[str, str | None, str]]:
    """Each model that comes from the Hub: its id, its revision, its section."""
    target = ctx.profile.target
    if is_hub_id(target.model):
        yield target.model, target.revision, "target"
    for path, block in blocks(ctx):
        if block.model and block.method != "custom_class" and is_hub_id(block.model):
            revision = block.keys.get("revision")
            yield block.model, str(revision) if revision is not None else None, path


def is_hub_id(model: str) -> bool:
    """Whether this reads like an id of the Hub; a path has a leading `.`, `/` or `~`, or more parts, or is there.

    Like vLLM, which takes what exists under that name for a path.
    """
    return bool(_HUB_ID.fullmatch(model)) and not os.path.exists(model)  # noqa: PTH110 - any length


def locked(ctx: Context) -> bool:
    """Whether a lock lies beside the profile: it pins every revision."""
    file = ctx.profile.file
    return file != "-" and Path(file).with_suffix(".lock.json").is_file()
