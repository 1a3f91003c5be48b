# Every target that needs Python sets up .venv by itself, once, and again when pyproject.toml or the lock changes.

PYTHON ?= python3
ARGS ?=
WORKERS ?= 2
SOAK ?= 180
LOCK := requirements/lock.txt
READY := .venv/.ready
BIN := .venv/bin
AUDIT := build/audit
SERVICE ?= pypi
TORCH ?= $(shell sed -n 's/^torch==//p' $(LOCK))
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check
CHECK_PYTHON = $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
  echo "voidrl needs Python 3.11 or newer and '$(PYTHON)' is not: use 'make $(MAKECMDGOALS) PYTHON=python3.12'." >&2; \
  exit 1; }

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install demo test test-slow test-faults test-foreign check docs audit lock clean

help: ## show this list
	@echo "usage: make <target> [ARGS='...'] [PYTHON=python3.12]"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "%-12s %s\n", $$1, $$2}'

install: $(READY) ## set up .venv with everything that the other targets and the docs need
	@echo "Ready. 'source .venv/bin/activate' puts the voidrl command on the path."

demo: $(READY) ## pre-train in a maze without rewards, then fine-tune; ARGS are passed on
	@$(BIN)/voidrl demo $(ARGS)

test: $(READY) ## run the tests that take seconds; ARGS are passed to pytest
	@$(BIN)/python -m pytest -m "not slow and not faults and not foreign" -n $(WORKERS) --dist worksteal $(ARGS)

test-slow: $(READY) ## run the tests that take minutes
	@$(BIN)/python -m pytest -m slow $(ARGS)

test-faults: $(READY) ## inject every fault of the catalogue; SOAK=seconds sets the length of the soak
	@VOIDRL_SOAK_SECONDS=$(SOAK) $(BIN)/python -m pytest tests/faults -n $(WORKERS) $(ARGS)

test-foreign: .venv-foreign/.ready .venv-robotics/.ready ## run environments of other packages, which it installs (3 GB), and list them
	@rm -rf build/foreign; failed=0; for name in foreign robotics; do \
	  VOIDRL_FOREIGN_VENV=$$name VOIDRL_FOREIGN_RECORDS=build/foreign \
	  .venv-$$name/bin/python -m pytest tests/foreign -n $(WORKERS) $(ARGS) || failed=1; done; \
	$(BIN)/python benchmarks/foreign_table.py build/foreign; exit $$failed

docs: $(READY) ## build the site of the docs in build/docs; broken links are errors
	@$(BIN)/python docs/generate.py --check
	@$(BIN)/python -m sphinx -E -W --keep-going --quiet -b html -c docs . build/docs
	@echo "build/docs/index.html"

check: $(READY) ## lint, formatting, types and the directions of imports
	@$(BIN)/python -m ruff check
	@$(BIN)/python -m ruff format --check
	@$(BIN)/python -m mypy
	@$(BIN)/lint-imports --no-cache

# pip-audit takes "not found at the service" for "nothing known" unless it is strict, and ends with 1 both for a
# finding and without network. Its report exists only if every package of the lock was looked up.
audit: $(AUDIT) ## list what the lock installs in build/sbom.json, then look for known vulnerabilities of it
	@PYTHONWARNINGS=ignore $(AUDIT)/bin/cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible -o build/sbom.json $(LOCK)
	@echo "build/sbom.json (CycloneDX)"
	@rm -f build/audit.json
	@$(AUDIT)/bin/pip-audit --strict --no-deps --disable-pip --progress-spinner off -s $(SERVICE) -r $(LOCK) \
	  -f json -o build/audit.json 2>build/audit.log; found=$$?; \
	if [ ! -s build/audit.json ]; then \
	  echo "Nothing was audited: the vulnerability service '$(SERVICE)' did not answer for every package of $(LOCK)" \
	    "($$(tail -n 1 build/audit.log | cut -c 1-200)). It needs the network; 'make audit SERVICE=osv' asks another one." >&2; \
	  exit 1; \
	elif [ $$found != 0 ]; then \
	  cat build/audit.json; echo; echo "Known vulnerabilities were found: see build/audit.json." >&2; exit 1; \
	else echo "No known vulnerability in any of the packages of $(LOCK): build/audit.json"; fi

$(AUDIT): requirements/audit.txt
	@$(CHECK_PYTHON); rm -rf $@ && $(PYTHON) -m venv $@
	@$@/bin/python $(PIP_INSTALL) -r $< && touch $@

lock: ## resolve the dependencies again; TORCH=2.x.y moves torch
	@echo "Resolving $(LOCK) with torch $(TORCH), in a virtual environment of its own …"
	@$(CHECK_PYTHON); rm -rf build/lock && $(PYTHON) -m venv build/lock
	@build/lock/bin/python $(PIP_INSTALL) "torch==$(TORCH)"
	@build/lock/bin/python $(PIP_INSTALL) "torch==$(TORCH)" -e ".[dev]"
	@{ sed -n '/^#/p' $(LOCK); \
	   build/lock/bin/python -m pip freeze --all --exclude-editable --exclude pip --exclude wheel \
	   | sed -e 's/+[^+]*$$//' -e '/^nvidia-/d' -e '/^cuda-/d' -e '/^triton==/d'; } > build/lock.txt
	@if grep -v -e '^#' -e '^[A-Za-z0-9._-]*==[^ ]*$$' build/lock.txt; then \
	   echo "These lines are no plain versions; $(LOCK) was left as it was." >&2; exit 1; fi
	@grep -q '^dm.control==' build/lock.txt || { \
	   echo "dm-control cannot be installed on this Python; use 'make lock PYTHON=python3.12'." >&2; exit 1; }
	@mv build/lock.txt $(LOCK) && rm -rf build/lock

clean: ## remove .venv, build output and caches; run folders stay
	rm -rf .venv .venv-foreign .venv-robotics build dist .mypy_cache .pytest_cache .ruff_cache
	find src tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# `pip --version` also fails for a half-made environment and for one whose Python is gone: both are made again.
$(READY): pyproject.toml $(LOCK)
	@echo "Setting up .venv (some minutes the first time, most of them for torch) …"
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { $(CHECK_PYTHON); $(PYTHON) -m venv --clear .venv; }
	@$(BIN)/python $(PIP_INSTALL) -c $(LOCK) "torch==$(TORCH)"
	@$(BIN)/python $(PIP_INSTALL) -c $(LOCK) -e ".[dev]"
	@touch $@

# Packages of environments, each with all that it imports, seen next to those of .venv.
.venv-%/.ready: requirements/%.txt $(READY)
	@echo "Setting up .venv-$* …"
	@rm -rf $(@D) && $(BIN)/python -m venv $(@D)
	@$(BIN)/python -c "import sysconfig; print('import site; site.addsitedir(%r)' % sysconfig.get_path('purelib'))" \
	  > "$$($(@D)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/voidrl_venv.pth"
	@$(@D)/bin/python $(PIP_INSTALL) --no-deps -r $<
	@touch $@
