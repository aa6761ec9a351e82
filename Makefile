# The two commands of the README are `make demo` and `make test`.  Each does
# all of its own set-up and repeats none of it: Python packages go into .venv,
# again when pyproject.toml changes; MariaDB comes from apt.
#
#   PYTHON   the Python to make .venv with (3.10 or later)
#   ARGS     arguments for pytest, such as ARGS="-k topology -x"

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
PYTEST := $(BIN)/python -m pytest

.DEFAULT_GOAL := help
# One after the other, whatever -j says: the checks read better in order, and
# pytest's closing line must come last.
.NOTPARALLEL:
.PHONY: help demo test lint type docs servers soak bench clean

help: ## show this list
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 16

demo: $(VENV)/.package ## run the quickstart on SQLite; needs Python only
	@$(BIN)/python -m examples.quickstart

test: $(VENV)/.dev servers ## check everything, on real MariaDB
	@failed=; for check in lint type docs; do \
	    $(MAKE) --no-print-directory $$check || failed="$$failed $$check"; \
	done; \
	$(PYTEST) $(ARGS) || failed="$$failed pytest"; \
	[ -z "$$failed" ] || { echo "make: FAILED:$$failed" >&2; exit 1; }

lint: $(VENV)/.dev ## check style and formatting
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet . || \
	    { $(BIN)/ruff format --check .; exit 1; }

type: $(VENV)/.dev ## check types
	@$(BIN)/mypy

docs: $(VENV)/.dev ## build the documentation in docs/_build/html
	@if [ -f docs/conf.py ]; then \
	    $(BIN)/sphinx-build -q -W --keep-going docs docs/_build/html; \
	fi

soak: $(VENV)/.dev servers ## test for hours, with many random examples
	@SQLA_SHARD_SOAK=1 $(PYTEST) --timeout=7200 $(ARGS)

bench: $(VENV)/.dev servers ## print the figures of docs and README
	@$(BIN)/python -m tests.benchmarks $(ARGS)

clean: ## remove what the other commands made, .venv included
	@rm -rf $(VENV) .tox .mypy_cache .pytest_cache .ruff_cache .hypothesis \
	    build dist docs/_build
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# -- Python packages ------------------------------------------------------

$(VENV)/.package: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	    echo "make: $(PYTHON) is missing or older than Python 3.10;" \
	        "try: make PYTHON=python3.12" >&2; exit 1; }
	@[ -x $(BIN)/python ] || { \
	    echo "make: creating $(VENV)"; $(PYTHON) -m venv $(VENV); } || { \
	    rm -rf $(VENV); \
	    echo "make: no virtual environment; on Debian and Ubuntu that" \
	        "takes: apt-get install python3-venv" >&2; exit 1; }
	@echo "make: installing sqla_shard in $(VENV)"
	@$(PIP) install --upgrade 'pip>=25.1'
	@$(PIP) install --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.package
	@echo "make: installing the tools for tests in $(VENV)"
	@$(PIP) install --editable '.[mysql,testing]' --group dev
	@touch $@

# -- MariaDB --------------------------------------------------------------
# The two packages of the bare programs: unlike mariadb-server they bring no
# service that would start now and at each boot.  Older releases have the
# version in their names.  Without MariaDB the tests that need it are skipped
# and counted, or fail where CI=true.

define INSTALL_MARIADB
PATH="$$PATH:/usr/sbin:/usr/local/sbin"
find_mariadb() {
    command -v mariadbd && command -v mariadb-install-db
}
complain() {
    echo "make: NO MARIADB: $$1. Install MariaDB 10.6 or later" >&3
    tail -n 5 "$$log" >&3
    exit 0
}
if [ -n "$$SQLA_SHARD_MARIADB$$SQLA_SHARD_TEST_SERVERS" ]; then exit; fi
if find_mariadb >/dev/null; then exit; fi
log=$$(mktemp)
trap 'rm -f "$$log"' EXIT
exec 3>&1 >"$$log" 2>&1
command -v apt-get >/dev/null || complain "and no apt-get to install it with"
sudo=
if [ "$$(id -u)" -ne 0 ]; then
    sudo -n true || complain "and no right to install it"
    sudo="sudo -n"
fi
echo "make: installing MariaDB (programs only, no service)" >&3
$$sudo apt-get update -qq
names="mariadb-server-core mariadb-client-core"
if ! apt-cache show $$names >/dev/null; then
    names=$$(apt-cache pkgnames mariadb- |
        grep -E '^mariadb-(server|client)-core-[0-9.]+$$')
fi
$$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y \
    --no-install-recommends $$names || complain "apt-get could not install it"
find_mariadb || complain "although apt-get installed it"
endef
export INSTALL_MARIADB

servers: ## install MariaDB for the tests, where apt-get may
	@sh -c "$$INSTALL_MARIADB"
