# make demo    real Kafka records land in Delta tables through Dagster, and are compared with the topic
# make demo-registry    the same in Avro, with a schema registry and a schema that evolves
# make dev     the same broker with Dagster's UI, until Ctrl-C
# make test    from lint to browser, in 20 minutes on two idle cores
# make test-nightly  what takes minutes or needs third-party servers: a Spark cluster, three brokers, S3, Debezium with its databases
# make check   lint, types and unit tests, in about a minute
# make format  formats the code
# make library builds the Java library that the package carries, after a change of java/
# make docs    the documents as a site, in site/
# make test-airflow  a whole Airflow runs the example's DAGs: scheduled, backfilled, killed, cleared; takes minutes
# make test-brokers  the core on a broker of several releases of Kafka from 3.3 on; takes minutes
# make test-yarn  assets on YARN, with tables on HDFS; takes minutes
# make test-versions  the core on the Pythons, Javas, Sparks and libraries that people have; takes an hour
# make upgrade  pins the newest versions of all libraries that pyproject.toml allows, and says what changed
# make test-install installs the wheel into an empty environment and follows the guide to getting started
# make screenshots  retakes the documents' pictures of Dagster's pages
# make bench   measures for half an hour, and writes docs/benchmarks.md: bench-throughput, bench-starts, bench-growth, bench-memory
# make bench-more  prints more measurements: bench-planning, bench-tasks, bench-backfills, bench-merges, bench-publishing
# make simulate  plays seeds on all cores: SEEDS=5000, or MINUTES=, from seed FIRST= on; SEED= for one that failed
# make soak    kills runs for ten minutes, and counts lost and doubled records
# make soak-cluster  a run of 20 million records on a cluster that loses workers, compared record by record
# make clean   removes what the others made, the virtual environment included

SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
UNIT := not kafka and not spark and not ui and not slow and not nightly
# Each worker has its own broker and Spark session, in 3 GB. Two of them leave a tenth of two cores idle.
WORKERS ?= 3
# Where it is set, each of the many Pythons that the tests start would compile all of this project's modules anew.
unexport PYTHONDONTWRITEBYTECODE

RESULTS := benchmarks/results
# Flink, to compare with: it can't be installed beside this package.
FLINK := .venv-flink
FEW_WAYS := --form raw --form json --way AvailableNow --way "AvailableNow, tuned" --rounds 2

.PHONY: demo demo-registry dev test test-nightly test-airflow test-brokers test-yarn test-versions check unit format lint library docs clean upgrade test-install bench bench-more bench-throughput bench-starts bench-growth bench-memory bench-planning bench-tasks bench-backfills bench-merges bench-publishing screenshots soak soak-cluster help simulate
.DEFAULT_GOAL := help

help:
	@sed -n 's/^# make /make /p' Makefile

$(VENV)/.ready-demo: pyproject.toml constraints.txt constraints-airflow.txt scripts/bootstrap.sh
	@scripts/bootstrap.sh demo $(VENV)

$(VENV)/.ready-test: pyproject.toml constraints.txt constraints-airflow.txt scripts/bootstrap.sh
	@scripts/bootstrap.sh test $(VENV)

$(VENV)/.ready-nightly: pyproject.toml constraints.txt constraints-airflow.txt scripts/bootstrap.sh
	@scripts/bootstrap.sh nightly $(VENV)

demo: $(VENV)/.ready-demo
	@$(BIN)/python -m examples.demo

demo-registry: $(VENV)/.ready-demo
	@$(BIN)/python -m examples.registry

dev: $(VENV)/.ready-demo
	@$(BIN)/python -m examples.dev

lint: $(VENV)/.ready-test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/python -m scripts.library --check

# Both at once: each of them keeps one core busy.
check: $(VENV)/.ready-test
	@$(MAKE) --no-print-directory -j2 --output-sync=target lint unit
	@$(BIN)/python -X importtime -c "import definitions" 2>&1 >/dev/null | tail -n 1 | \
		awk -F'|' '{printf "the code location loads in %.2f s\n", $$2 / 1000000}'

unit: $(VENV)/.ready-test
	$(BIN)/python -m pytest -n $(WORKERS) -m "$(UNIT)"

# Lint and types are among the tests: tests/test_lint.py runs `make lint`.
test: $(VENV)/.ready-test
	$(BIN)/python -m pytest -n $(WORKERS) --no-loadscope-reorder -m "not nightly"

test-nightly: $(VENV)/.ready-nightly
	$(BIN)/python -m pytest -n $(WORKERS) --no-loadscope-reorder -m nightly

format: $(VENV)/.ready-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/python -m scripts.library --format

library: $(VENV)/.ready-demo
	@$(BIN)/python -m scripts.library

docs: $(VENV)/.ready-test
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Not called test_*.py, so that `make test` does without it.
test-airflow: $(VENV)/.ready-nightly
	$(BIN)/python -m pytest --timeout 3600 tests/airflow/standalone.py

test-brokers: $(VENV)/.ready-test
	$(BIN)/python -m pytest tests/brokers/matrix.py

test-yarn: $(VENV)/.ready-test
	$(BIN)/python -m pytest tests/cluster/on_yarn.py

test-versions: $(VENV)/.ready-test
	@$(BIN)/python -m scripts.test_versions

upgrade: $(VENV)/.ready-test
	@$(BIN)/python -m scripts.upgrade

test-install: $(VENV)/.ready-test
	@$(BIN)/python -m scripts.test_install

screenshots: $(VENV)/.ready-nightly
	SCREENSHOTS=docs/images $(BIN)/python -m pytest tests/ui
	SCREENSHOTS=docs/images $(BIN)/python -m pytest --timeout 3600 tests/airflow/standalone.py

simulate: $(VENV)/.ready-test
	@$(BIN)/python -m tests.simulation

bench: bench-throughput bench-starts bench-growth bench-memory
	@$(BIN)/python -m benchmarks.document

bench-more: bench-planning bench-tasks bench-backfills bench-merges bench-publishing

$(FLINK)/.ready: constraints-flink.txt $(VENV)/.ready-test
	@$(BIN)/python -m venv $(FLINK)
	@$(FLINK)/bin/pip install --quiet -c constraints-flink.txt apache-flink
	@touch $@

# The alternatives, then what the result depends on: garbage collector, larger records, records that repeat.
bench-throughput: $(VENV)/.ready-test $(FLINK)/.ready
	@$(BIN)/python -m benchmarks.throughput --flink $(FLINK)/bin/python --json $(RESULTS)/throughput.json
	@$(BIN)/python -m benchmarks.throughput $(FEW_WAYS) --collector G1GC --json $(RESULTS)/throughput-g1.json
	@$(BIN)/python -m benchmarks.throughput $(FEW_WAYS) --note-digits 850 --records 500000 --json $(RESULTS)/throughput-large.json
	@$(BIN)/python -m benchmarks.throughput $(FEW_WAYS) --repeating --json $(RESULTS)/throughput-repeating.json

bench-starts: $(VENV)/.ready-test
	@$(BIN)/python -m benchmarks.starts --json $(RESULTS)/starts.json

bench-growth: $(VENV)/.ready-test
	@$(BIN)/python -m benchmarks.growth --json $(RESULTS)/growth.json

bench-memory: $(VENV)/.ready-test
	@$(BIN)/python -m benchmarks.memory --json $(RESULTS)/memory.json

bench-planning: $(VENV)/.ready-demo
	@$(BIN)/python -m benchmarks.planning

bench-tasks: $(VENV)/.ready-demo
	@$(BIN)/python -m benchmarks.tasks

bench-backfills: $(VENV)/.ready-demo
	@$(BIN)/python -m benchmarks.backfills

bench-merges: $(VENV)/.ready-demo
	@$(BIN)/python -m benchmarks.merges

bench-publishing: $(VENV)/.ready-demo
	@$(BIN)/python -m benchmarks.publishing

soak: $(VENV)/.ready-test
	@$(BIN)/python -m tests.soak

soak-cluster: $(VENV)/.ready-test
	@$(BIN)/python -m tests.cluster.soak

clean:
	rm -rf $(VENV) $(FLINK) .venv-versions .demo .dev .pytest_cache .ruff_cache .hypothesis dist build site spark-warehouse artifacts
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
