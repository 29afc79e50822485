"""The known vLLM versions: their tables and models, version ranges, and the one that is installed."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.errors import UsageError
from specserve.vllm import versions
from specserve.vllm.facts import registry
from specserve.vllm.versions import Installed, contains, in_range, judged_versions, known_versions, table

VERSIONS = known_versions()


@pytest.mark.parametrize(
    ("asked", "nearest", "is_exact"),
    [
        ("0.32", "0.32", True), ("0.32.7", "0.32", True), ("v0.32.0", "0.32", True), ("0.32.0+cpu", "0.32", True),
        ("0.34.0", "0.33", False), ("1.0", "0.33", False), ("0.26.0", "0.31", False), ("0.1", "0.31", False),
    ],
)  # fmt: skip
def test_a_known_minor_has_its_table_and_another_gets_the_nearest_which_is_marked(
    asked: str, nearest: str, is_exact: bool
) -> None:
    assert (table(asked).minor, table(asked).exact) == (nearest, is_exact)


@pytest.mark.parametrize("asked", ["nightly", "", "0." + "9" * 5000])
def test_what_is_no_version_is_refused_with_the_known_ones(asked: str) -> None:
    with pytest.raises(UsageError, match=re.escape(", ".join(VERSIONS))):
        table(asked)


@pytest.mark.parametrize("minor", VERSIONS)
def test_a_table_is_whole_and_its_arguments_are_read_as_they_are_used(minor: str) -> None:
    known = table(minor)
    words = [*known.engine.values(), *known.frontend.values()]
    assert [each.name for each in (*words, *known.speculation.values()) if each.kind == "other"] == []
    flags = [flag for each in words for flag in (each.flag, *each.aliases) if flag is not None]
    assert len(flags) == len(set(flags))
    assert known.engine["tensor_parallel_size"].aliases == ("-tp",)
    assert known.engine["enable_prefix_caching"].negatable
    assert not known.engine["disable_log_stats"].negatable
    assert known.engine["max_model_len"].human_int
    assert known.engine["kv_cache_memory_bytes"].human_int
    assert known.engine["shutdown_timeout"].kind == "int"
    assert known.engine["speculative_config"].form == "json"
    assert known.engine["device_ids"].form == "comma"
    assert known.engine["served_model_name"].form == "many"
    assert known.frontend["middleware"].form == "append"
    assert known.frontend["allowed_origins"].form == "json"
    assert {"host", "port", "api_key", "chat_template", "ssl_keyfile", "headless"} <= set(known.frontend)
    assert {"VLLM_API_KEY", "VLLM_USE_V2_MODEL_RUNNER", "VLLM_CPU_KVCACHE_SPACE"} <= known.env


def test_what_changed_between_the_versions_is_seen() -> None:
    assert [minor for minor in VERSIONS if "fly_window_size" in table(minor).speculation] == ["0.33"]
    assert [minor for minor in VERSIONS if "enable_hc_sp" in table(minor).engine] == ["0.32", "0.33"]
    assert [minor for minor in VERSIONS if "medusa" in table(minor).methods] == ["0.31", "0.32"]
    assert [minor for minor in VERSIONS if table(minor).inverse_flags] == ["0.33"]


def test_without_a_range_the_newest_two_are_judged_or_here_the_installed_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = Installed("0.31.1+cpu", "cpu", "vllm-cpu", Path("vllm"))
    monkeypatch.setattr(versions, "installed", lambda: here)
    assert judged_versions(None) == VERSIONS[-2:]
    assert judged_versions(None, here=True) == ("0.31",)
    assert judged_versions("~=0.32.0", here=True) == ("0.32",)
    monkeypatch.setattr(versions, "installed", lambda: here._replace(version="99.0"))
    assert judged_versions(None, here=True) == VERSIONS[-2:]


@pytest.mark.parametrize(
    ("spec", "minors"),
    [
        ("", VERSIONS),
        (">=0.32,<0.34", ("0.32", "0.33")),
        ("==0.32.1", ("0.32",)),
        ("==0.32.1+cpu", ("0.32",)),
        ("~=0.31.0", ("0.31",)),
        ("~=0.26.0", ()),
        ("!=0.32.*", ("0.31", "0.33")),
        (">0.32.0,<0.33", ("0.32",)),
        (">=0.34", ()),
    ],
)
def test_a_range_holds_the_minors_that_have_a_release_in_it(spec: str, minors: tuple[str, ...]) -> None:
    assert in_range(spec) == minors


@pytest.mark.parametrize("spec", ["0.32", ">=", "latest", "=>0.32"])
def test_text_that_is_no_range_is_refused_with_a_hint(spec: str) -> None:
    with pytest.raises(UsageError, match="not a version range") as caught:
        in_range(spec)
    assert caught.value.hint


@given(
    minor=st.sampled_from(VERSIONS),
    patch=st.integers(0, 99),
    operator=st.sampled_from(["==", "~=", ">=", "<="]),
)
def test_a_release_in_a_range_puts_its_minor_in_the_range(minor: str, patch: int, operator: str) -> None:
    spec = f"{operator}{minor}.{patch}"
    assert contains(spec, f"{minor}.{patch}")
    assert minor in in_range(spec)
    assert contains(">=0.32,<0.34", "0.33.0rc1") and not contains(">=0.32,<0.34", "0.34.0")


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder to install into, and nothing remembered of the installed vLLM, which a test may have imported."""
    monkeypatch.delitem(sys.modules, "vllm", raising=False)
    versions.installed.cache_clear()
    yield tmp_path
    versions.installed.cache_clear()


def install(directory: Path, *, distribution: str, version: str) -> None:
    """Put a package `vllm` with its metadata and no readable sources into a directory."""
    (directory / "vllm").mkdir(parents=True)
    (directory / "vllm" / "__init__.py").write_text("raise AssertionError('imported')\n", encoding="utf-8")
    info = directory / f"{distribution.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    text = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
    (info / "METADATA").write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("distribution", "version", "seen", "platform"),
    [
        ("vllm-cpu", "0.32.0", "0.32.0+cpu", "cpu"),
        ("vllm", "0.33.0+cpu", "0.33.0+cpu", "cpu"),
        ("vllm", "0.33.0", "0.33.0", "cuda"),
    ],
)
def test_the_installed_vllm_is_found_without_importing_it(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, distribution: str, version: str, seen: str, platform: str
) -> None:
    install(fresh / "site", distribution=distribution, version=version)
    monkeypatch.setattr(sys, "path", [str(fresh / "site")])
    found = versions.installed()
    assert found is not None
    assert (found.version, found.platform, found.distribution) == (seen, platform, distribution)
    assert "vllm" not in sys.modules


def test_without_vllm_or_with_a_mere_folder_of_its_name_there_is_no_installed_version(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(fresh)])
    assert versions.installed() is None
    (fresh / "vllm").mkdir()
    versions.installed.cache_clear()
    assert versions.installed() is None


@pytest.mark.parametrize("minor", known_versions())
def test_every_known_version_has_a_registry(minor: str) -> None:
    known = registry(minor)
    assert known.classes["LlamaForCausalLM"].traits >= {"pp", "eagle3"}
    assert known.classes["Eagle3LlamaForCausalLM"].kind == "draft"
    assert {"deepseek_v3", "MiMoForCausalLM"} <= known.mtp
    assert sum(item.kind == "text" for item in known.classes.values()) > 100


def test_classes_that_came_went_and_learnt_something_are_those_of_their_version() -> None:
    assert [minor for minor in VERSIONS if "MedusaModel" in registry(minor).classes] == ["0.31", "0.32"]
    assert [minor for minor in known_versions() if "Step5MTP" in registry(minor).classes] == ["0.33"]
    granite = [registry(minor).lacks(["GraniteForCausalLM"], "eagle3") for minor in known_versions()]
    assert granite == [True, False, False]
