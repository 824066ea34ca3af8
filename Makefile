# lint, test, test-all and try are what .ci/run runs; each installs all it needs.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
SOURCES := setup.cfg pyproject.toml README.md $(wildcard patcher/* patches/* profiles/*)

VALIDATED := build/validate

# smoke-old takes minutes and 4 GB; run it nightly.
.PHONY: install lint test test-all try smoke-old benchmarks generate validate validate-run issue
.PHONY: clean

install: $(VENV)/.installed

# A plain install, not an editable one: mypy and the tests then see what a user gets.
define install_with
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
		|| { echo "kvpatch needs Python 3.10 or newer; give one with PYTHON=..."; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	@rm -rf build
	@$(BIN)/pip install --quiet --disable-pip-version-check ".[$(1)]"
endef

$(VENV)/.installed: $(SOURCES)
	$(call install_with,lint)
	@touch $(VENV)/.validates $@

# Without torch, which the tests need: from most indexes that is gigabytes for GPUs.
$(VENV)/.validates: $(SOURCES)
	$(call install_with,validate)
	@touch $@

lint: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy -p kvpatch

test: install
	$(BIN)/pytest -n 2 -m 'not stack'

test-all: install
	$(BIN)/python .ci/test_all.py

try: install
	$(BIN)/kvpatch try
	$(BIN)/pytest -m stack

smoke-old: install
	$(BIN)/python .ci/smoke_old.py

benchmarks: install
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/pair.py
	$(BIN)/python benchmarks/validate.py
	$(BIN)/python benchmarks/transfer.py

generate: install
	$(BIN)/python .ci/generate.py

# Every release of the index against the shipped catalogue. In a job, the summary is its summary.
validate: $(VENV)/.validates
	@rm -rf $(VALIDATED) && mkdir -p $(VALIDATED)
	@code=0; $(BIN)/kvpatch validate --baseline patcher/pairs.json \
		--markdown $(VALIDATED)/summary.md --junit $(VALIDATED)/junit.xml \
		--html $(VALIDATED)/matrix.html --issue $(VALIDATED)/issue.md || code=$$?; \
	test -z "$$GITHUB_STEP_SUMMARY" || cat $(VALIDATED)/summary.md >> "$$GITHUB_STEP_SUMMARY"; \
	exit $$code

# What the last `make validate` found new or red, as an issue; printed where there is no token.
issue:
	@.ci/issue.sh $(VALIDATED)/issue.md

# Runs a pair for real and notes that in the catalogue: make validate-run VLLM=0.32.0 LMCACHE=0.5.6
VLLM ?= 0.32.0
LMCACHE ?= 0.5.6
validate-run: install
	$(BIN)/kvpatch validate --run --vllm '==$(VLLM)' --lmcache '==$(LMCACHE)' \
		--catalogue patcher/pairs.json

clean:
	rm -rf $(VENV) .venv-3.* build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
