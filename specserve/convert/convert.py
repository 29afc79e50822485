"""What a text says about an engine to the text of a profile that lints, with every change noted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from specserve.convert.environment import Removed, hushed, kept_environment, looks_secret, without_texts
from specserve.convert.given import Given, Note, Setting
from specserve.convert.profiletree import SECRETS, profile_tree
from specserve.convert.surroundings import image_table, keep_on_loopback, use_hardware_nodes
from specserve.convert.translate import translated
from specserve.convert.words import UNKNOWN, unresolved
from specserve.diagnostics import Finding, Severity, Span
from specserve.errors import UsageError
from specserve.plan.arguments import problems
from specserve.plan.launch import launch
from specserve.plan.support import known_versions, table
from specserve.plan.table import VllmTable
from specserve.plan.writer import yaml_text
from specserve.profile.problems import quoted
from specserve.profile.scalars import meaning
from specserve.profile.schema import Profile
from specserve.profile.tree import Node
from specserve.profile.validate import validate

FILE = "<profile>"
"""The name of a profile that is not written yet."""
_ROUNDS = 5
_PRIVATE_USE = re.compile("[\ue000-\uf8ff]")
_PROGRAMS = ("sh", "bash", "zsh", "dash", "python", "python3", "vllm", "serve", "exec", "env", "sudo")


@dataclass(frozen=True, slots=True)
class Converted:
    """A profile's text, what it says otherwise than its source, and what the source leaves open."""

    text: str
    notes: tuple[Note, ...]
    unresolved: tuple[Finding, ...] = ()
    """Errors about values that the source does not say; none of them stands in the text."""


def converted(given: Given, *, origin: str) -> Converted:
    """The profile of one start of an engine. `origin` names the text.

    Raises UsageError if the text names no model.
    """
    if "model" not in given.settings and "model_path" not in given.settings and not given.unresolved:
        hint = "vLLM would serve its default, Qwen3-0.6B"
        raise UsageError(f"{given.what} in {origin} names no model", hint=hint)
    notes: list[Note] = []
    known, versions = image_table(given, notes)
    given = translated(given, table=known)
    notes += given.notes
    found = list(given.unresolved)
    tree = _tree(given, known, notes, found)
    tree, profile = _cured(tree, known, notes)
    tree = _for_versions(tree, profile, versions, notes)
    if profile:
        added = [
            item.key for item in launch(profile, table=known, platform="cuda").added if item.key != "--host"
        ]
        words = " and ".join(f"`{key}`" for key in added)
        notes.append(Note("", f"a launch adds {words}: see `specserve plan`"))
    notes = [replace(note, text=_harmless(note.text)) for note in notes]
    line = f", line {given.place.line}" if given.place.line > 1 else ""
    comments = _comments(tree, notes)
    head = [f"Converted from {_harmless(given.what)} in {origin}{line}."]
    head += [f"- {text}" for text in comments.pop("", [])]
    return Converted(yaml_text(tree, head=head, comments=comments), tuple(notes), tuple(found))


def _harmless(text: str) -> str:
    """A text without secrets, and without the marks of what the source leaves open."""
    named = UNKNOWN.sub(lambda match: f"${match[1]}" if match[1].isidentifier() else "$(…)", text)
    return hushed(_PRIVATE_USE.sub("…", named))


def _tree(given: Given, known: VllmTable, notes: list[Note], found: list[Finding]) -> Node:
    """The profile's tree, fit to be committed: complete, without secrets, not open to everybody."""
    settings = dict(given.settings)
    headless = settings.pop("headless", None)
    env = kept_environment(given.env, notes)
    key = _api_key(settings, notes)
    settings = {name: setting for name, setting in settings.items() if name not in SECRETS}
    told: list[Finding] = []
    tree = profile_tree(settings, place=given.place, table=known, env=env, found=told)
    notes += [Note("", finding.message, finding.span.line) for finding in told]
    sections = dict(tree.mapping or {})
    sections.pop("name", None)
    server = dict(sections["server"].mapping or {}) if "server" in sections else {}
    if key:
        server["api_key_env"] = key
    elif "VLLM_API_KEY" in given.env:
        server["api_key_env"] = Node("VLLM_API_KEY", given.place)
    notes += keep_on_loopback(server, given, settings)
    if server:
        sections["server"] = Node(server, given.place)
    use_hardware_nodes(sections, headless, notes)
    _match_draft_size(sections, notes)
    return _complete(replace(tree, value=sections), notes, found)


def _complete(tree: Node, notes: list[Note], found: list[Finding]) -> Node:
    """The tree without secrets, which are noted, and without what the source leaves open, which is an error."""
    removed: Removed = []
    tree = without_texts(tree, looks_secret, removed) or tree
    notes += [Note("", f"`{path}` is left out: it looks like a secret") for path, _, _ in removed]
    removed.clear()
    tree = without_texts(tree, lambda text: text if unresolved(text) else None, removed) or tree
    target = (tree.mapping or {}).get("target")
    model = (target.mapping or {}).get("model") if target else None
    if model and (model.value in _PROGRAMS or not isinstance(meaning(str(model.value)), str)):
        removed.append(("target.model", model, str(model.value)))
        tree = _without(tree, ["target", "model"])
    for path, node, what in removed:
        message = f"the source does not say `{path}`: it reads {quoted(_harmless(what))}"
        found.append(
            Finding(
                "SD105", "wrong-argument-value", Severity.ERROR, message, node.span, help="write its value"
            )
        )
    if any(isinstance(node.value, str) and node.value.startswith(("./", "../")) for _, node in tree.walk()):
        notes.append(Note("", "paths that start with `./` or `../` are relative to the profile's own folder"))
    return tree


def _api_key(settings: Mapping[str, Setting], notes: list[Note]) -> Node | None:
    """Notes the secrets among the settings; the name of the variable that holds the server's key, if it has one."""
    token, key = settings.get("hf_token"), settings.get("api_key")
    if token:
        text = f"`{token.written}` is left out: export the token as `HF_TOKEN`"
        notes.append(Note("", text, token.place.line))
    if not key:
        return None
    text = f"the name of the variable that holds the key, formerly `{key.written}`"
    notes.append(Note("server.api_key_env", text, key.place.line))
    items = key.node.value if isinstance(key.node.value, list) else [key.node]
    names = [match[1] for item in items if (match := UNKNOWN.fullmatch(str(item.value)))]
    return Node(next((name for name in names if name.isidentifier()), "VLLM_API_KEY"), key.node.span)


def _match_draft_size(sections: dict[str, Node], notes: list[Note]) -> None:
    """Leaves out the size of a draft that is not split like its target: vLLM refuses or ignores any other size."""
    block = sections["speculation"].mapping if "speculation" in sections else None
    size = block.get("draft_tensor_parallel_size") if block else None
    target = (sections["target"].mapping or {}).get("tensor_parallel_size")
    wanted = target.value if target else 1
    if not block or size is None or size.value == wanted:
        return
    rest = {key: node for key, node in block.items() if node is not size}
    notes[:] = [note for note in notes if note.path != "speculation.draft_tensor_parallel_size"]
    sections["speculation"] = replace(sections["speculation"], value=rest)
    text = f"`draft_tensor_parallel_size: {size.value}` is left out: vLLM splits a draft like its target, here {wanted}"
    notes.append(Note("speculation", text, size.span.line))


def _cured(tree: Node, known: VllmTable, notes: list[Note]) -> tuple[Node, Profile | None]:
    """The tree without the values that no profile, or this vLLM, would take, each noted; None if an error is left."""
    for _ in range(_ROUNDS):
        profile, findings = validate(tree, file=FILE)
        wrong = [(finding.span.path, finding.message, finding.span) for finding in findings]
        if profile:
            refused = [item for item in problems(profile, known) if item.kind != "plug-in"]
            wrong = [(item.path, item.message, profile.span(item.path)) for item in refused]
        cut = [item for item in wrong if _may_go(item[0])]
        if not cut:
            return tree, None if wrong else profile
        for path, message, span in cut:
            smaller = _without(tree, path.split("."))
            if smaller is not tree:
                tree = smaller
                notes.append(Note("", f"`{path}` is left out: {message}", span.line))
    return tree, None


def _may_go(path: str) -> bool:
    """Not the target itself, nor what makes a block of speculation."""
    whole = ("", "target", "target.model", "speculation", "speculation.method", "speculation.model")
    return path not in (*whole, "speculation.num_speculative_tokens")


def _without(tree: Node, keys: list[str]) -> Node:
    """The tree without the value at this path; the tree itself if there is none."""
    values, name = tree.mapping, keys[0].partition("[")[0]
    if values is None or name not in values:
        return tree
    if len(keys) == 1 or name != keys[0]:
        return replace(tree, value={key: node for key, node in values.items() if key != name})
    inner = _without(values[name], keys[1:])
    return tree if inner is values[name] else replace(tree, value={**values, name: inner})


def _for_versions(tree: Node, profile: Profile | None, versions: str | None, notes: list[Note]) -> Node:
    """With the range of the image's vLLM, or of those vLLMs that have all that is used if some do not."""
    minors = known_versions()
    first, missing = len(minors) - 1, ""
    anyway = {item.path for item in problems(profile, table(minors[-1]))} if profile else set()
    while profile and versions is None and first > 0 and not missing:
        wrong = problems(profile, table(minors[first - 1]))
        missing = next((item.path for item in wrong if item.path not in anyway), "")
        first -= 0 if missing else 1
    if missing:
        notes.append(Note("vllm", f"the first known version that has `{missing}` as it is used here"))
        versions = f">={minors[first]}"
    return (
        replace(tree, value={"vllm": Node(versions, Span("")), **(tree.mapping or {})}) if versions else tree
    )


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
