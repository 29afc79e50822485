# Thin on purpose: what set-up does, decides and says stands in scripts/setup.py.
# Measured on two cores: set-up 60-90 s with a warm pip cache, 0.5 s when there is nothing to do.
SHELL := /bin/sh
.DEFAULT_GOAL := help
VENV := .venv
BIN := $(VENV)/bin
# The first Python 3.11 that runs (a version manager's shim may not), else one that can say what is missing.
ifndef PYTHON
PYTHON := $(shell for want in 'sys.version_info[:2] == (3, 11)' 'sys.version_info >= (3, 7)'; do \
	for p in python3.11 python3 python; do \
	"$$p" -c "import sys; sys.exit(not ($$want))" 2>/dev/null && { echo "$$p"; exit; }; done; done)
endif
# Byte code is kept: most of the tests' time would go into compiling the same modules for each child.
OFFLINE := PYTHONDONTWRITEBYTECODE= HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1
SITE := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
PYTEST := $(OFFLINE) $(BIN)/python -m pytest -q
# No test may depend on where the clone lies: `make test`, and so CI, runs those without vLLM in a copy at such a path.
ELSEWHERE := build/a specserve ü
# Only the files that have the mark: to collect all tests takes 7 s.
MARKED = $(sort $(shell grep -rl --include='test_*.py' 'pytest.mark.$(1)' tests))
SOAK ?= 5
VERSIONS := tests/cli tests/convert tests/metrics tests/models tests/serve

ifndef TOGETHER  # tests with vLLM and tests without it share the two cores; nothing else runs side by side
.NOTPARALLEL:
endif
.PHONY: help setup dev demo test quick check lint site fmt unit installed engine vllm versions sglang soak clean

help: ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F '\t' '{printf "  make %-8s %s\n", $$1, $$2}'
	@echo "Linux x86-64 with Python 3.11 (and venv), make, git; 3.8 GB of disk (make test: 4.2), 4 GB of memory; no compiler, no GPU."
	@echo "Elsewhere: pip install . (everything but the engine)."

setup: python ## .venv with the CPU engine and specserve, and the demo pair
	@$(PYTHON) scripts/setup.py

demo: setup ## setup, then serve the demo on loopback; PORT=8001: there (Ctrl-C stops it)
	@$(BIN)/python scripts/demo.py $(if $(PORT),--port $(PORT))

dev: python
	@$(PYTHON) scripts/setup.py --dev

test: dev ## everything that CI runs
	@rm -rf "$(ELSEWHERE)" && mkdir -p "$(ELSEWHERE)"
	@tar -c --exclude-vcs --exclude=./$(VENV) --exclude=./build --exclude='./.*_cache' --exclude=./demo/wide . | tar -x -C "$(ELSEWHERE)"
	@cp -al $(VENV) "$(ELSEWHERE)" && cp -al demo/wide "$(ELSEWHERE)/demo"
	@$(MAKE) --no-print-directory TOGETHER=1 -j2 --output-sync=target engine unit installed lint

quick: dev ## ruff, and the tests without vLLM of what changed since main: under a minute
	$(BIN)/ruff check -q .
	$(BIN)/ruff format -q --check .
	$(OFFLINE) $(BIN)/python scripts/quick.py

check: dev lint unit installed ## the same without starting vLLM

lint: ## ruff, the type checker, the import contract, the documentation as a site, the package as it is released
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/house.py --check
	$(SITE) --quiet
	@rm -rf build/dist
	$(BIN)/python -m build -q -o build/dist >build/dist.log 2>&1 || { cat build/dist.log; exit 1; }
	$(BIN)/twine check --strict build/dist/*

site: dev ## the documentation as a site, in build/site
	$(SITE)

fmt: ## format and repair what ruff can repair
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

unit:
	$(if $(TOGETHER),cd "$(ELSEWHERE)" && PYTHONPATH="$$PWD") $(PYTEST) -n 2 -m "not engine and not vllm and not soak"

# Beside `engine` there is one core left, and one process imports vLLM once.
installed: $(if $(TOGETHER),unit) # asks the installed vLLM without starting it
	$(PYTEST) -n $(if $(TOGETHER),0,2) --dist loadfile -m "vllm and not engine and not soak" $(call MARKED,vllm)

engine:
	$(PYTEST) -m "engine and not soak" --durations=15 $(call MARKED,engine)

vllm: dev ## every known vLLM: tables, facts, quoted sources; VLLM=wheels (default: downloaded)
	$(BIN)/python scripts/update_vllm.py --check $(VLLM)

# The floors as constraints: pip fails if they do not resolve together. Warnings of old libraries are no failures here.
versions: python ## the wheel by pip, uvx and pipx; its tests with the lowest and the newest libraries it allows
	@rm -rf build/versions && mkdir -p build/versions && touch build/versions/newest.txt
	@sed -nE '/^\[dependency-groups/q; s/^  "([a-z0-9.-]+)>=([0-9.]+).*/\1==\2/p' pyproject.toml >build/versions/lowest.txt
	@$(PYTHON) -m venv build/versions/tools && build/versions/tools/bin/pip install -q build uv pipx
	@build/versions/tools/bin/python -m build -q -o build/versions >build/versions/build.log 2>&1 || { cat build/versions/build.log; exit 1; }
	cd build/versions && tools/bin/uvx -q --python $(PYTHON) --from ./*.whl specserve lint ../../configs/demo.yaml
	cd build/versions && PIPX_HOME="$$PWD/pipx" tools/bin/pipx run --spec ./*.whl specserve lint ../../configs/demo.yaml
	@for set in lowest newest; do echo "== $$set" && $(PYTHON) -m venv build/versions/$$set && \
	build/versions/$$set/bin/pip install -q -c build/versions/$$set.txt "$$(echo build/versions/*.whl)[measure]" \
	pytest pytest-xdist pytest-timeout hypothesis jsonschema && \
	$(OFFLINE) build/versions/$$set/bin/pytest -q -n 2 -W default $(VERSIONS) -m "not engine and not vllm and not soak" || exit; done

sglang: dev ## SGLang's options against its wheel; SGLANG=wheel (default: downloaded)
	@rm -rf build/sglang && mkdir -p build/sglang
	$(if $(SGLANG),cp $(SGLANG) build/sglang,$(BIN)/pip download -q --no-deps --dest build/sglang sglang==0.5.23)
	$(BIN)/python scripts/update_sglang.py --check build/sglang/sglang-*.whl

soak: dev ## not for CI: lists its parts and how long each takes; PART=load,verify runs these, PART=all every one
	@$(OFFLINE) SOAK=$(SOAK) $(BIN)/python -m tests.soak $(PART)

clean: ## remove .venv, the widened model and all caches
	rm -rf $(VENV) build dist demo/wide .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

.PHONY: python
python:
	@test -n "$(PYTHON)" || { echo "error: no Python 3.11 here; the CPU engine needs Linux x86-64 and Python 3.11; pip install . gives the rest" >&2; \
	echo "hint: Debian, Ubuntu: apt install python3.11 python3.11-venv; or name one: PYTHON=/path/to/python3.11" >&2; exit 1; }
