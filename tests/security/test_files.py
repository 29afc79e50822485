"""What is written is there as a whole or not at all, and nothing else is touched, waited for or read without end."""

from __future__ import annotations

import os
import resource
import signal
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from specserve.cli.app import _run
from specserve.files import read_start, write_whole
from specserve.profile.load import load_profile
from specserve.profile.writer import rewrite_section

ROOT = Path(__file__).parents[2]
LLAMA = str(ROOT / "configs" / "llama70b-8b.yaml")
OLD = "target: {model: org/old}\nspeculation: {method: ngram, num_speculative_tokens: 1}\n"
RENDER = ("render", LLAMA, "--to", "compose", "-o")


def specserve(*arguments: str, limit: tuple[int, int] | None = None, seconds: int = 60) -> tuple[int, str]:
    """The exit code and all that is said, in a child, which a limit of the system ends rather than the test."""
    read, written = os.pipe()
    child = os.fork()
    if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(seconds)
        sys.dont_write_bytecode = True  # which a limit would cut in two
        if limit:
            resource.setrlimit(limit[0], (limit[1], limit[1]))
        with os.fdopen(written, "w") as sys.stdout:
            sys.stderr = sys.stdout
            code = _run(list(arguments))
        os._exit(code)
    os.close(written)
    with os.fdopen(read, "rb") as stream:
        said = stream.read().decode()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said


def memory() -> tuple[int, int]:
    """A limit of half a GiB more than is in use."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return resource.RLIMIT_AS, pages * resource.getpagesize() + (1 << 29)


FULL = (resource.RLIMIT_FSIZE, 100)
"""No file may be longer: as on a full disk, the write fails in its middle."""


def listed(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_render_leaves_nothing_on_a_full_disk_and_the_next_run_writes_all(tmp_path: Path) -> None:
    code, said = specserve(*RENDER, str(tmp_path), limit=FULL)
    assert code == 2 and "cannot write" in said and listed(tmp_path) == {}
    assert specserve(*RENDER, str(tmp_path))[0] == 0
    before = listed(tmp_path)
    again = (*RENDER, str(tmp_path), "--set", "server.served_model_name=other")
    assert specserve(*again, limit=FULL)[0] == 2
    assert listed(tmp_path) == before
    assert specserve(*again)[0] == 0


def test_convert_leaves_nothing_on_a_full_disk_and_overwrites_neither_a_pipe_nor_a_device(
    tmp_path: Path,
) -> None:
    command = ("--", "vllm", "serve", "org/a-model-with-a-name", "--max-model-len", "4096", "--seed", "64")
    code, said = specserve("convert", "-o", str(tmp_path / "p.yaml"), *command, limit=FULL)
    assert code == 2 and "cannot write" in said and listed(tmp_path) == {}
    assert specserve("convert", "-o", str(tmp_path / "p.yaml"), *command)[0] == 0
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "null").symlink_to("/dev/null")
    for name in ("pipe", "null"):
        code, said = specserve("convert", "-o", str(tmp_path / name), *command)
        assert code == 2 and "already exists" in said
    assert stat.S_ISFIFO((tmp_path / "pipe").lstat().st_mode)
    assert str((tmp_path / "null").readlink()) == "/dev/null"


@pytest.mark.parametrize("in_the_way", [True, False])
def test_render_waits_for_no_pipe(in_the_way: bool, tmp_path: Path) -> None:
    ours = ["compose.yaml"] if in_the_way else []
    places = ["notes", "x/old.service", *ours]
    for place in places:
        (tmp_path / place).parent.mkdir(exist_ok=True)
        os.mkfifo(tmp_path / place)
    assert specserve(*RENDER, str(tmp_path), "--check")[0] == 1
    code, said = specserve(*RENDER, str(tmp_path))
    assert code == (2 if in_the_way else 0), said
    assert in_the_way == ("was not written by specserve" in said)
    assert all(stat.S_ISFIFO((tmp_path / place).lstat().st_mode) for place in places)


@pytest.mark.parametrize("place", ["compose.yaml", "old.service"])
def test_render_reads_no_more_of_a_large_file_than_it_needs(place: str, tmp_path: Path) -> None:
    with (tmp_path / place).open("wb") as file:
        file.truncate(3 << 29)
    code, said = specserve(*RENDER, str(tmp_path), limit=memory())
    assert code == (2 if place == "compose.yaml" else 0), said
    assert (tmp_path / place).stat().st_size == 3 << 29


def test_render_writes_through_no_link(tmp_path: Path) -> None:
    folder, theirs = tmp_path / "d", tmp_path / "theirs"
    theirs.mkdir()
    folder.mkdir()
    (theirs / "file").write_text("# specserve, and more\n")
    (folder / "compose.yaml").symlink_to(theirs / "file")
    code, said = specserve(*RENDER, str(folder))
    assert code == 2 and "was not written by specserve" in said
    (folder / "compose.yaml").unlink()
    (folder / "components").symlink_to(theirs)
    code, said = specserve("render", LLAMA, "--to", "kubernetes", "-o", str(folder))
    assert code == 2 and "is a link to another folder" in said
    assert listed(theirs) == {"file": b"# specserve, and more\n"}


def test_a_file_keeps_its_mode_and_a_new_one_has_that_of_any_program(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "new", "x")
        write_whole(tmp_path / "private", "x", mode=0o600)
    finally:
        os.umask(before)
    (tmp_path / "kept").write_text("x")
    (tmp_path / "kept").chmod(0o604)
    write_whole(tmp_path / "kept", "y")
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
    assert modes == {"new": 0o640, "private": 0o600, "kept": 0o604}


@pytest.mark.parametrize("make", ["pipe", "folder", "link to a device"])
def test_what_is_no_file_is_neither_written_nor_read(make: str, tmp_path: Path) -> None:
    path = tmp_path / "x"
    {"pipe": os.mkfifo, "folder": os.mkdir}.get(make, lambda path: path.symlink_to("/dev/full"))(path)
    with pytest.raises(OSError, match="not a regular file"):
        write_whole(path, "x")
    assert read_start(path, 9) == b"" and os.path.lexists(path)


def limited(action: Callable[[], object]) -> int:
    """The exit code of a child that does it on a full disk: 2 where it raised as it must."""
    child = os.fork()
    if not child:
        resource.setrlimit(FULL[0], (FULL[1], FULL[1]))
        try:
            action()
        except Exception as error:
            os._exit(2 if isinstance(error, OSError) or "cannot write" in str(error) else 3)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("linked", [False, True])
def test_a_changed_profile_is_whole_or_as_it_was(linked: bool, tmp_path: Path) -> None:
    (tmp_path / "real.yaml").write_text(OLD)
    (tmp_path / "link.yaml").symlink_to("real.yaml")
    path = str(tmp_path / ("link.yaml" if linked else "real.yaml"))

    def change() -> bool:
        wanted = {"method": "ngram", "num_speculative_tokens": 3}
        return rewrite_section(path, "speculation", wanted, remark="specserve tune: as measured")

    before = listed(tmp_path)
    assert limited(change) == 2 and listed(tmp_path) == before
    assert change()
    assert load_profile(path).speculation.num_speculative_tokens == 3  # type: ignore[union-attr]
    assert (tmp_path / "link.yaml").is_symlink()  # the file that the user named is changed, where it is
    assert sorted(listed(tmp_path)) == ["link.yaml", "real.yaml"]


@pytest.mark.parametrize(
    ("words", "code", "make"),
    [
        (["convert", "run.sh"], 1, "pipe"),
        (["convert", "--", "vllm", "serve", "a/b", "--config", "./args"], 1, "device"),
        (["lint", "--", "vllm", "serve", "a/b", "--config", "./args"], 1, "device"),
        (["lint", "args"], 1, "pipe"),
        (["lint", "args"], 1, "folder"),
        (["plan", "child.yaml"], 2, "device"),
        (["convert", "args"], 2, "folder"),
    ],
    ids=lambda item: " ".join(item[:2]) if isinstance(item, list) else None,
)
def test_only_a_regular_file_is_read_whoever_names_it(
    words: list[str], code: int, make: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "args"
    if make == "pipe":
        os.mkfifo(place)
    elif make == "device":
        place.symlink_to("/dev/zero")
    else:
        place.mkdir()
        (place / "p.yaml").write_text("target: {model: 3}\n")
    (tmp_path / "run.sh").write_text("vllm serve a/b --config ./args\n")
    (tmp_path / "child.yaml").write_text("extends: args\n")
    found, said = specserve(*words, limit=memory())
    assert found == code and "Traceback" not in said
    if make != "folder" and words[0] != "plan":
        assert "it is not a regular file" in said
    assert "\\x00" not in said and len(said) < 8000


@pytest.mark.parametrize(
    ("word", "text"), [("convert", b"vllm serve a/b"), ("lint", b"target: {model: a/b}")]
)
def test_a_pipe_of_the_shell_is_read(word: str, text: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    """As bash makes it of `<(…)`."""
    read, written = os.pipe()
    os.write(written, text)
    os.close(written)
    assert _run([word, f"/dev/fd/{read}"]) == 0
    assert "a/b" in capsys.readouterr().out
    os.close(read)
