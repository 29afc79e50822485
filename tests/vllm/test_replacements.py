"""What took the place of arguments: complete for the known versions, and each place is there."""

from __future__ import annotations

import pytest

from specserve.profile.schema import Target, defaults_of
from specserve.sglang.options import OPTIONS
from specserve.vllm.replacements import ARGUMENTS, KEYS, VARIABLES, Replacement
from specserve.vllm.versions import known_versions, table

NEWEST = table(known_versions()[-1])
EVERY = {
    **{f"arguments {name}": item for name, item in ARGUMENTS.items()},
    **{f"variables {name}": item for name, item in VARIABLES.items()},
    **{f"sglang {name}": item for name, item in OPTIONS.items()},
}


@pytest.mark.parametrize("version", known_versions()[:-1])
def test_what_a_known_version_has_and_the_newest_lacks_has_an_entry(version: str) -> None:
    earlier = table(version)
    gone = {*earlier.engine, *earlier.frontend} - {*NEWEST.engine, *NEWEST.frontend}
    assert gone - ARGUMENTS.keys() == set()
    assert earlier.speculation.keys() - NEWEST.speculation.keys() - KEYS.keys() == set()


@pytest.mark.parametrize("item", EVERY.values(), ids=EVERY)
def test_each_place_is_one_of_the_newest_vllm(item: Replacement) -> None:
    for place in (item.now, *item.also):
        if place is None:
            assert item.why
            continue
        section, name, *keys = place.split(".")
        if section == "target":
            assert name in defaults_of(Target)
        else:
            argument = getattr(NEWEST, section)[name]
            assert not keys or not argument.keys or ".".join(keys) in argument.keys


@pytest.mark.parametrize("item", KEYS.values(), ids=KEYS)
def test_each_key_of_a_block_is_one_of_the_newest_vllm(item: Replacement) -> None:
    assert item.now in NEWEST.speculation if item.now else item.why
