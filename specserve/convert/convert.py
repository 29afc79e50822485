"""What a text says about an engine to the text of a profile that lints, with every change said. Reads no file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from specserve.convert import sglang
from specserve.convert.environment import as_settings, kept_environment
from specserve.convert.given import Given, Note
from specserve.convert.modern import modern
from specserve.convert.profiletree import SECRETS, profile_tree
from specserve.convert.secrets import hushed, without_secrets
from specserve.convert.settings import Setting
from specserve.convert.words import UNKNOWN
from specserve.diagnostics import Finding, Span
from specserve.errors import UsageError
from specserve.plan.arguments import problems
from specserve.plan.support import known_versions, table
from specserve.plan.writer import yaml_text
from specserve.profile.problems import quoted
from specserve.profile.schema import Profile
from specserve.profile.tree import Node
from specserve.profile.validate import validate

FILE = "<profile>"
"""The name of a profile that is not written yet."""
_ROUNDS = 5
_EVERYWHERE = ("0.0.0.0", "::", "")  # noqa: S104 - what is looked for, not what is listened on


@dataclass(frozen=True, slots=True)
class Converted:
    """A profile's text, and what it says otherwise than what it was made of."""

    text: str
    notes: tuple[Note, ...]


def converted(given: Given, *, origin: str) -> Converted:
    """The profile of one start of an engine. `origin` names the text.

    Raises UsageError where the text does not say the model.
    """
    newest = table(known_versions()[-1])
    if given.engine == "sglang":
        given = sglang.translated(given)
    given = modern(given, table=newest)
    _check_model(given, origin=origin)
    notes = list(given.notes)
    tree = _tree(given, notes)
    tree, profile = _cured(tree, notes)
    tree = _for_versions(tree, profile, notes)
    notes = [replace(note, text=hushed(note.text)) for note in notes]
    head = [
        f"Converted from {given.what} in {origin}{f', line {given.place.line}' if given.place.line > 1 else ''}."
    ]
    comments = _comments(tree, notes)
    head += [f"- {text}" for text in comments.pop("", [])]
    text = yaml_text(tree, head=head, comments=comments)
    return Converted(text, tuple(notes))


def _check_model(given: Given, *, origin: str) -> None:
    model = given.settings.get("model")
    value = model.node.value if model else None
    if not isinstance(value, str) or not value:
        raise UsageError(
            f"{given.what} in {origin} names no model", hint="vLLM would serve its default, Qwen3-0.6B"
        )
    match = UNKNOWN.search(value)
    if match:
        raise UsageError(
            f"the model in {origin} is {quoted(match[1])}, which the text does not say",
            hint="write the model's name in its place",
        )


def _tree(given: Given, notes: list[Note]) -> Node:
    """The profile's tree, fit to be committed: no secrets, not open to everybody."""
    found: list[Finding] = []
    newest = table(known_versions()[-1])
    settings = {**as_settings(given.env, newest, notes), **given.settings}
    env = kept_environment(given.env, notes)
    key = _secrets(settings, notes)
    open_settings = {name: setting for name, setting in settings.items() if name not in SECRETS}
    tree = profile_tree(open_settings, place=given.place, table=newest, env=env, found=found)
    notes += [Note("", finding.message, finding.span.line) for finding in found]
    sections = dict(tree.mapping or {})
    sections.pop("name", None)
    server = dict((sections["server"].mapping or {}) if "server" in sections else {})
    if key:
        server["api_key_env"] = key
    elif "VLLM_API_KEY" in given.env:
        server["api_key_env"] = Node("VLLM_API_KEY", given.place)
    _closed(server, notes)
    if server:
        sections["server"] = Node(server, given.place)
    else:
        sections.pop("server", None)
    _draft_size(sections, notes)
    hidden: list[str] = []
    clean = without_secrets(replace(tree, value=sections), path="", hidden=hidden)
    notes += [Note("", f"`{path}` is left out: it looks like a secret") for path in hidden]
    return clean or tree


def _secrets(settings: Mapping[str, Setting], notes: list[Note]) -> Node | None:
    """Notes the secrets among the settings; the name of the variable that holds the server's key, where it has one."""
    token, key = settings.get("hf_token"), settings.get("api_key")
    if token:
        notes.append(
            Note("", f"`{token.written}` is left out: export the token as `HF_TOKEN`", token.place.line)
        )
    if not key:
        return None
    text = f"the name of the variable that holds the key, which stood behind `{key.written}`"
    notes.append(Note("server.api_key_env", text, key.place.line))
    return Node(_variable(key.node), key.node.span)


def _variable(node: Node) -> str:
    """The variable that a key came from, else vLLM's own."""
    texts = node.value if isinstance(node.value, list) else [node]
    for item in texts:
        match = UNKNOWN.fullmatch(item.value) if isinstance(item.value, str) else None
        if match and match[1].isidentifier():
            return match[1]
    return "VLLM_API_KEY"


def _closed(server: dict[str, Node], notes: list[Note]) -> None:
    """Without a key a converted server listens on this machine only."""
    host = server.get("host")
    if host and host.value in _EVERYWHERE and "api_key_env" not in server:
        server["host"] = replace(host, value="127.0.0.1", raw="127.0.0.1")
        text = (
            f"was {host.value or 'every interface'}, without a key: who reaches the port could use the model."
            " To open it, name a variable with a key in `api_key_env`"
        )
        notes.append(Note("server.host", text, host.span.line))


def _draft_size(sections: dict[str, Node], notes: list[Note]) -> None:
    """A draft is split like its target: any other size is refused by vLLM, or ignored."""
    block = sections["speculation"].mapping if "speculation" in sections else None
    size = block.get("draft_tensor_parallel_size") if block else None
    if not block or size is None:
        return
    target = (sections["target"].mapping or {}).get("tensor_parallel_size")
    wanted = target.value if target else 1
    if size.value == wanted:
        return
    rest = {key: node for key, node in block.items() if key != "draft_tensor_parallel_size"}
    notes[:] = [note for note in notes if note.path != "speculation.draft_tensor_parallel_size"]
    sections["speculation"] = replace(sections["speculation"], value=rest)
    text = f"`draft_tensor_parallel_size: {size.value}` is left out: vLLM splits a draft like its target, here {wanted}"
    notes.append(Note("speculation", text, size.span.line))


def _cured(tree: Node, notes: list[Note]) -> tuple[Node, Profile | None]:
    """The tree without the values that no profile, or the newest vLLM, would take; each is noted."""
    newest = table(known_versions()[-1])
    profile = None
    for _ in range(_ROUNDS):
        profile, findings = validate(tree, file=FILE)
        wrong = [(finding.span.path, finding.message, finding.span) for finding in findings]
        if profile:
            wrong = [
                (item.path, item.message, profile.span(item.path))
                for item in problems(profile, newest)
                if item.kind != "plug-in"
            ]
        cut = [(path, message, span) for path, message, span in wrong if _may_go(path)]
        if not cut:
            break
        for path, message, span in cut:
            smaller = _without(tree, path.split("."))
            if smaller is not tree:
                tree = smaller
                notes.append(Note("", f"`{path}` is left out: {message}", span.line))
    return tree, profile


def _may_go(path: str) -> bool:
    """Not the target itself, nor what makes a block of speculation."""
    whole = ("", "target", "target.model", "speculation", "speculation.method", "speculation.model")
    return path not in (*whole, "speculation.num_speculative_tokens")


def _without(tree: Node, keys: list[str]) -> Node:
    """The tree without the value at this path; the tree itself where there is none."""
    values, name = tree.mapping, keys[0].partition("[")[0]
    if values is None or name not in values:
        return tree
    if len(keys) == 1:
        return replace(tree, value={key: node for key, node in values.items() if key != name})
    inner = _without(values[name], keys[1:])
    return tree if inner is values[name] else replace(tree, value={**values, name: inner})


def _for_versions(tree: Node, profile: Profile | None, notes: list[Note]) -> Node:
    """With the range of vLLMs that have all that is used, where some do not."""
    versions = known_versions()
    first, missing = len(versions) - 1, ""
    anyway = {item.path for item in problems(profile, table(versions[-1]))} if profile else set()
    while profile and first > 0:
        wrong = [item for item in problems(profile, table(versions[first - 1])) if item.path not in anyway]
        if wrong:
            missing = wrong[0].path
            break
        first -= 1
    if profile is None or first == 0:
        return tree
    notes.append(Note("vllm", f"the first known version that has `{missing}` as it is used here"))
    return replace(tree, value={"vllm": Node(f">={versions[first]}", Span("")), **(tree.mapping or {})})


def _comments(tree: Node, notes: list[Note]) -> dict[str, list[str]]:
    """The notes by the path of a key that is there: its own, or the nearest one around it."""
    there = {path for path, _ in tree.walk()}
    comments: dict[str, list[str]] = {}
    for note in notes:
        path = note.path
        while path and path not in there:
            path = path.rpartition(".")[0]
        comments.setdefault(path, []).append(note.text)
    return comments
