# One command each to run, check, test and measure. A second `make` does no work that is already done.

VENV  := .venv
PY    := $(VENV)/bin/python
STAMP := $(VENV)/.ready
JARS  := $(VENV)/.jars
TS    := clients/typescript
NODE  := $(TS)/node_modules/.package-lock.json
PYTHON ?= python3
DATA  ?= data
HOST  ?= 127.0.0.1
PORT  ?= 8181

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-postgres todo test test-rest test-all chromium kcat test-typescript check proto compat compat-trino compat-flink serve bench soak docs wheels stranger lock clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(JARS) ## Make .venv with everything in it, the `mainstem` command included

$(STAMP): requirements/dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Mainstem needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Install it, or run: make setup PYTHON=/path/to/python3.11")'
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@test -x $(VENV)/bin/uv || $(PY) -m pip install --quiet --disable-pip-version-check uv
	@echo "installing the locked dependencies"
	@$(VENV)/bin/uv pip sync --quiet --compile-bytecode --python $(PY) --require-hashes requirements/dev.txt
	@$(VENV)/bin/uv pip install --quiet --python $(PY) --no-deps --no-build-isolation --config-setting editable_mode=compat --editable .
	@touch $@

# The jars that Spark needs, fetched once by their Maven coordinates into the user's cache, and a file of the classes in
# them that Spark starts from.
$(JARS): $(STAMP) src/mainstem/app/spark/jars.py src/mainstem/app/spark/classes.py
	@$(PY) -m mainstem.app.spark.jars
	@$(PY) -m mainstem.app.spark.classes
	@touch $@

demo: setup ## Send changes through every door of a real server, and read them back with DuckDB and Spark
	@$(VENV)/bin/mainstem demo

demo-postgres: setup ## Change rows in a PostgreSQL and compare them with the lake (ARGS=--stay: until ^C)
	@$(PY) -m tests.compat.postgres_demo $(ARGS)

serve: setup ## Start the server and keep it up (DATA=data HOST=127.0.0.1 PORT=8181)
	@exec $(VENV)/bin/mainstem serve --data $(DATA) --host $(HOST) --port $(PORT)

todo: setup $(NODE) ## Start the server and the todo app on it (DATA=data PORT=8181 PAGE_PORT=8182)
	@cd $(TS) && npm run --silent build:todo
	@exec $(PY) -m mainstem.app.demo.todo --page $(TS)/apps/todo/dist --data $(DATA) --port $(PORT) --page-port $(or $(PAGE_PORT),8182)

# The units that stand alone run beside the others, which mostly wait for servers; what they print is shown last.
test: setup chromium ## Run the tests that show that everything works, within ten minutes (ARGS=tests/unit/log for some)
ifdef ARGS
	@$(PY) -m pytest -m "not soak" $(ARGS)
else
	@units=$$(mktemp) && { nice -n 10 $(PY) -m pytest -m "alone and not soak" >$$units 2>&1 & } && beside=$$! && \
	{ $(PY) -m pytest -m "core and not soak"; code=$$?; wait $$beside || code=1; cat $$units; rm $$units; exit $$code; }
	@$(MAKE) --no-print-directory test-typescript
endif

test-rest: setup chromium kcat ## Run the tests that `make test` leaves out: every fault, engine and client
	@$(PY) -m pytest -m "not alone and not core and not soak"

test-all: test test-rest ## Run all tests but the soaks

# A browser for the console's tests. CHROMIUM=/path names another.
chromium:
	@if [ -z "$(CHROMIUM)" ] && ! command -v chromium >/dev/null && ! command -v chromium-browser >/dev/null; then \
	  echo "installing Chromium for the tests of the console"; \
	  command -v apt-get >/dev/null || { echo "there is no apt-get: install Chromium, or name one with CHROMIUM="; exit 1; }; \
	  sudo=$$(if [ "$$(id -u)" = 0 ]; then echo; else echo sudo; fi); \
	  $$sudo apt-get update -qq && $$sudo apt-get install -qq -y --no-install-recommends chromium >/dev/null; fi

# A Kafka client for one test, which is skipped where there is none.
kcat:
	@if ! command -v kcat >/dev/null && command -v apt-get >/dev/null; then \
	  sudo=$$(if [ "$$(id -u)" = 0 ]; then echo; else echo sudo; fi); \
	  $$sudo apt-get update -qq && $$sudo apt-get install -qq -y --no-install-recommends kcat >/dev/null || true; fi

test-typescript: ## Run the tests of the TypeScript client
	@if command -v npm >/dev/null; then $(MAKE) --no-print-directory $(NODE) && cd $(TS) && npm test --silent; \
	else echo "skipped: the TypeScript client's tests need Node 20 or newer, and there is no npm"; fi

$(NODE): $(TS)/package-lock.json
	@cd $(TS) && npm ci --silent

soak: setup ## Long fault runs, on demand (KILLS=200 SEED=1 LOAD_S=600)
	@KILLS=$(or $(KILLS),200) SEED=$(or $(SEED),1) $(PY) -m pytest -m soak $(ARGS)

compat: setup ## Iceberg's REST Compatibility Kit against our catalog (SPEC=rest.yaml: schemathesis on that too)
	@$(PY) -m tests.compat.rck $(ARGS)
	@if [ -n "$(SPEC)" ]; then $(PY) -m tests.compat.spec $(SPEC); fi

compat-trino: setup ## Trino on the catalog's tables, on disk and on S3 (fetches 1 GB the first time)
	@$(PY) -m tests.compat.trino

compat-flink: setup ## Flink on the catalog's tables, on disk and on S3 (fetches 0.5 GB the first time)
	@$(PY) -m tests.compat.flink $(ARGS)

check: $(STAMP) ## ruff, mypy --strict and import-linter
	@$(VENV)/bin/ruff check src tests benchmarks docs
	@$(VENV)/bin/ruff format --check --quiet src tests benchmarks docs
	@$(VENV)/bin/mypy
	@$(VENV)/bin/lint-imports --no-cache
	@$(PY) $(TS)/vectors/generate.py --check
	@$(PY) -m mainstem.wire.sync.generate --check
	@$(PY) docs/packages.py --check
	@$(PY) docs/walks.py
	@$(PY) docs/reference.py --check

proto: $(STAMP) ## Generate the sync protocol's classes from its schema
	@$(PY) -m mainstem.wire.sync.generate

bench: setup ## Measure, each figure beside its floor (SMALL=1 for a quick look)
	@if command -v npm >/dev/null; then $(MAKE) --no-print-directory $(NODE) && cd $(TS) && npm run --silent build; fi
	@$(PY) -m benchmarks $(if $(SMALL),--small) $(ARGS)

docs: $(STAMP) ## Write the pages that are made from the code: packages, Python reference, configuration
	@$(PY) docs/packages.py
	@$(PY) docs/reference.py
	@$(PY) -c "from mainstem.app.reference import to_markdown; print(to_markdown(), end='')" > docs/guides/configuration.md

wheels: $(STAMP) ## Build the wheels of the server and of the thin client into dist/
	@$(VENV)/bin/uv build --quiet --wheel --no-build-isolation --python $(PY) --out-dir dist clients/python
	@$(VENV)/bin/uv build --quiet --wheel --no-build-isolation --python $(PY) --out-dir dist .

stranger: wheels ## Time a stranger's path: wheels, serve, curl, SQL, with empty caches (ARGS=--warm: with this machine's)
	@$(PYTHON) tests/compat/stranger.py dist $(ARGS)

lock: ## Lock the dependencies again, with hashes and without addresses
	@$(VENV)/bin/uv pip compile --quiet --upgrade --generate-hashes --universal --python-version 3.11 \
	  --no-header --no-emit-index-url --no-emit-find-links --no-emit-package mainstem-client --extra dev pyproject.toml -o requirements/dev.txt

clean: ## Remove what was built, but not your data
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache src/*.egg-info
