#!/usr/bin/env bash
# Brings what the Makefile's targets need: Java, Python with venv, the virtual environment, for the tests a browser, and
# for the nightly ones PostgreSQL and MariaDB too.
#
#   scripts/bootstrap.sh demo|test|nightly VENV
#
# Where it runs as root on Debian or Ubuntu it installs what is missing; elsewhere it says what to install.
set -euo pipefail

purpose=$1
venv=$2
cd "$(dirname "$0")/.."

say() { printf 'bootstrap: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

updated=""
install_debian() { # package, what it is for
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    fail "$2 is missing. Install it (Debian and Ubuntu: sudo apt-get install $1) and try again"
  fi
  say "installing $1: $2"
  if [ -z "$updated" ]; then
    apt-get update -qq >&2
    updated=yes
  fi
  # shellcheck disable=SC2086 # several packages may be named
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $1 >/dev/null
}

java_major() {
  "${JAVA_HOME:+$JAVA_HOME/bin/}java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1
}

has_compiler() { # beside the Java that runs
  local java
  java=${JAVA_HOME:+$JAVA_HOME/bin/java}
  [ -x "$(dirname "$(readlink -f "${java:-$(command -v java)}")")/javac" ]
}

python_fits() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; }

major=$(java_major || true)
if [ -z "$major" ] || [ "$major" -lt 17 ]; then
  [ -z "${JAVA_HOME:-}" ] || fail "JAVA_HOME=$JAVA_HOME has Java ${major:-none}; Spark 4 and Kafka 4 need Java 17 or newer"
  install_debian openjdk-17-jre-headless "Java 17 or newer, for Spark and Kafka,"
fi

if [ "$purpose" != demo ] && ! has_compiler; then
  [ -z "${JAVA_HOME:-}" ] || fail "JAVA_HOME=$JAVA_HOME has no javac; the tests build the Java library with JDK 17"
  install_debian openjdk-17-jdk-headless "A compiler of Java (JDK 17), for the tests,"
fi

if [ ! -x "$venv/bin/python" ]; then
  python=""
  for candidate in ${PYTHON:-python3.11 python3.12 python3.13 python3}; do
    if command -v "$candidate" >/dev/null && python_fits "$candidate"; then
      python=$candidate
      break
    fi
  done
  if [ -z "$python" ]; then
    install_debian "python3 python3-venv" "Python 3.11 to 3.13"
    python=python3
    python_fits "$python" || fail "$("$python" --version) is too old or too new: Python 3.11 to 3.13 is needed"
  fi
  "$python" -c 'import ensurepip, venv' 2>/dev/null || install_debian python3-venv "Python's venv module"
  say "making $venv with $("$python" --version)"
  "$python" -m venv "$venv"
fi

install_servers_and_browser() {
  command -v chromium >/dev/null || install_debian "chromium fonts-dejavu-core" "Chromium, for the browser tests,"
  if [ "$purpose" = nightly ]; then
    # Debian has the server's programs in a folder of their own for each version.
    PATH="$PATH:$(printf '%s:' /usr/lib/postgresql/*/bin)" command -v initdb >/dev/null ||
      install_debian postgresql "PostgreSQL, for the tests with Debezium and Airflow,"
    PATH="$PATH:/usr/sbin" command -v mariadbd >/dev/null ||
      install_debian mariadb-server "MariaDB, for the tests with Debezium,"
  fi
}

extras=example
beside=""
if [ "$purpose" != demo ]; then
  extras=dev
  # Both wait for a network, each for its own.
  install_servers_and_browser & beside=$!
fi

say "installing pinned packages into $venv (Spark alone is 400 MB the first time)"
"$venv/bin/python" -m pip install --quiet --no-compile --disable-pip-version-check \
  -c constraints.txt -c constraints-airflow.txt -e ".[$extras]"
# On all cores, which pip does not. Processes that may not write bytecode (PYTHONDONTWRITEBYTECODE, as in many images)
# would each compile what they import. Some packages have files that are not for this Python.
"$venv/bin/python" -m compileall -q -j 0 "$venv/lib" dagster_kafka_flip examples assets definitions.py >/dev/null 2>&1 || true
[ -z "$beside" ] || wait "$beside"
if [ "$purpose" != demo ]; then
  say "making a class archive, so that the many Sparks of the tests start sooner"
  "$venv/bin/dagster-kafka-flip" spark prepare >&2 || say "there is no class archive; the tests start Spark without it"
  say "fetching the schema registry of the tests"
  "$venv/bin/python" - <<'PYTHON' || say "the first test that needs it will fetch it"
from dagster_kafka_flip.broker.local_registry import APICURIO_ARCHIVE
from dagster_kafka_flip.runtime.jars import retrieve_unpacked

retrieve_unpacked(APICURIO_ARCHIVE)
PYTHON
fi
if [ "$purpose" = nightly ]; then
  say "fetching Kafka Connect, Debezium and the S3 client of the tests (150 MB the first time)"
  "$venv/bin/python" - <<'PYTHON' || say "the first test that needs them will fetch them"
from tests.debezium.connect import fetch
from tests.stores.jars import s3_jars

fetch()
s3_jars()
PYTHON
fi
touch "$venv/.ready-$purpose" "$venv/.ready-demo"
[ "$purpose" != nightly ] || touch "$venv/.ready-test"
