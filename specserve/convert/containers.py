"""Containers in YAML: compose, Kubernetes, production-stack; vLLM's own file of arguments."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from specserve.convert.arguments import options, words_of
from specserve.convert.forms import at, charted, inspected, items, pairs, text_at
from specserve.convert.host import accelerator_of
from specserve.convert.launch import STARTS, Launch, in_container, is_image, mount
from specserve.convert.words import Note, Word, finding, mark, placeholder, unknown
from specserve.diagnostics import Span
from specserve.errors import UsageError
from specserve.profile.problems import Stop
from specserve.profile.source import Builder, parse
from specserve.profile.values import Node

_INNERMOST = re.compile(r"\$\{(\w+)(?:(:?[-+?])([^${}]*))?\}|\$(\w+)")
_OF_KUBERNETES = re.compile(r"\$\((\w+)\)")
_VARIABLE = re.compile(r"\$\{?(\w+)\}?")
_HELM = ("modelSpec", "vllmConfig", "servingEngineSpec", "extraArgs", "modelCommand")
_OF_KSERVE = re.compile(r"\{\{-?\s*\.([\w.]+)\s*-?\}\}")
_TEMPLATE = re.compile(r"\{\{-?\s*(?:\.|\$|if |range |include |with |template )")
_SHELL = re.compile(r"(?:^|[ /])(?:ba|z|da)?sh (?:-\S+ (?:\w+ )?)*?-[a-z]*c ")
_COMMAND = ("entrypoint", "command", "args")
_READ = frozenset(
    "image entrypoint command args environment env volumes volumeMounts name container_name gpus "
    "nodeSelector resources deploy".split()
)
"""The keys of a container that are read."""
_PASSED = frozenset(
    "apiVersion kind metadata spec template containers selector status services version "
    "leaderWorkerTemplate leaderTemplate workerTemplate size model name volumes items predictor "
    "servingEngineSpec modelSpec nodeSelector dnsPolicy schedulerName terminationMessagePath "
    "terminationMessagePolicy imagePullPolicy restartPolicy".split()
)
"""The keys of what lies around a container that are read, or say nothing by themselves."""
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
    documents = [
        item for root in documents for item in items(root) or items(at(root, "items")) or [root]
    ]
    if any(isinstance(at(root, "spec", "predictor", "model"), dict) for root in documents):
        raise UsageError(
            f"`{file}` contains an InferenceService, whose command its ServingRuntime makes",
            hint="convert the ServingRuntime alone, and add what the service says",
        )
    found: list[Launch] = []
    for root in documents:
        models = items(at(root, "servingEngineSpec", "modelSpec"))
        if any(isinstance(at(spec, "modelURL"), Word) for spec in models):
            found += _of_chart(root, documents)
            continue
        if isinstance(config := at(root, "Config"), dict) and isinstance(at(config, "Image"), Word):
            found += _started("", (), inspected(root, config), documents)
            continue
        for name, parents, mapping in _mappings(root):
            if any(key in mapping for key in _HELM):
                raise helm
            found += _started(name, parents, mapping, documents)
    if any(_TEMPLATE.search(word.text) for given in found for word in (given.start, *given.words)):
        raise helm
    given = None if found else _of_config(documents, text, file=file)
    return [given] if given else found


def _of_config(documents: list[Any], text: str, *, file: str) -> Launch | None:
    """vLLM's own file of arguments, as `vllm serve --config` takes it: flags as keys."""
    tree = parse(text.encode(), file=file)[0] if len(documents) == 1 else None
    words, known = words_of(tree) if tree else [], options()
    flags = [word.text.replace("_", "-") for word in words if word.text.startswith("--")]
    is_ours = "--model" in flags and sum(flag in known for flag in flags) * 2 > len(flags)
    return Launch("vllm", Word("vllm", words[0].span), words) if is_ours else None


def _of_chart(root: Any, documents: list[Any]) -> list[Launch]:
    """What production-stack starts by these values."""
    found = []
    for spec in items(at(root, "servingEngineSpec", "modelSpec")):
        if isinstance(at(spec, "modelURL"), Word):
            container, keys = charted(spec)
            parents = (root, root["servingEngineSpec"])
            for given in _started("modelSpec", parents, container, documents):
                for key in keys:
                    text = f"what the chart of its version makes of `{key}` is not in the source"
                    help = "write it as keys of the profile"
                    given.unresolved.append(finding("SD105", text, given.place, help=help))
                found.append(given)
    return found


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
    if lines[span.line - 1][span.column - 1 :].startswith((">", "|")):  # begins a line below
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
    text = " ".join(word.text for part in _COMMAND for word in _listed(mapping.get(part)))
    is_llm = key == "containers" and text_at(root, "kind") == "LLMInferenceService"
    uri = at(root, "spec", "model", "uri") if is_llm else None
    named = isinstance(image, Word) and is_image(_VARIABLE.sub(r"\1", _compose(image.text)))
    is_other = not (named or STARTS.search(text) or isinstance(uri, Word)) or not (
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
        if "serving.kserve" in text_at(root, "apiVersion"):  # it fills in its own templates
            text = _OF_KSERVE.sub(lambda found: placeholder(found[1]), text)
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
    mounts = [mount(_compose(text) if is_compose else text) for text in _mounted(mapping, parents)]
    if isinstance(uri, Word):
        of_hub = uri.text.removeprefix("hf://") if uri.text.startswith("hf://") else ""
        if STARTS.search(text):
            mounts += [(of_hub, "/mnt/models")] if of_hub else []  # where KServe puts it
        else:
            served = at(root, "spec", "model", "name")
            head = ["vllm", "serve", of_hub or mark(uri.text)]
            head += ["--served-model-name", served.text] if isinstance(served, Word) else []
            command = [*(Word(one, uri.span) for one in head), *command]
    place = next(iter([*command, *([image] if image else [])]), Word("", Span("")))
    name = mapping.get("name") or mapping.get("container_name")
    found = Launch("vllm", place, env=env, mounts=mounts, is_contained=True)
    found.name = key if is_compose else name.text if isinstance(name, Word) else ""
    _add_surroundings(found, parents, mapping, documents)
    held = resolved(image) if image else None
    if image and held and held.text != image.text and "$" in image.text:
        found.notes.append(
            Note("", f"the image `{held.text}` is the default of a variable", image.span.line)
        )
    return in_container(held, command, None, found)


def _listed(value: Any) -> list[Word]:
    """A list of words as it is; a text as compose splits it."""
    if isinstance(value, Word):
        try:
            parts = shlex.split(value.text)
        except ValueError:
            parts = value.text.split()
        return [Word(part, value.span) for part in parts]
    return [item for item in value if isinstance(item, Word)] if isinstance(value, list) else []


def _mounted(mapping: Mapping[str, Any], parents: tuple[Mapping[str, Any], ...]) -> Iterator[str]:
    """The mounts of a container as `HOST:CONTAINER`; a named volume has its name for the folder."""
    pod = items(parents[-1].get("volumes")) if parents else []
    folders = {text_at(item, "name"): text_at(item, "hostPath", "path") for item in pod}
    for item in (item for key in ("volumes", "volumeMounts") for item in items(mapping.get(key))):
        inside = text_at(item, "mountPath") or text_at(item, "target")
        if isinstance(item, Word):
            yield item.text
        elif inside:
            host = folders.get(text_at(item, "name")) or text_at(item, "source") or "volume"
            under = text_at(item, "subPath")
            yield f"{host}/{under}:{inside}" if under else f"{host}:{inside}"


def _environment(mapping: Mapping[str, Any]) -> Iterator[tuple[str, Word]]:
    """Compose's mapping or list of `NAME=value`; Kubernetes' list of `{name, value}`."""
    for value in (mapping.get("environment"), mapping.get("env")):
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
    services = pairs(at(chain[0], "services"))
    for part in chain:
        found.nodes = found.nodes or at(part, "leaderWorkerTemplate", "size")
        for label, word in pairs(at(part, "nodeSelector")):
            if isinstance(word, Word) and _LABELS.search(label) and accelerator_of(word.text):
                found.accelerator = word
            else:
                left.append(f"nodeSelector {label}: {text_at(part, 'nodeSelector', label)}")
        passed = _READ if part is mapping else {*_PASSED, *(key for key, _ in services)}
        for key, value in part.items():
            is_around = any(value is one or one in items(value) for one in chain)
            if key not in passed and not is_around and not key.startswith("x-"):
                left.append(f"{key}: {value.text}" if isinstance(value, Word) else key)
        if space := text_at(part, "metadata", "namespace"):
            left.append(f"namespace: {space}")
    inner = [one for name in ("resources", "deploy") for _, _, one in _mappings(at(mapping, name))]
    for key, value in (item for held in inner for item in held.items()):
        if isinstance(value, Word) and key not in (*_GPUS, "driver", "count"):
            left.append(f"{key}: {value.text}")
    left += [f"service {key}" for key, value in services if value is not mapping]
    for root in documents:
        if (kind := text_at(root, "kind")) and root is not chain[0]:
            more = (kind, text_at(root, "metadata", "name"), text_at(root, "spec", "type"))
            left.append(" ".join(filter(None, more)))


def _compose(text: str) -> str:
    """A text as compose reads it: `$$` is a dollar sign, `${X:-default}` the default."""

    def value(match: re.Match[str]) -> str:
        kept = {"-": match[3], "+": ""}
        return kept.get((match[2] or "?")[-1], unknown(match[1] or match[4]))

    text, before = text.replace("$$", _DOLLAR), ""
    while text != before:  # the innermost first
        before, text = text, _INNERMOST.sub(value, text)
    return text.replace(_DOLLAR, "$")
