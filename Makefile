# `make run` starts the service, `make test` checks everything. Both need Python 3.11 or newer, make and git, no more.

PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
  $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
VENV := .venv
BIN := $(VENV)/bin
LOCKS := requirements/main.txt requirements/embedded.txt
PIP := $(BIN)/python -m pip install --quiet --root-user-action=ignore --disable-pip-version-check --only-binary=:all: --require-hashes

.PHONY: run test lock openapi fuzz bench accuracy clean

run: $(VENV)/main.installed
	@# Bytecode is kept even where the environment says otherwise: without it every start compiles everything anew.
	@PYTHONDONTWRITEBYTECODE= exec $(BIN)/python -m service serve

test: $(VENV)/dev.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/python -m service export-openapi --check
	$(BIN)/python -m service architectures --check
	$(BIN)/python -m pytest

# A stamp holds the locks it was made from, so that a fresh checkout's new time stamps install nothing again.
$(VENV)/main.installed: $(LOCKS)
	@cat $(LOCKS) | cmp -s - $@ || { \
	  test -n "$(PYTHON)" || { echo "shardwise needs Python 3.11 or newer" >&2; exit 1; }; \
	  { test -x $(BIN)/python || $(PYTHON) -m venv $(VENV); } && \
	  echo "Installing what requirements/main.txt and requirements/embedded.txt lock ..." && \
	  $(PIP) -r requirements/main.txt -r requirements/embedded.txt; }
	@cat $(LOCKS) > $@

$(VENV)/dev.installed: $(VENV)/main.installed requirements/dev.txt
	@cat $(LOCKS) requirements/dev.txt | cmp -s - $@ || { \
	  echo "Installing what requirements/dev.txt locks ..." && $(PIP) -r requirements/dev.txt; }
	@cat $(LOCKS) requirements/dev.txt > $@

lock: $(VENV)/dev.installed
	for name in main embedded dev; do \
	  $(BIN)/uv pip compile --quiet --generate-hashes --universal --python-version 3.11 --no-emit-index-url \
	    --no-header --no-annotate requirements/$$name.in -o requirements/$$name.txt || exit 1; \
	done

openapi: $(VENV)/main.installed
	$(BIN)/python -m service export-openapi

fuzz: $(VENV)/dev.installed
	SHARDWISE_FUZZ_EXAMPLES=$${SHARDWISE_FUZZ_EXAMPLES:-200} STARTUP_LOG_MUTANTS=100000 \
	  $(BIN)/python -m pytest -q tests/api/test_schemathesis.py tests/catalogue/test_startup_log_fuzz.py \
	  tests/catalogue/test_benchmark_fuzz.py tests/sizing/test_topology_fuzz.py

bench: $(VENV)/dev.installed
	$(BIN)/python -m benchmarks.plan

accuracy: $(VENV)/main.installed
	$(BIN)/python -m service accuracy

clean:
	rm -rf $(VENV) .ruff_cache .hypothesis .import_linter_cache
