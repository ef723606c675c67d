# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
#
# 'make help' lists the targets. CI calls only these (.ci/run).

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# ---- Pinned tools: every version in this block. Python packages: hack/python/requirements.txt.
# Apache Iceberg's REST catalog server, for tests: hack/rest-catalog/pom.xml.
GOLANGCI_LINT_VERSION := v2.12.2
MINIO_VERSION         := v0.0.0-20260212201848-7aac2a2c5b7c

# ---- Where things go. Nothing big lands in the checkout; Go keeps its own caches.
CACHE   := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/datacache
PYTHON3 ?= python3
LOCK    := hack/python/requirements.txt
VENV    := $(CACHE)/venv-$(shell { $(PYTHON3) -V; cat $(LOCK); } 2>/dev/null | sha256sum | cut -c1-12)
PYTHON  := $(VENV)/bin/python
LINT    := $(CACHE)/tools/golangci-lint-$(GOLANGCI_LINT_VERSION)/golangci-lint
MINIO   := $(CACHE)/tools/minio-$(MINIO_VERSION)/minio
POM     := hack/rest-catalog/pom.xml
CATALOG := $(CACHE)/tools/iceberg-rest-catalog-$(shell sha256sum $(POM) 2>/dev/null | cut -c1-12)
SERVER  := bin/cacheserver
PYCONF  := hack/python/pyproject.toml
PYCODE  := hack test

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -X main.version=$(VERSION)

# ---- What a run may change: make test PYTEST='-k wire', make fuzz FUZZTIME=5m
FUZZTIME ?= 30s
PYTEST   ?=
GOTEST   ?=
BENCH    ?=
SOAK     ?= 200
DEMO     ?=

export PYTHON3
# golangci-lint remembers findings with the paths of the checkout that it saw first: each checkout has its own memory.
export GOLANGCI_LINT_CACHE := $(CACHE)/lint-$(shell pwd | sha256sum | cut -c1-12)

.PHONY: help
help: ## List the targets.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## (.*)/  \1\t\2/' | expand -t 20

.PHONY: bootstrap
bootstrap: # what the machine itself must have
	@hack/bootstrap

.PHONY: venv
venv: bootstrap
	@hack/venv $(VENV)

$(LINT): | bootstrap
	@echo "==> golangci-lint $(GOLANGCI_LINT_VERSION): building (about 5 min, once)"
	@GOBIN=$(@D) go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_LINT_VERSION)

$(MINIO): | bootstrap
	@echo "==> minio $(MINIO_VERSION): building (about 3 min, once)"
	@GOBIN=$(@D) go install github.com/minio/minio@$(MINIO_VERSION)

$(CATALOG)/complete: | bootstrap
	@hack/bootstrap java
	@echo "==> Iceberg REST catalog: fetching its jars (about 20 s, once)"
	@mvn -q -B -f $(POM) dependency:copy-dependencies -DoutputDirectory=$(CATALOG)
	@touch $@

.PHONY: tools
tools: venv $(LINT) $(MINIO) $(CATALOG)/complete ## Build and install the pinned tools into the cache (about 9 min, once; others call it as needed).

.PHONY: build
build: bootstrap ## Build bin/cacheserver (about 3 min cold, seconds after).
	@echo "==> build: $(SERVER) (about 3 min cold, seconds after)"
	@mkdir -p bin
	@go build -ldflags '$(LDFLAGS)' -o $(SERVER) ./cmd/cacheserver

.PHONY: generate
generate: venv ## Write the golden files of the wire contract and the epochs anew (seconds).
	@echo "==> generate: test/golden/wire_*.json (seconds)"
	@$(PYTHON) test/conformance/golden.py write

.PHONY: fmt
fmt: venv $(LINT) ## Format Go and Python (seconds).
	@echo "==> fmt: gofmt and import order, ruff (seconds)"
	@$(LINT) fmt ./...
	@$(PYTHON) -m ruff format --quiet --config $(PYCONF) $(PYCODE)
	@$(PYTHON) -m ruff check --quiet --config $(PYCONF) --fix-only $(PYCODE)

.PHONY: lint
lint: venv $(LINT) ## Check Go and Python: golangci-lint, ruff, pyright (about 8 min cold, 30 s after).
	@echo "==> lint: golangci-lint (about 2 min cold, seconds after)"
	@$(LINT) run ./...
	@echo "==> lint: ruff and pyright (about 20 s)"
	@$(PYTHON) -m ruff format --check --quiet --config $(PYCONF) $(PYCODE)
	@$(PYTHON) -m ruff check --quiet --config $(PYCONF) $(PYCODE)
	@$(VENV)/bin/basedpyright -p $(PYCONF) --pythonpath $(PYTHON)

.PHONY: test
test: test-go test-conformance ## Everything that must hold: go vet, go test -race, pytest on the real binary (about 15 min cold, 5 min after a change, a minute without).

.PHONY: test-go
test-go: bootstrap ## The Go half of test (about 8 min cold, 1 min after).
	@echo "==> test: go vet (about 1 min cold, seconds after)"
	@go vet ./...
	@echo "==> test: go test -race (about 8 min cold, 1 min after)"
	@go test -race $(GOTEST) ./...

.PHONY: test-conformance
test-conformance: build venv $(MINIO) $(CATALOG)/complete ## The Python half of test: pyarrow, pyiceberg and DuckDB against bin/cacheserver (about 3 min; nothing to do while nothing changed).
	@echo "==> test: pytest against $(SERVER) (about 4 min)"
	@hack/unless-passed $(CACHE)/passed $(SERVER) test/conformance test/golden $(LOCK) -- \
		$(PYTHON) -m pytest test/conformance --server $(SERVER) --minio $(MINIO) --rest-catalog $(CATALOG) $(PYTEST)

.PHONY: test-loader
test-loader: build venv ## The Python loader's own tests against bin/cacheserver (about 2 min); not part of test yet.
	@echo "==> test: the loader against $(SERVER) (about 2 min)"
	@PYTHONPATH=python/src $(PYTHON) -m pytest python/tests --rootdir python -c python/pyproject.toml --server $(SERVER) $(PYTEST)

.PHONY: fuzz
fuzz: bootstrap ## Run every fuzz target for FUZZTIME=30s each (about 4 min; 8 more cold: instrumented dependencies).
	@echo "==> fuzz: $(FUZZTIME) a target"
	@hack/fuzz $(FUZZTIME)

.PHONY: demo
demo: build venv ## Train a small model from one head and two data nodes (about 1 min; 2 more the first time).
	@echo "==> demo: table, head and two data nodes, training (about 1 min; the table is made once)"
	@PYTHONPATH=hack $(PYTHON) -m demo --server $(SERVER) --cache $(CACHE)/demo $(DEMO)

.PHONY: bench
bench: build venv ## Print the table of speed and memory beside peers (about 6 min; BENCH='--scale 0.1' for a quick look).
	@echo "==> bench: load, stream, shuffle, memory (about 6 min on idle cores)"
	@PATH="$(VENV)/bin:$$PATH" test/bench/run $(BENCH)

.PHONY: soak
soak: bootstrap ## Kill, stop and freeze servers at random while clients read, SOAK=200 times (about 30 min; not part of CI).
	@echo "==> soak: $(SOAK) blows at random; the log's FAULTS_SEED repeats a run (about 10 s a blow)"
	@FAULTS_ROUNDS=$(SOAK) go test ./test/faults -run '^TestKillsAtRandom$$' -count=1 -timeout=0 -v

.PHONY: verify
verify: generate fmt lint ## What CI wants of a change: generated and formatted files are in the commit, lint is clean (about 1 min).
	@echo "==> verify: nothing changed by generate, fmt and mod tidy (seconds)"
	@go mod tidy -diff
	@git diff --exit-code

.PHONY: clean
clean: ## Remove bin/ and caches inside the checkout; CLEAN=all also the caches outside it.
	@echo "==> clean: bin and Python caches$(if $(filter all,$(CLEAN)), and $(CACHE))"
	@rm -rf bin .pytest_cache .ruff_cache
	@find hack test -name __pycache__ -type d -prune -exec rm -rf {} +
	@$(if $(filter all,$(CLEAN)),rm -rf $(CACHE),true)
