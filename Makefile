# Linux x86-64 with Python 3.11 (and its venv module), make and git; no compiler, no GPU.
# Measured on two cores: see `make help`.
SHELL := /bin/sh
.DEFAULT_GOAL := help
VENV := .venv
BIN := $(VENV)/bin
# python3.11 on PATH can be a version manager's shim that does not run: the first that does, is taken.
PYTHON ?= $(shell for p in python3.11 python3 python; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null && { echo "$$p"; exit; }; done; \
	command -v python3 || true)
OFFLINE := HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1
SOAK ?= 5

.NOTPARALLEL:
.PHONY: help setup dev demo test check lint fmt unit engine soak clean

help: ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F '\t' '{printf "  make %-8s %s\n", $$1, $$2}'

setup: python ## .venv with the CPU engine and specserve, and the demo pair
	@$(PYTHON) scripts/setup.py

demo: setup ## setup, then serve the demo on loopback (Ctrl-C stops it)
	@$(BIN)/python scripts/demo.py

dev: python
	@$(PYTHON) scripts/setup.py --dev

test: dev lint unit engine ## everything that CI runs

check: dev lint unit ## the same without starting vLLM

lint: ## ruff, the type checker and the import contract
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fmt: ## format and repair what ruff can repair
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

unit:
	$(OFFLINE) $(BIN)/pytest -q -n 2 -m "not engine"

engine:
	$(OFFLINE) $(BIN)/pytest -q -m engine

soak: dev ## the engine tests SOAK times (5), until one fails
	@i=0; while [ $$i -lt $(SOAK) ]; do i=$$((i + 1)); echo "round $$i of $(SOAK)"; $(MAKE) --no-print-directory engine || exit 1; done

clean: ## remove .venv, the widened model and all caches
	rm -rf $(VENV) build dist demo/wide .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

.PHONY: python
python:
	@test -n "$(PYTHON)" || { echo "error: no Python here; the CPU engine needs Linux x86-64 and Python 3.11" >&2; \
	echo "hint: Debian, Ubuntu: apt install python3.11 python3.11-venv; or name one: PYTHON=/path/to/python3.11" >&2; exit 1; }
