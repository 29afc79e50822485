"""Published drafts written into a profile, as alternatives that `bench` measures."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from specserve.errors import UsageError
from specserve.measure.drafts.find import DraftOptions, asked, find_drafts, is_profile
from specserve.models.drafts import Draft, as_of
from specserve.profile.load import load_profile
from specserve.profile.writer import rewrite_section


def add_alternatives(path: str, names: Iterable[str], *, wanted: DraftOptions) -> list[str]:
    """Write drafts into a profile file as `alternatives`; returns their names there. The rest stays.

    `names`: Hub ids of drafts, or a method for what needs none. Raises UsageError for what was not found, ProfileError
    and FactError for a file that cannot be read or changed.
    """
    if not is_profile(path):
        raise UsageError(f"`--write` can only change a profile file, and `{path}` is not one")
    known = {each.draft.model or each.draft.method: each for each in find_drafts(path, wanted=wanted).drafts}
    said = {each: dict(block.keys) for each, block in load_profile(path).alternatives.items()}
    blocks: dict[str, dict[str, object]] = {}
    for name in names:
        if name not in known:
            hint = f"known are {', '.join(f'`{each}`' for each in known)}"
            raise UsageError(f"`{name}` is not a known draft for this target", hint=hint)
        draft = known[name].draft
        blocks[_free_name(name, draft, {**said, **blocks})] = asked(draft)
    rewrite_section(
        path,
        "alternatives",
        said | blocks,
        said=lambda profile: {each: dict(block.keys) for each, block in profile.alternatives.items()},
        remark=f"specserve drafts: catalogue of {as_of()}",
    )
    return list(blocks)


def _free_name(name: str, draft: Draft, taken: Mapping[str, Mapping[str, object]]) -> str:
    """The repository's name, with its owner if another draft has that name."""
    short, whole = (re.sub(r"[^\w-]", "-", text) for text in (name.rpartition("/")[2], name))
    other = taken.get(short)
    return short if other is None or other.get("model") == draft.model else whole
