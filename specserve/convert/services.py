"""Services to launches: compose, Kubernetes, production-stack's chart, `docker inspect`, systemd.

Sources: helm/templates/deployment-vllm-multi.yaml of vllm-project/production-stack;
docs.docker.com/reference/cli/docker/inspect; systemd.service(5), "COMMAND LINES".
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from specserve.convert.arguments import options, words_of
from specserve.convert.launch import ASSIGNMENT, STARTS, Launch, in_container, is_image, mount
from specserve.convert.launch import starts as started_by
from specserve.convert.words import Note, Word, finding, mark, unknown
from specserve.diagnostics import Span
from specserve.errors import UsageError, quoted
from specserve.hardware.accelerators import catalogue
from specserve.profile.tree import Builder, Node, Stop, parse

Mapped = Mapping[str, Any]
_INNERMOST = re.compile(r"\$\{(\w+)(?:(:?[-+?])([^${}]*))?\}|\$(\w+)")
_OF_KUBERNETES = re.compile(r"\$\((\w+)\)")
_VARIABLE = re.compile(r"\$\{?(\w+)\}?")
_HELM = ("modelSpec", "vllmConfig", "servingEngineSpec", "extraArgs", "modelCommand")
_TEMPLATE = re.compile(r"\{\{-?\s*(.*?)\s*-?\}\}")
_SHELL = re.compile(r"(?:^|[ /])(?:ba|z|da)?sh (?:-\S+ (?:\w+ )?)*?-[a-z]*c ")
_COMMAND = ("entrypoint", "command", "args")
_PASSED = frozenset(
    "image entrypoint command args environment env volumes volumeMounts name container_name gpus "
    "nodeSelector resources deploy apiVersion kind metadata spec template containers selector "
    "status services version leaderWorkerTemplate leaderTemplate workerTemplate size model items "
    "predictor servingEngineSpec modelSpec dnsPolicy schedulerName terminationMessagePath "
    "terminationMessagePolicy imagePullPolicy restartPolicy".split()
)
"""The keys of a container, and around it, that are read, or say nothing by themselves."""
_GPUS = ("nvidia.com/gpu", "amd.com/gpu")
_DOLLAR = "\ue004"  # a `$$` of compose, which becomes `$` at the end
_CHART_FLAGS = (
    "enableChunkedPrefill enablePrefixCaching maxModelLen dtype tensorParallelSize maxNumSeqs "
    "gpuMemoryUtilization maxLoras"
).split()
_CHART_OPEN = "enableLoRA enableTool toolCallParser chatTemplate lmcacheConfig raySpec".split()
_CHART_READ = {*_CHART_OPEN, *"modelURL vllmConfig hf_token tag requestGPU requestGPUType".split()}
_OF_IMAGE = re.compile(
    r"PATH|HOME|HOSTNAME|LANG|LC_ALL|DEBIAN_FRONTEND|(CUDA|NCCL|PYTHON)_VERSION|PYTHON_SHA256|GPG_KEY"
    r"|(NV|NVIDIA|UV)_\w+|NVARCH|TORCH_CUDA_ARCH_LIST|VLLM_(USAGE_SOURCE|(BUILD|IMAGE)_\w+)"
    r"|(LD_)?LIBRARY_PATH"
)
"""Variables that the images of vLLM and NVIDIA set themselves."""
_OF_SYSTEMD = re.compile(r"\$\$|\$\{(\w+)\}|\$(\w+)$|%(%|[a-zA-Z])")
_AROUND = ("ExecStartPre", "ExecStartPost", "ExecCondition", "EnvironmentFile")
_OF_UNIT = ("ExecStart", "Environment", "WorkingDirectory", *_AROUND)


def containers(text: str, *, file: str) -> list[Launch]:
    """Every engine that a YAML file starts.

    Raises UsageError for what is not YAML, or a form that is not read.
    """
    hint = "render the chart with `helm template`, and convert the manifest that it prints"
    text_of_helm = f"`{file}` contains Helm values or templates, which specserve cannot read"
    helm = UsageError(text_of_helm, hint=hint)
    try:
        documents = _documents(text, file=file)
    except UsageError as error:
        raise helm if "{{" in text else error from error
    lists = (_items(root) or _items(_at(root, "items")) or [root] for root in documents)
    documents = [root for one in lists for root in one]
    if any(isinstance(_at(root, "spec", "predictor", "model"), dict) for root in documents):
        why = f"`{file}` contains an InferenceService, whose command its ServingRuntime makes"
        hint = "convert the ServingRuntime alone, and add what the service says"
        raise UsageError(why, hint=hint)
    found: list[Launch] = []
    for root in documents:
        models = _items(_at(root, "servingEngineSpec", "modelSpec"))
        if any(_text_at(spec, "modelURL") for spec in models):
            for spec in (spec for spec in models if _text_at(spec, "modelURL")):
                found += _charted(spec, root, documents)
            continue
        if isinstance(config := _at(root, "Config"), dict) and _text_at(config, "Image"):
            found += _started("", (), _inspected(root, config), documents)
            continue
        for name, parents, mapping in _mappings(root):
            if any(key in mapping for key in _HELM):
                raise helm
            found += _started(name, parents, mapping, documents)
    if not found and len(documents) == 1 and (tree := parse(text.encode(), file=file)[0]):
        # vLLM's own file of arguments, as `vllm serve --config` takes it: flags as keys
        words, known = words_of(tree), options()
        flags = [word.text.replace("_", "-") for word in words if word.text.startswith("--")]
        if "--model" in flags and sum(flag in known for flag in flags) * 2 > len(flags):
            return [Launch("vllm", Word("vllm", words[0].span), words)]
    return found


def _at(value: Any, *keys: str) -> Any:
    """What lies under these keys, in the first item of a list; None if nothing does."""
    for key in keys:
        value = value[0] if isinstance(value, list) and value else value
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _text_at(value: Any, *keys: str) -> str:
    """The text under these keys; empty if there is none."""
    found = _at(value, *keys)
    return found.text if isinstance(found, Word) else ""


def _items(value: Any) -> list[Any]:
    """A list as it is, nothing for everything else."""
    return value if isinstance(value, list) else []


def _pairs(value: Any) -> list[tuple[str, Any]]:
    """The items of a mapping, nothing for everything else."""
    return list(value.items()) if isinstance(value, dict) else []


def _documents(text: str, *, file: str) -> list[Any]:
    """The documents as dictionaries, lists and words: each scalar as written, with its place."""
    builder, reason, lines = Builder(file), "", text.split("\n")
    try:
        roots = list(builder.documents(text))
        reason = builder.findings[0].message if builder.findings else ""
    except Stop as error:
        reason = error.finding.message.removeprefix("invalid YAML: ")
    if reason:
        raise UsageError(f"specserve cannot read `{file}` as YAML: {reason}")

    def plain(node: Node) -> Any:
        if node.mapping is not None:
            return {key: plain(item) for key, item in node.mapping.items()}
        if isinstance(node.value, list):
            return [plain(item) for item in node.value]
        if node.value is None:
            return None
        span, text = node.span, str(node.value) if node.raw is None else node.raw
        if lines[span.line - 1][span.column - 1 :].startswith((">", "|")):  # begins a line below
            span = Span(span.file, span.line + 1, span.column, span.end_line, span.end_column)
        return Word(text, span)

    return [plain(root) for root in roots]


def _mappings(
    value: Any, name: str = "", parents: tuple[Mapped, ...] = ()
) -> Iterator[tuple[str, tuple[Mapped, ...], Mapped]]:
    """Every mapping of a document in order: its key, the mappings around it, and itself."""
    if isinstance(value, dict):
        yield name, parents, value
        for key, item in value.items():
            if key != "status":  # what a cluster says about it
                yield from _mappings(item, key, (*parents, value))
    for item in _items(value):
        yield from _mappings(item, name, parents)


def _charted(spec: Mapped, root: Mapped, documents: list[Any]) -> list[Launch]:
    """What production-stack starts by one of its models; what only its chart knows stays open."""
    config, place = dict(_pairs(spec.get("vllmConfig"))), spec["modelURL"].span
    if config:  # the chart switches it off unless it is said
        config.setdefault("enablePrefixCaching", Word("false", place))
    words = [Word("vllm", place), Word("serve", place), spec["modelURL"]]
    for key in _CHART_FLAGS:
        if isinstance(value := config.pop(key, None), Word):
            spelled = re.sub("[A-Z]", lambda found: f"-{found[0].lower()}", key)
            said = value.text.lower()
            words.append(Word(f"--{'no-' if said == 'false' else ''}{spelled}", value.span))
            words += [] if said in ("true", "false") else [value]
    words += [word for word in _items(config.pop("extraArgs", None)) if isinstance(word, Word)]
    token = [{"name": Word("HF_TOKEN", place), "valueFrom": {}}] if "hf_token" in spec else []
    gpus = {_text_at(spec, "requestGPUType") or "nvidia.com/gpu": spec.get("requestGPU")}
    container = {key: value for key, value in spec.items() if key not in _CHART_READ} | {
        "command": words,
        "env": [*_items(spec.get("env")), *token],
        "resources": {"limits": gpus},
    }
    if repository := container.pop("repository", None):
        tag = _text_at(spec, "tag")
        container["image"] = Word(f"{repository.text}:{tag}".rstrip(":"), place)
    # vLLM has one engine, whatever `v1` says
    left = [f"vllmConfig.{key}" for key in config if key not in ("v0", "v1")]
    found = _started("modelSpec", (root, root["servingEngineSpec"]), container, documents)
    for key in left + [key for key in _CHART_OPEN if key in spec]:
        text = f"what the chart of its version makes of `{key}` is not in the source"
        error = finding("SD105", text, place, help="write it as keys of the profile")
        for given in found:
            given.unresolved.append(error)
    return found


def _inspected(root: Mapped, config: Mapped) -> Mapped:
    """The container of `docker inspect`, with compose's keys."""
    host, place = root.get("HostConfig"), config["Image"].span
    request = _at(host, "DeviceRequests")
    chosen = ",".join(word.text for word in _items(_at(request, "DeviceIDs")))
    texts = {
        "gpus": f"device={chosen}" if chosen else _text_at(request, "Count").replace("-1", "all"),
        "shm_size": _text_at(host, "ShmSize"),
        "ipc": _text_at(host, "IpcMode"),
        "mem_limit": _text_at(host, "Memory"),
        "restart": _text_at(host, "RestartPolicy", "Name"),
        "container_name": _text_at(root, "Name").lstrip("/"),
    }
    unset = ("", "0", "no", "private", "67108864")
    named = [word for word in _items(config.get("Env")) if isinstance(word, Word)]
    binds = [one for one in _items(root.get("Mounts")) if _text_at(one, "Type") == "bind"]
    mounts = (f"{_text_at(one, 'Source')}:{_text_at(one, 'Destination')}" for one in binds)
    return {
        "image": config["Image"],
        "entrypoint": config.get("Entrypoint"),
        "command": config.get("Cmd"),
        "environment": [word for word in named if not _OF_IMAGE.fullmatch(word.text.split("=")[0])],
        "volumes": [Word(text, place) for text in mounts],
        **({"ports": ports} if (ports := _at(host, "PortBindings")) else {}),
        **{key: Word(text, place) for key, text in texts.items() if text not in unset},
    }


def _started(
    key: str, parents: tuple[Mapped, ...], mapping: Mapped, documents: list[Any]
) -> list[Launch]:
    """What a container starts; nothing if the mapping is not a container of an engine."""
    image = mapping.get("image")
    root = parents[0] if parents else mapping
    is_compose = "services" in root
    text = " ".join(word.text for part in _COMMAND for word in _listed(mapping.get(part)))
    is_llm = key == "containers" and _text_at(root, "kind") == "LLMInferenceService"
    uri = _at(root, "spec", "model", "uri") if is_llm else None
    named = isinstance(image, Word) and is_image(_VARIABLE.sub(r"\1", _compose(image.text)))
    is_engine = named or (STARTS.search(text) and not isinstance(image, dict | list))
    if not (is_engine or isinstance(uri, Word)) or key == "initContainers":
        return []
    shell = bool(_SHELL.search(text))
    env: dict[str, Word] = {}

    def resolved(value: Word, *, shell: bool = False) -> Word:
        if is_compose:
            text = _compose(value.text)
        else:  # `$(X)` is a variable of the container; a shell reads the others
            known = {f"$({name})": word.text for name, word in env.items()}
            text = _OF_KUBERNETES.sub(lambda found: known.get(found[0], found[0]), value.text)
            text = text if shell else _VARIABLE.sub(lambda found: unknown(found[1]), text)
        text = _TEMPLATE.sub(lambda found: mark(f"<{found[1].lstrip('.')}>"), text)
        text = text if shell else _OF_KUBERNETES.sub(lambda found: unknown(found[1]), text)
        return Word(text, value.span)

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
            served = _at(root, "spec", "model", "name")
            head = ["vllm", "serve", of_hub or mark(uri.text)]
            head += ["--served-model-name", served.text] if isinstance(served, Word) else []
            command = [*(Word(one, uri.span) for one in head), *command]
    place = next(iter([*command, *([image] if image else [])]), Word("", Span("")))
    found = Launch("vllm", place, env=env, mounts=mounts, is_contained=True)
    found.name = key if is_compose else _text_at(mapping, "name")
    found.name = found.name or _text_at(mapping, "container_name")
    _use_gpus(found, mapping)
    _add_surroundings(found, parents, mapping, documents)
    held = resolved(image) if image else None
    if image and held and held.text != image.text and "$" in image.text:
        text = f"the image `{held.text}` is the default of a variable"
        found.notes.append(Note("", text, image.span.line))
    return in_container(held, command, None, found)


def _listed(value: Any) -> list[Word]:
    """A list of words as it is; a text as compose splits it."""
    if isinstance(value, Word):
        try:
            parts = shlex.split(value.text)
        except ValueError:
            parts = value.text.split()
        return [Word(part, value.span) for part in parts]
    return [item for item in _items(value) if isinstance(item, Word)]


def _mounted(mapping: Mapped, parents: tuple[Mapped, ...]) -> Iterator[str]:
    """The mounts of a container as `HOST:CONTAINER`; a named volume has its name for the folder."""
    pod = _items(parents[-1].get("volumes")) if parents else []
    folders = {_text_at(item, "name"): _text_at(item, "hostPath", "path") for item in pod}
    for item in (one for key in ("volumes", "volumeMounts") for one in _items(mapping.get(key))):
        inside = _text_at(item, "mountPath") or _text_at(item, "target")
        if isinstance(item, Word):
            yield item.text
        elif inside:
            host = folders.get(_text_at(item, "name")) or _text_at(item, "source") or "volume"
            under = _text_at(item, "subPath")
            yield f"{host}/{under}:{inside}" if under else f"{host}:{inside}"


def _environment(mapping: Mapped) -> Iterator[tuple[str, Word]]:
    """Compose's mapping or list of `NAME=value`; Kubernetes' list of `{name, value}`."""
    for value in (mapping.get("environment"), mapping.get("env")):
        pairs = _pairs(value)
        for item in _items(value):
            if isinstance(item, Word):
                name, sign, text = item.text.partition("=")
                pairs.append((name, Word(text, item.span) if sign else None))
            elif isinstance(named := _at(item, "name"), Word):
                empty = Word("", named.span) if "value" in item else None
                pairs.append((named.text, item.get("value") or empty))
        for name, held in pairs:
            yield name, held if isinstance(held, Word) else Word(unknown(name), Span(""))


def _use_gpus(found: Launch, mapping: Mapped) -> None:
    """The GPUs of a container of compose or Kubernetes."""
    devices = _at(mapping, "deploy", "resources", "reservations", "devices")
    resources = [_at(mapping, "resources", kind) for kind in ("limits", "requests")]
    limits = [_at(one, name) for one in resources for name in _GPUS]
    counts = (_at(devices, "count") or mapping.get("gpus"), *limits)
    if ids := _listed(_at(devices, "device_ids")):
        text = "device=" + ",".join(word.text for word in ids)
        found.use_gpus(Word(text, ids[0].span))
    elif count := next((item for item in counts if isinstance(item, Word)), None):
        found.use_gpus(count)


def _add_surroundings(
    found: Launch, parents: tuple[Mapped, ...], mapping: Mapped, documents: list[Any]
) -> None:
    """Nodes and labels, and what is left out: other keys, services and documents."""
    chain, left = (*parents, mapping), found.left_out
    services = _pairs(_at(chain[0], "services"))
    for part in chain:
        size = _at(part, "leaderWorkerTemplate", "size")
        if isinstance(size, Word) and size.text.isdigit() and int(size.text) > 1:
            found.hardware["nodes"] = Node(int(size.text), size.span)
        for label, word in _pairs(_at(part, "nodeSelector")):
            text = word.text if isinstance(word, Word) else ""
            if name := accelerator_of(text):
                found.hardware["accelerator"] = Node(name, word.span)
                said = f"the source says {quoted(text)}"
                found.notes.append(Note("hardware.accelerator", said, word.span.line))
            else:
                left.append(f"nodeSelector {label}: {text}")
        passed = {*_PASSED, *(key for key, _ in services)}
        for key, value in part.items():
            is_around = any(value is one or one in _items(value) for one in chain)
            if key not in passed and not is_around and not key.startswith("x-"):
                left.append(f"{key}: {value.text}" if isinstance(value, Word) else key)
        if space := _text_at(part, "metadata", "namespace"):
            left.append(f"namespace: {space}")
    inner = [one for name in ("resources", "deploy") for _, _, one in _mappings(mapping.get(name))]
    for key, value in (item for held in inner for item in held.items()):
        if isinstance(value, Word) and key not in (*_GPUS, "driver", "count"):
            left.append(f"{key}: {value.text}")
    left += [f"service {key}" for key, value in services if value is not mapping]
    for root in documents:
        if (kind := _text_at(root, "kind")) and root is not chain[0]:
            more = (kind, _text_at(root, "metadata", "name"), _text_at(root, "spec", "type"))
            left.append(" ".join(filter(None, more)))


def accelerator_of(label: str) -> str | None:
    """The name in the catalogue for a label such as `nvidia-h100-80gb`."""
    label = label.lower().replace("tesla-a100", "a100-40gb")  # GKE's name for the smaller one
    words = re.split(r"[-_ ]", re.sub(r"(\d) (gb)", r"\1\2", label))
    named = [one.name for one in catalogue() if set(one.name.lower().split("-")[:-1]) <= set(words)]
    sizes = [word for word in words if re.fullmatch(r"\d+gb", word)]
    exact = [name for name in named if name.lower().rpartition("-")[2] in sizes]
    longest = max((len(name.split("-")) for name in exact or named), default=0)
    chosen = [name for name in exact or named if len(name.split("-")) == longest]
    return chosen[0] if len(chosen) == 1 and (exact or not sizes) else None


def _compose(text: str) -> str:
    """A text as compose reads it: `$$` is a dollar sign, `${X:-default}` the default."""

    def value(match: re.Match[str]) -> str:
        kept = {"-": match[3], "+": ""}
        return kept.get((match[2] or "?")[-1], unknown(match[1] or match[4]))

    text, before = text.replace("$$", _DOLLAR), ""
    while text != before:  # the innermost first
        before, text = text, _INNERMOST.sub(value, text)
    return text.replace(_DOLLAR, "$")


def units(text: str, *, file: str) -> list[Launch]:
    """Every engine that a systemd unit starts. Raises UsageError for a line that cannot be read."""
    said: dict[str, list[Word]] = {}
    left: list[str] = []
    section, whole, start = "", "", 0
    for number, line in enumerate(text.split("\n"), start=1):
        if line.lstrip().startswith(("#", ";")) or (not whole and not line.strip()):
            continue
        whole, start = whole + line.rstrip("\r"), start if whole else number
        if whole.endswith("\\"):  # it goes on
            whole = whole[:-1] + " "
            continue
        key, sign, value = (part.strip() for part in whole.partition("="))
        section = key if key.startswith("[") else section
        if section == "[Service]" and key in _OF_UNIT:
            word = Word(value, Span(file, start, 1, number, len(line) + 1))
            said[key] = [*said.get(key, []), word] if value else []
        elif section == "[Service]" and sign:
            left.append(f"{key}={value}")
        whole = ""
    env: dict[str, Word] = {}
    for setting in said.get("Environment", []):
        for word in _split(setting, {}):
            if assigned := ASSIGNMENT.fullmatch(word.text):
                env[assigned[1]] = Word(assigned[2], word.span)
    notes = []
    for name, word in ((one, word) for one in _AROUND for word in said.get(one, [])):
        about = f"set-up around the launch is left out: {quoted(word.text)}; `render` cannot do it"
        if name == "EnvironmentFile":
            about = f"the variables in {quoted(word.text.lstrip('-'))} are not read: export them"
            about += " where you start the server"
        notes.append(Note("", about, word.span.line))
    folder = next((word.text for word in said.get("WorkingDirectory", [])), "")
    found = []
    for command in said.get("ExecStart", []):
        if words := _split(Word(command.text.lstrip("-@:+!|"), command.span), env):
            around = Launch("vllm", words[0], env=env, notes=notes, left_out=left, folder=folder)
            found += started_by(words, around)
    return found


def _split(line: Word, env: Mapped) -> list[Word]:
    """The words of a setting, with the unit's variables: several for `$X`. Others stay marks."""

    def value(found: re.Match[str]) -> str:
        name, specifier = found[1] or found[2], found[3]
        if specifier:
            return "%" if specifier == "%" else mark(f"<%{specifier}>")
        return "$" if name is None else env[name].text if name in env else unknown(name)

    words = []
    try:
        for part in shlex.split(line.text):  # systemd's quotes are a shell's
            whole = _OF_SYSTEMD.sub(value, part)
            several = re.fullmatch(r"\$\w+", part)
            words += [Word(one, line.span) for one in (whole.split() if several else [whole])]
    except ValueError as error:
        raise UsageError(f"line {line.span.line} cannot be read: {error}") from error
    return words
