# `make demo` and `make test` install what they need; all they require is Python 3.11 or newer.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
WORKERS ?= 3
SECONDS ?= 60

.PHONY: demo test test-long lint benchmark accuracy reliability docs fuzz clean

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "harness needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test]'
	touch $(STAMP)

demo: $(STAMP)  ## measure three networks on the emulated NPU; prints a table and writes reports/demo.html
	$(BIN)/harness demo --workspace .

# Test processes run side by side; with one BLAS thread each they do not compete for cores.
test test-long: export OPENBLAS_NUM_THREADS = 1
# They share compiled modules, whatever the environment says of bytecode.
test test-long: export PYTHONDONTWRITEBYTECODE =

# A test process that dies ends the suite with an error; replaced, it would leave the others waiting for ever.
test: $(STAMP)  ## run the test suite; under ten minutes on two cores
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --max-worker-restart=0

test-long: $(STAMP)  ## run the tests that take minutes
	$(BIN)/python -m pytest -m long

lint: $(STAMP)  ## check style, types, import contracts and dependencies
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/deptry harness device_agents

docs: $(STAMP)  ## write docs/cli.md from the help texts
	$(BIN)/python docs/generate_cli.py

benchmark: $(STAMP)  ## measure the figures of docs/performance.md and docs/emulator.md
	$(BIN)/python -m benchmarks.performance.controller_cost
	$(BIN)/python -m benchmarks.performance.timing_engines
	$(BIN)/python -m benchmarks.emulator.speed
	$(BIN)/python -m benchmarks.emulator.networks
	$(BIN)/python -m benchmarks.emulator.conformance
	$(BIN)/python -m benchmarks.emulator.published

accuracy: $(STAMP)  ## measure and rewrite docs/accuracy.md; needs an idle machine for about an hour
	$(BIN)/python -m benchmarks.accuracy

reliability: $(STAMP)  ## inject faults and rewrite docs/reliability.md; needs an idle machine for about an hour
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[fuzz]'
	$(BIN)/python -m benchmarks.reliability

fuzz: $(STAMP)  ## fuzz the four readers of foreign input for SECONDS each (docs/security.md)
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[fuzz]'
	$(BIN)/python -m fuzz --seconds $(SECONDS)

clean:
	rm -rf $(VENV)
