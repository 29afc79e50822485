"""Containers in YAML: compose files, manifests of Kubernetes, and scripts in other YAML."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from specserve.convert import forms
from specserve.convert.arguments import words_of
from specserve.convert.forms import at, text_at
from specserve.convert.launch import STARTS, Launch, in_container, is_image, mount, script_starts
from specserve.convert.options import options
from specserve.convert.shell import script
from specserve.convert.words import UNKNOWN, Note, Word, finding, unknown
from specserve.diagnostics import Span
from specserve.errors import UsageError, quoted
from specserve.profile.problems import Stop
from specserve.profile.source import Builder, parse
from specserve.profile.values import Node

_INNERMOST = re.compile(r"\$\{(\w+)(?:(:?[-+?])([^${}]*))?\}|\$(\w+)")
_OF_KUBERNETES = re.compile(r"\$\((\w+)\)")
_VARIABLE = re.compile(r"\$\{?(\w+)\}?")
_HELM = ("modelSpec", "vllmConfig", "servingEngineSpec", "extraArgs", "modelCommand")
_TEMPLATE = re.compile(r"\{\{-?\s*(?:\.|\$|if |range |include |with |template )")
_SHELL = re.compile(r"(?:^|[ /])(?:ba|z|da)?sh (?:-\S+ (?:\w+ )?)*?-[a-z]*c ")
_COMMAND = ("entrypoint", "command", "args")
_READ = (
    "image",
    *_COMMAND,
    "environment",
    "env",
    "ports",
    "volumes",
    "volumeMounts",
    "name",
    "container_name",
    "gpus",
    "storageUri",
)
_PASSED = (
    "apiVersion",
    "kind",
    "metadata",
    "spec",
    "template",
    "containers",
    "selector",
    "status",
    "services",
    "version",
    "leaderWorkerTemplate",
    "leaderTemplate",
    "workerTemplate",
    "size",
    "model",
    "name",
    "volumes",
    "items",
    "predictor",
    "servingEngineSpec",
    "modelSpec",
)
"""The keys of what lies around a container that are read, or say nothing by themselves."""
_FILLED = (
    "dnsPolicy",
    "schedulerName",
    "terminationMessagePath",
    "terminationMessagePolicy",
    "imagePullPolicy",
    "enableServiceLinks",
    "preemptionPolicy",
    "priority",
    "progressDeadlineSeconds",
    "revisionHistoryLimit",
    "restartPolicy",
    "terminationGracePeriodSeconds",
    "serviceAccount",
    "nodeName",
)
"""The keys that a cluster fills in."""
_SCRIPT = re.compile(r"^(run|script|command|cmd|.*\.sh)$")
_GPUS = ("nvidia.com/gpu", "amd.com/gpu")
_LABELS = re.compile(
    r"accelerator$|gpu\.product$|gpu[.-](model|name|class|type)$|instance-gpu-name$", re.I
)
"""Labels of nodes that name their GPUs: of GKE, EKS, NVIDIA's operator, Karpenter, CoreWeave."""
_DOLLAR = "\ue004"  # a `$$` of compose, which becomes `$` at the end


def containers(text: str, *, file: str) -> list[Launch]:
    """Every engine that a YAML file starts.

    Raises UsageError for what is not YAML, or a form that is not read.
    """
    helm = UsageError(
        f"`{file}` contains Helm values or templates, which specserve cannot read",
        hint="render the chart with `helm template`, and convert the manifest that it prints",
    )
    try:
        documents = _documents(text, file=file)
    except UsageError as error:
        raise helm if _TEMPLATE.search(re.sub(r"(?m)(^|\s)#.*$", "", text)) else error from error
    documents = [item for root in documents for item in forms.objects(root)]
    found: list[Launch] = []
    formed = [_of_form(root, documents) for root in documents]
    for root, made in zip(documents, formed, strict=True):
        found += made
        # a runtime is a part of its service's launch
        if made or (any(formed) and text_at(root, "kind").endswith("ServingRuntime")):
            continue
        for name, parents, mapping in _mappings(root):
            if any(key in mapping for key in _HELM):
                raise helm
            found += _started(name, parents, mapping, documents)
    if any(_TEMPLATE.search(word.text) for given in found for word in (given.start, *given.words)):
        raise helm
    if not found and (given := _of_config(documents, text, file=file)):
        return [given]
    if not found:  # SkyPilot's `run`, a script in a ConfigMap
        mappings = [mapping for root in documents for _, _, mapping in _mappings(root)]
        held = dict(
            item for root in documents if isinstance(root, dict) for item in _environment(root)
        )
        known = {name: word.text for name, word in held.items() if not UNKNOWN.search(word.text)}
        for key, word in (item for mapping in mappings for item in mapping.items()):
            if _SCRIPT.search(key) and isinstance(word, Word) and STARTS.search(word.text):
                commands = script(word.text, file=file, line=word.span.line, variables=known)
                found += script_starts(commands, word.text)
    return found


def _of_form(root: Any, documents: list[Any]) -> list[Launch]:
    """What an object of `docker inspect`, the values of a chart or a KServe service starts."""
    found = []
    for container, texts in forms.described(root, documents):
        around = (at(root, "servingEngineSpec"), at(root, "spec"), at(root, "spec", "predictor"))
        parents = (
            (root, *(part for part in around if isinstance(part, dict))) if any(around) else ()
        )
        for given in _started("modelSpec", parents, container, documents):
            is_named = given.image and given.image.text != forms.UNSAID
            given.image = given.image if is_named else None
            given.unresolved += [
                finding("SD105", text, given.place, help="write it as keys of the profile")
                for text in texts
            ]
            found.append(given)
    return found


def _of_config(documents: list[Any], text: str, *, file: str) -> Launch | None:
    """vLLM's own file of arguments, as `vllm serve --config` takes it: flags as keys."""
    tree = parse(text.encode(), file=file)[0] if len(documents) == 1 else None
    words, known = words_of(tree) if tree else [], options()
    flags = [word.text.replace("_", "-") for word in words if word.text.startswith("--")]
    is_ours = "--model" in flags and sum(flag in known for flag in flags) * 2 > len(flags)
    return Launch("vllm", Word("vllm", words[0].span), words) if is_ours else None


def _documents(text: str, *, file: str) -> list[Any]:
    """The documents as dictionaries, lists and words: each scalar as written, with its place."""
    builder, reason = Builder(file), ""
    try:
        roots = list(builder.documents(text))
        reason = builder.findings[0].message if builder.findings else ""
    except Stop as error:
        reason = error.finding.message.removeprefix("invalid YAML: ")
    if reason:
        raise UsageError(f"specserve cannot read `{file}` as YAML: {reason}")
    return [_plain(root, text.split("\n")) for root in roots]


def _plain(node: Node, lines: list[str]) -> Any:
    if node.mapping is not None:
        return {key: _plain(item, lines) for key, item in node.mapping.items()}
    if isinstance(node.value, list):
        return [_plain(item, lines) for item in node.value]
    if node.value is None:
        return None
    span, text = node.span, str(node.value) if node.raw is None else node.raw
    if lines[span.line - 1][span.column - 1 :].startswith(
        (">", "|")
    ):  # a block begins on the line below
        span = Span(span.file, span.line + 1, span.column, span.end_line, span.end_column)
    return Word(text, span)


def _mappings(
    value: Any, name: str = "", parents: tuple[Mapping[str, Any], ...] = ()
) -> Iterator[tuple[str, tuple[Mapping[str, Any], ...], Mapping[str, Any]]]:
    """Every mapping of a document in order: its key, the mappings around it, and itself."""
    if isinstance(value, dict):
        yield name, parents, value
        for key, item in value.items():
            if key != "status":  # what a cluster says about it
                yield from _mappings(item, key, (*parents, value))
    elif isinstance(value, list):
        for item in value:
            yield from _mappings(item, name, parents)


def _started(
    key: str,
    parents: tuple[Mapping[str, Any], ...],
    mapping: Mapping[str, Any],
    documents: list[Any],
) -> list[Launch]:
    """What a container starts; nothing if the mapping is not a container of an engine."""
    image = mapping.get("image")
    root = parents[0] if parents else mapping
    is_compose = "services" in root
    parts = [_listed(mapping.get(name)) for name in _COMMAND]
    text = " ".join(word.text for part in parts for word in part)
    is_llm = key == "containers" and text_at(root, "kind") == "LLMInferenceService"
    uri = at(root, "spec", "model", "uri") if is_llm else mapping.get("storageUri")
    uri = uri if isinstance(uri, Word) else None
    named = isinstance(image, Word) and is_image(_VARIABLE.sub(r"\1", _compose(image.text)))
    is_other = not (named or STARTS.search(text) or uri) or not (
        image is None or isinstance(image, Word)
    )
    if is_other or key == "initContainers":
        return []
    shell = bool(_SHELL.search(text))
    env: dict[str, Word] = {}

    def resolved(value: Word, *, shell: bool = False) -> Word:
        if is_compose:
            text = _compose(value.text)
        else:  # `$(X)` is a variable of the container; a shell reads the others
            text = _OF_KUBERNETES.sub(
                lambda found: env[found[1]].text if found[1] in env else found[0], value.text
            )
            text = text if shell else _VARIABLE.sub(lambda found: unknown(found[1]), text)
        text = forms.filled(text, root)
        return Word(
            text if shell else _OF_KUBERNETES.sub(lambda found: unknown(found[1]), text), value.span
        )

    env.update({name: resolved(word) for name, word in _environment(mapping)})
    command: list[Word] = []
    for value in (mapping.get(name) for name in _COMMAND):
        if isinstance(value, Word):
            command += _listed(resolved(value, shell=shell))
        else:
            command += [resolved(item, shell=shell) for item in _listed(value)]
    place = next(iter([*command, *([image] if image else [])]), uri or Word("", Span("")))
    name = mapping.get("name") or mapping.get("container_name")
    found = Launch("vllm", place, env=env, is_contained=True)
    found.name = key if is_compose else name.text if isinstance(name, Word) else ""
    found.published = [resolved(port) for port in _ports(mapping.get("ports"))]
    found.mounts = [
        mount(_compose(text) if is_compose else text) for text in _mounted(mapping, parents)
    ]
    _add_surroundings(found, parents, mapping, documents)
    held = resolved(image) if image else None
    if image and held and held.text != image.text and "$" in image.text:
        found.notes.append(
            Note("", f"the image `{held.text}` is the default of a variable", image.span.line)
        )
    if not uri:
        return in_container(held, command, None, found)
    return _of_uri(uri, held, command, found, at(root, "spec", "model", "name") if is_llm else None)


def _of_uri(
    uri: Word, image: Word | None, command: list[Word], found: Launch, served: Any
) -> list[Launch]:
    """What a container of KServe starts, whose model is named by its address.

    `served`: the name it is served under.
    """
    of_hub = uri.text.removeprefix("hf://") if uri.text.startswith("hf://") else ""
    if of_hub:
        found.mounts.append((of_hub, "/mnt/models"))  # where KServe puts it
    made = in_container(image or Word(forms.UNSAID, uri.span), command, None, found)
    for given in made:
        given.image = image
        is_named = any(re.match("--model(=|$)", word.text) for word in given.words)
        if not is_named and (not given.words or given.words[0].text.startswith("--")):
            if of_hub or uri.text.startswith("/"):
                given.words += [Word("--model", uri.span), Word(of_hub or uri.text, uri.span)]
            else:
                text = f"KServe copies the model from {quoted(uri.text)}"
                place = replace(uri.span, path="target.model")
                given.unresolved.append(
                    finding("SD105", text, place, help="write the path of its copy here")
                )
        if isinstance(served, Word) and not any(
            word.text.startswith("--served") for word in given.words
        ):
            given.words += [Word("--served-model-name", served.span), served]
    return made


def _listed(value: Any) -> list[Word]:
    """A list of words as it is; a text as compose splits it."""
    if isinstance(value, Word):
        try:
            parts = shlex.split(value.text)
        except ValueError:
            parts = value.text.split()
        return [Word(part, value.span) for part in parts]
    return [item for item in value if isinstance(item, Word)] if isinstance(value, list) else []


def _ports(value: Any) -> Iterator[Word]:
    """Compose's `9000:8000` and `{published, target}`; a `containerPort` opens nothing."""
    for item in forms.items(value):
        if isinstance(item, Word):
            yield item
        elif isinstance(target := at(item, "target"), Word):
            yield Word(f"{text_at(item, 'published')}:{target.text}".lstrip(":"), target.span)


def _mounted(mapping: Mapping[str, Any], parents: tuple[Mapping[str, Any], ...]) -> Iterator[str]:
    """The mounts of a container as `HOST:CONTAINER`; a named volume has its name for the folder."""
    pod = forms.items(parents[-1].get("volumes")) if parents else []
    folders = {text_at(item, "name"): text_at(item, "hostPath", "path") for item in pod}
    for item in (
        item for key in ("volumes", "volumeMounts") for item in forms.items(mapping.get(key))
    ):
        inside = text_at(item, "mountPath") or text_at(item, "target")
        if isinstance(item, Word):
            yield item.text
        elif inside:
            host = folders.get(text_at(item, "name")) or text_at(item, "source") or "volume"
            under = text_at(item, "subPath")
            yield f"{host}/{under}:{inside}" if under else f"{host}:{inside}"


def _environment(mapping: Mapping[str, Any]) -> Iterator[tuple[str, Word]]:
    """Compose's mapping or list of `NAME=value`; Kubernetes' list of `{name, value}`."""
    for value in (mapping.get("environment"), mapping.get("env"), mapping.get("envs")):
        pairs = list(value.items()) if isinstance(value, dict) else []
        for item in value if isinstance(value, list) else []:
            if isinstance(item, Word):
                name, sign, text = item.text.partition("=")
                pairs.append((name, Word(text, item.span) if sign else None))
            elif isinstance(item, dict) and isinstance(named := item.get("name"), Word):
                empty = Word("", named.span) if "value" in item else None
                pairs.append((named.text, item.get("value") or empty))
        for name, held in pairs:
            yield name, held if isinstance(held, Word) else Word(unknown(name), Span(""))


def _add_surroundings(
    found: Launch,
    parents: tuple[Mapping[str, Any], ...],
    mapping: Mapping[str, Any],
    documents: list[Any],
) -> None:
    """GPUs, nodes and labels, and what is left out: other keys, services and documents."""
    devices = at(mapping, "deploy", "resources", "reservations", "devices")
    ids, held = _listed(at(devices, "device_ids")), at(devices, "count") or mapping.get("gpus")
    limits = [
        at(mapping, "resources", kind, name) for kind in ("limits", "requests") for name in _GPUS
    ]
    found.devices = next((item for item in (held, *limits) if isinstance(item, Word)), None)
    if ids:
        found.devices = Word("device=" + ",".join(word.text for word in ids), ids[0].span)
    chain, left = (*parents, mapping), found.left_out
    for part in chain:
        found.nodes = found.nodes or at(part, "leaderWorkerTemplate", "size")
        passed = (*(_READ if part is mapping else _PASSED), *_FILLED, "nodeSelector")
        for label, word in forms.pairs(at(part, "nodeSelector")):
            if isinstance(word, Word) and _LABELS.search(label):
                found.accelerator = word
            else:
                left.append(f"nodeSelector {label}")
        for key, value in part.items():
            inside = [one for one in chain for held in forms.items(value) or [value] if held is one]
            if (
                key in passed
                or inside
                or key.startswith("x-")
                or (key, text_at(part, key)) == ("replicas", "1")
            ):
                continue
            if key not in ("resources", "deploy") or _more_than_gpus(value):
                left.append(f"{key}: {value.text}" if isinstance(value, Word) else key)
        if space := text_at(part, "metadata", "namespace"):
            left.append(f"namespace: {space}")
    services = dict(forms.pairs(at(chain[0], "services")))
    found.left_out = [text for text in left if text not in services]
    found.left_out += [f"service {key}" for key, value in services.items() if value is not mapping]
    for root in documents:
        kind = text_at(root, "kind")
        if kind and root is not chain[0] and not kind.endswith("ServingRuntime"):
            more = (kind, text_at(root, "metadata", "name"), text_at(root, "spec", "type"))
            found.left_out.append(" ".join(filter(None, more)))


def _more_than_gpus(value: Any) -> bool:
    """Whether resources say something besides the GPUs."""
    read = {*_GPUS, "devices", "driver", "count", "capabilities", "device_ids"}
    inside = (item for _, _, mapping in _mappings(value) for item in mapping.items())
    return any(key not in read and not isinstance(item, dict) for key, item in inside)


def _compose(text: str) -> str:
    """A text as compose reads it: `$$` is a dollar sign, `${X:-default}` the default."""

    def value(match: re.Match[str]) -> str:
        kept = {"-": match[3], "+": ""}
        return kept.get((match[2] or "?")[-1], unknown(match[1] or match[4]))

    text, before = text.replace("$$", _DOLLAR), ""
    while text != before:  # the innermost first
        before, text = text, _INNERMOST.sub(value, text)
    return text.replace(_DOLLAR, "$")
