"""A raw command line to a Profile in memory: judged as it is, with places in the command line itself."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from specserve.convert.arguments import Setting, command_settings, left_open, refused_spellings
from specserve.convert.invocation import STARTS, EngineStart, invocation
from specserve.convert.profiletree import SECRETS, profile_tree
from specserve.convert.words import COMMAND, UNKNOWN, Word, argv_words, starred
from specserve.diagnostics import Finding, Severity
from specserve.errors import UsageError, did_you_mean, quoted
from specserve.plan.arguments import problems
from specserve.profile.codes import ordered
from specserve.profile.load import absolute_paths, apply, made_by
from specserve.profile.schema import Profile
from specserve.profile.secrets import hushed, names_a_secret
from specserve.profile.source import keep
from specserve.profile.validate import read_profile
from specserve.vllm.versions import ARGUMENTS, KEYS, argument_names, first_like_newest, newest, options

_LAUNCH = ("plan", "up", "verify", "render")
"""Commands of specserve that need a server that answers."""
_REMEMBERED: dict[str, list[str]] = {}


class NoStart(UsageError):
    """The command starts no vLLM; whoever took it says how it is written."""


def starts_worker(words: Iterable[str]) -> bool:
    """Whether the command starts a node without an API server."""
    return "--headless" in words


def profile_of(words: Iterable[str], *, settings: Iterable[str] = ()) -> tuple[Profile | None, list[Finding]]:
    """The profile that a command line amounts to, and what is wrong with the line itself.

    The findings and the profile's spans point into the pseudo-file `<command>`, whose one line is the command
    with its secrets starred. An option that vLLM does not have stands under `engine`, where SD102 tells it.
    Raises UsageError for a command that starts no vLLM.
    """
    line, argv = argv_words(words)
    start = _started(argv)
    found = [left_open(word) for word in start.words if UNKNOWN.search(word.text)]
    given = command_settings(start.words, options(), folder=Path.cwd(), found=found, unresolved=found)
    given = _known(given, found)
    secrets = [setting.node.span for setting in given.values() if setting.name in SECRETS]
    secrets += [word.span for name, word in start.env.items() if names_a_secret(name)]
    keep(COMMAND, hushed(starred(line, secrets)).encode(errors="replace"))
    env = {name: word.node() for name, word in start.env.items()}
    tree = profile_tree(given, place=start.start.span, table=newest(), env=env, found=found)
    tree = apply(absolute_paths(tree, folder=Path.cwd()), settings)
    profile, more = read_profile(tree, file=COMMAND)
    if profile:
        profile = _for_versions(profile)
        found += _open_to_all(profile, start) if "headless" not in given else []
    told = [*found, *(_explained(finding) for finding in more)]
    return profile, ordered(replace(finding, message=hushed(finding.message)) for finding in told)


def _started(argv: Sequence[Word]) -> EngineStart:
    """The start of vLLM among the words, in the script of a shell too."""
    start = invocation(argv)
    if start is None:
        what = quoted(argv[0].text) if argv else "nothing"
        raise NoStart(f"{what} is not a command that starts vLLM")
    if start.engine != "vllm":
        raise UsageError(
            "this command starts SGLang, which specserve does not run",
            hint="run `specserve convert -- …` to turn it into a profile for vLLM",
        )
    if not start.start.columns:  # of a script: its places are those of the whole text
        whole = next((word.span for word in argv if STARTS.search(word.text)), argv[0].span)
        start.words = [replace(word, span=whole) for word in start.words]
        start.start = replace(start.start, span=whole)
    return start


def _known(given: Mapping[str, Setting], found: list[Finding]) -> dict[str, Setting]:
    """The settings that some vLLM has; every other one becomes a finding."""
    names = argument_names()
    for name, setting in given.items():
        if name not in names:
            text, help_text = f"vLLM has no option {quoted(setting.written)}", _advice(name, names)
            found.append(
                Finding("SD102", "unknown-argument", Severity.ERROR, text, setting.place, help=help_text)
            )
    return {name: setting for name, setting in given.items() if name in names}


def _explained(finding: Finding) -> Finding:
    """The finding about a key of the block, with what took the key's place."""
    head, _, key = finding.span.path.rpartition(".")
    old = KEYS.get(key.replace("-", "_"))
    if finding.code != "SD005" or head != "speculation" or old is None:
        return finding
    return replace(finding, help=f"write `{old.now}`: {old.why}" if old.now else f"leave it out: {old.why}")


def _for_versions(profile: Profile) -> Profile:
    """With the range of those vLLMs that take all that the newest takes: an option of 0.33 is no mistake."""
    if profile.vllm is not None:
        return profile
    first = first_like_newest(
        lambda known: {
            (item.path, item.kind) for item in (*problems(profile, known), *refused_spellings(profile, known))
        }
    )
    return replace(profile, vllm=f">={first[0]}") if first else profile


def _open_to_all(profile: Profile, start: EngineStart) -> list[Finding]:
    """vLLM listens on every interface where no host is said."""
    if "server.host" in profile.spans or profile.server.api_key_env or profile.frontend.get("uds"):
        return []
    return [
        Finding(
            "SD108", "open-bind", Severity.WARNING,
            "without `--host` vLLM listens on every interface, here without an API key",
            start.start.span, help="add `--host 127.0.0.1`, as specserve does, or export VLLM_API_KEY",
        )
    ]  # fmt: skip


def _advice(name: str, known: Collection[str]) -> str | None:
    """What to write in place of an argument that no vLLM has any more, or never had."""
    old = ARGUMENTS.get(name)
    if old is None:
        guess = did_you_mean(name, known)
        return f"did you mean `--{guess.replace('_', '-')}`?" if guess else None
    return old.why if old.now else f"leave it out: {old.why}"


def write_behind_dashes(command: str) -> str:
    """A hint that shows how a vLLM command is given to this command of specserve."""
    return f"write `specserve {command} -- vllm serve MODEL --speculative-config '{{…}}'`"


def remember(words: Sequence[str], *, asked: str = "check") -> str:
    """The name under which this command is a profile from now on. `asked`: the command of specserve that takes it."""
    words = list(words)
    if asked in _LAUNCH and starts_worker(words):
        raise UsageError(
            f"this command starts a worker that answers no requests; `{asked}` needs a server that answers",
            hint="use the first node's command; `specserve check -- …` can check this one",
        )
    _REMEMBERED[COMMAND] = words

    def made(settings: Iterable[str]) -> tuple[Profile | None, list[Finding]]:
        try:
            return profile_of(words, settings=settings)
        except NoStart as error:
            error.hint = write_behind_dashes(asked)
            raise

    made_by(COMMAND, made)
    return COMMAND


def remembered(name: str) -> list[str] | None:
    """The words of the command that has this name; None for a file."""
    return _REMEMBERED.get(name)
