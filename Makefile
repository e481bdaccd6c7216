# `make demo` and `make test` are all that needs typing: each makes the virtual environment first if it must.
#
#   make demo     run the demo, a minute: functions that are learned while they run, size × variant tables, a plot
#   make test     lint, type checks, tests           make slow     the tests that take about a second or more
#   make soak     the long runs of the tests that take minutes
#   make bench    run all benchmarks: in full on a GPU, else with small sizes, to see that they run
#   make matrix   the tests in each virtual environment here (.venv, .venv-*), and the table of versions in docs/install.md
#   make dist     a wheel and an sdist in dist/
#   make release  what a release of this commit still lacks; nothing is published
#   make venv     the virtual environment alone; VENV=.venv-oldest CONSTRAINTS=constraints-oldest.txt: another one
#   make lint     ruff and mypy alone          make format   let ruff lay the code out
#   make clean    remove everything made here, the virtual environments too
#
# PYTHON=... picks the interpreter, ARGS=... is handed on to the demo, to pytest, to the benchmarks or to the matrix.

# Where the environment says that no compiled modules be kept, each of the hundreds of processes that tests start would
# compile the package anew, and pytest rewrite all tests.
unexport PYTHONDONTWRITEBYTECODE

.DELETE_ON_ERROR:
.PHONY: demo test pytest slow soak lint format bench matrix dist release venv clean

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CONSTRAINTS := constraints.txt
ARGS ?=
MARKS ?= not soak and not slow

demo: $(STAMP)
	$(BIN)/python -m shapedispatch demo --plot demo.png $(ARGS)

# Lint beside the tests: it takes one process, and no test waits for it.
test: $(STAMP)
	@$(MAKE) --no-print-directory -j 2 lint pytest

# Two processes, for two cores; a file's tests stay in one, with what they have made. MARKS="not soak" are all at once.
pytest: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "$(MARKS)" $(ARGS)

slow: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not soak and slow" $(ARGS)

soak: $(STAMP)
	$(BIN)/python -m pytest -n 2 -m soak $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)
	$(BIN)/python benchmarks/everything.py $(ARGS)

matrix: $(STAMP)
	$(BIN)/python benchmarks/matrix.py $(ARGS); status=$$?; $(BIN)/python benchmarks/plots.py; exit $$status

dist: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check build
	$(BIN)/python -m build

release: $(STAMP)
	$(BIN)/python benchmarks/release.py

venv: $(STAMP)

clean:
	rm -rf $(VENV) .venv-* build dist *.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache
	find shapedispatch tests benchmarks -name __pycache__ -prune -exec rm -rf {} +
	rm -f shapedispatch/hit/*.so

# torch's modules, a third of the time, are compiled beside the rest of the installation; the few that are for a later
# Python cannot be, nor need they.
# torch is asked for by its pin before anything that depends on it, so that no other requirement picks its version
# (or, where both builds are offered, the other build). The venv is laid anew: a half-made one is never repaired.
$(STAMP): pyproject.toml $(CONSTRAINTS) $(wildcard shapedispatch/hit/csrc/*.[ch])
	@python="$(PYTHON)"; \
	for candidate in python3 python3.11 python3.12 python3.13 python3.14; do \
		[ -n "$$python" ] && break; \
		"$$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && python=$$candidate; \
	done; \
	[ -n "$$python" ] || { echo "no Python >= 3.11 with venv was found; say which: make PYTHON=/path/to/python3" >&2; exit 1; }; \
	echo "making $(VENV) with $$("$$python" --version) ($$python)"; \
	rm -rf $(VENV) && "$$python" -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c $(CONSTRAINTS) torch
	@$(BIN)/python -m compileall -q $(VENV)/lib > /dev/null 2>&1 & \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(CONSTRAINTS) -e '.[plot,dev]'; \
	status=$$?; wait; exit $$status
	@touch $@
