# Everything a person does in this repository. `make` alone explains itself.

PYTHON  ?= python3
VENV    := .venv
BIN     := $(VENV)/bin
STAMP   := $(VENV)/.stamp
SPARK   := $(VENV)/.stamp-spark
CLASSES := $(VENV)/spark.jsa

DATA_DIR ?= ./data
STORE    ?= rocks
SEEDS    ?= 1000
JOBS     ?= 3
EVENTS   ?= 1000000
ARGS     ?=

# The tests start hundreds of processes: without bytecode files, each would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

# The core and the engine are pure and everything else stands on them, and MQTT's codec and sessions meet bytes from
# anybody: every branch of them is tested, by tests that do the same in every run (tests/conftest.py lists them). The gate
# is here and not in pyproject.toml so that running one test file by hand does not fail for want of coverage.
COVERAGE := --cov=holdfast.core --cov=holdfast.engine --cov=holdfast.mqtt --cov-branch \
  --cov-report=term-missing:skip-covered --cov-fail-under=100

CHECKS := check-style check-types check-imports check-names check-proto

.DEFAULT_GOAL := help
.PHONY: help setup spark serve test gate test-cluster check $(CHECKS) fmt bench bench-spark simulate mutants docs lock proto dist clean

help:  ## Show this help
	@awk 'BEGIN {FS = ":.*## "; print "Targets (make TARGET):\n"} /^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@printf '\nVariables: DATA_DIR=./data STORE=rocks (serve), SEEDS=1000 (simulate), JOBS=3 (test), EVENTS=1000000 (bench-spark), ARGS=... (serve, test, bench), PYTHON=python3 (setup)\n'

setup: $(STAMP)  ## Make .venv and install everything, exactly as locked (the other targets do it when needed)

# The locks name everything, so pip resolves nothing (--no-deps): what is released later cannot break a set-up.
$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo 'Holdfast needs Python 3.11 or newer; $(PYTHON) is older. Try: make $(MAKECMDGOALS) PYTHON=python3.11' >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo '$(PYTHON) cannot make virtual environments: its venv module is not installed.' >&2; \
	  echo 'On Debian and Ubuntu: apt install python3-venv. Elsewhere: install the full Python, or set PYTHON=...' >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

# PySpark is 450 MB, and a broker does not need it.
spark: $(SPARK)  ## Install what the pipeline needs too: PySpark, delta-rs, a Java

$(SPARK): $(STAMP) requirements-spark.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements-spark.lock
	@touch $@

serve: $(STAMP)  ## Run the broker on embedded storage in ./data; with STORE=postgres on a PostgreSQL in ./data-postgres
ifeq ($(STORE),postgres)
	$(BIN)/python -m tools.postgres $(DATA_DIR)-postgres \
	  $(BIN)/holdfast serve --store postgres --data-dir $(DATA_DIR) $(ARGS)
else
	$(BIN)/holdfast serve --store $(STORE) --data-dir $(DATA_DIR) $(ARGS)
endif

test: $(SPARK)  ## Lint, types, import rules and names, then every test: first those of the coverage gate
	@$(MAKE) --no-print-directory -j 4 --output-sync=target $(CHECKS) $(CLASSES)
	@$(MAKE) --no-print-directory gate
	$(BIN)/python -m pytest -n $(JOBS) -m 'not gated and not cluster' $(ARGS)

gate: $(STAMP)  ## Run the tests that must cover every branch of the core, the engine and MQTT's rules
	$(BIN)/python -m pytest -n $(JOBS) -m gated $(COVERAGE) $(ARGS)

# The tests start Spark a dozen times; with its classes made ready it starts in half the time.
$(CLASSES): $(SPARK)
	@$(BIN)/python -m tests.pipeline.archive $@

# Ten processes and a gigabyte, for minutes: not part of `test`.
test-cluster: $(SPARK)  ## Run the tests on a two-worker Spark cluster and on Spark Connect
	$(BIN)/python -m pytest -m cluster tests/pipeline $(ARGS)

check: $(SPARK)  ## Lint, format, types, import rules and names, without the tests
	@$(MAKE) --no-print-directory -j 4 --output-sync=target $(CHECKS)

check-style: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

check-types: $(SPARK)
	$(BIN)/mypy

check-imports: $(STAMP)
	$(BIN)/lint-imports --no-logo

check-names: $(STAMP)
	$(BIN)/python tools/check_names.py

check-proto: $(STAMP)
	$(BIN)/buf lint src/holdfast/grpc_api/proto

fmt: $(STAMP)  ## Format the code and fix what ruff can fix
	$(BIN)/ruff check --fix-only --exit-zero .
	$(BIN)/ruff format .

bench: $(STAMP)  ## Run the benchmarks
	$(BIN)/python -m benchmarks $(ARGS)

bench-spark: $(SPARK)  ## Run the benchmarks of the pipeline: make bench-spark EVENTS="1000000 5000000" ARGS=--cluster
	$(BIN)/python -m benchmarks.spark $(EVENTS) $(ARGS)

simulate: $(STAMP)  ## Run the seeded simulation: make simulate SEEDS=1000
	$(BIN)/python -m tests.simulation --seeds $(SEEDS)

mutants: $(STAMP)  ## Break the code on purpose, one way at a time, and see that a test notices each
	$(BIN)/python -m tools.mutants --jobs $(JOBS) --table benchmarks/results/mutants.md $(ARGS)

docs: $(STAMP)  ## Write the reference pages that are made from the code
	$(BIN)/python -m docs.generate

proto: $(STAMP)  ## Write the Python of the gRPC contract
	$(BIN)/python -m tools.proto

# uv resolves for every platform at once and writes hashes without naming a package host; it is needed for nothing
# else, so it lives in an environment of its own.
lock:  ## Renew requirements.lock and requirements-spark.lock from pyproject.toml
	@test -x .lock-venv/bin/uv || { $(PYTHON) -m venv .lock-venv && .lock-venv/bin/pip install --quiet uv; }
	.lock-venv/bin/uv pip compile --quiet pyproject.toml --extra server --extra dev --universal --python-version 3.11 --upgrade \
	  --generate-hashes --no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock' \
	  --output-file requirements.lock
	.lock-venv/bin/uv pip compile --quiet pyproject.toml --extra spark --universal --python-version 3.11 --upgrade \
	  --constraints requirements.lock --generate-hashes --no-emit-index-url --no-emit-find-links \
	  --custom-compile-command 'make lock' --no-annotate --output-file requirements-spark.lock \
	  $$(sed -n 's/^\([A-Za-z0-9._-]*\)==.*/--no-emit-package \1/p' requirements.lock)

# The wheel is built from the sdist, as others build it, and tried where nothing else is installed.
dist: $(STAMP)  ## Build wheel and sdist in dist/, try the wheel in an empty environment, list what it brings along
	rm -rf dist
	$(BIN)/python -m hatchling build -t sdist -t wheel
	$(PYTHON) -m venv dist/venv
	dist/venv/bin/pip install --quiet --disable-pip-version-check "$$(ls dist/*.whl)[server,postgres,otel,yaml]"
	dist/venv/bin/holdfast --version
	cd dist && venv/bin/holdfast doctor
	$(BIN)/python -m tools.sbom dist
	rm -rf dist/venv

clean:  ## Remove what the targets made (the data directory stays)
	rm -rf $(VENV) .lock-venv build dist .coverage htmlcov
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .benchmarks
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +
