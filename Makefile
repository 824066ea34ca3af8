# lint, test, test-all and try are what .ci/run runs; each installs all it needs.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
SOURCES := setup.cfg pyproject.toml README.md $(wildcard patcher/* patches/* profiles/*)

# smoke-old takes minutes and 4 GB; run it nightly.
.PHONY: install lint test test-all try smoke-old benchmarks generate clean

install: $(VENV)/.installed

# A plain install, not an editable one: mypy and the tests then see what a user gets.
$(VENV)/.installed: $(SOURCES)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
		|| { echo "kvpatch needs Python 3.10 or newer; give one with PYTHON=..."; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	@rm -rf build
	@$(BIN)/pip install --quiet --disable-pip-version-check ".[lint]"
	@touch $@

lint: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy -p kvpatch

test: install
	$(BIN)/pytest -n 2

test-all: install
	$(BIN)/python .ci/test_all.py

try: install
	$(BIN)/kvpatch try

smoke-old: install
	$(BIN)/python .ci/smoke_old.py

benchmarks: install
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/validate.py
	$(BIN)/python benchmarks/transfer.py

generate: install
	$(BIN)/python .ci/generate.py

clean:
	rm -rf $(VENV) .venv-3.* build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
