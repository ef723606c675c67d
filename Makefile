# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
#
# 'make help' lists the targets. Those of this file are what a person uses; hack/make/*.mk has the others. CI calls only these (.ci/run).

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# ---- Pinned tools: every version in this block. Python packages: hack/python/requirements.txt.
# Apache Iceberg's REST catalog server and Arrow's Java client, for tests: hack/*/pom.xml.
GOLANGCI_LINT_VERSION  := v2.12.2
MINIO_VERSION          := v0.0.0-20260212201848-7aac2a2c5b7c
CONTROLLER_GEN_VERSION := v0.21.0
GOTESTSUM_VERSION      := v1.13.0
PROMTOOL_VERSION       := v0.316.0
ACTIONLINT_VERSION     := v1.7.12
GOVULNCHECK_VERSION    := v1.3.0
MEGATRON_BRIDGE_VERSION := 0.6.2
DLIO_VERSION           := 2.0.0

# Go compiles everything one way, as images want it, without libc and this machine's paths, and once more for the race detector, which
# needs cgo: cold, most of the time goes to dependencies, and each other way would compile them all again. Without grpcnotrace, gRPC links
# html/template, and a program with that keeps all methods of all types: cacheserver would have 20 MB more.
export CGO_ENABLED := 0
export GOFLAGS := $(filter-out -trimpath,$(shell go env GOFLAGS 2>/dev/null)) -trimpath -tags=grpcnotrace

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -X main.version=$(VERSION)
export PYTHON3 ?= python3

include hack/make/places.mk hack/make/tools.mk hack/make/test.mk hack/make/bench.mk hack/make/cluster.mk hack/make/docs.mk hack/make/release.mk

##@ Use

.PHONY: help
help: ## List the targets; ALL=1 describes them all.
	@awk -v all='$(ALL)' -f hack/make/help.awk $(MAKEFILE_LIST)

.PHONY: build
build: bootstrap ## Build bin/cacheserver and bin/objectcache (3 min cold).
	@echo "==> build: $(SERVER), bin/objectcache (about 3 min cold, seconds after)"
	@mkdir -p bin
	@go build -ldflags '$(LDFLAGS)' -o bin/ ./cmd/cacheserver ./cmd/objectcache

.PHONY: demo
demo: build venv ## Train a small model from one head and two data nodes (1 min; 3 cold).
	@echo "==> demo: table, head and two data nodes, training (about 1 min; the table is made once)"
	@PYTHONPATH=hack:python/src $(PYTHON) -m demo --server $(SERVER) --cache $(CACHE)/demo $(DEMO)

.PHONY: docs
docs: docs-venv ## Build the documentation as a site: bin/site (10 s).
	@echo "==> docs: bin/site (about 10 s)"
	@$(MKDOCS) --quiet build --clean

##@ Change

.PHONY: fmt
fmt: venv $(LINT) ## Format Go and Python (seconds).
	@echo "==> fmt: gofmt and import order, ruff (seconds)"
	@$(LINT) fmt ./...
	@$(PYTHON) -m ruff format --quiet --config $(PYCONF) $(PYCODE)
	@$(PYTHON) -m ruff check --quiet --config $(PYCONF) --fix-only $(PYCODE)
	@$(PYTHON) -m ruff format --quiet python
	@$(PYTHON) -m ruff check --quiet --fix-only python

.PHONY: lint
lint: venv training-venv examples-venv $(LINT) $(ACTIONLINT) ## Check Go, Python and workflows (1 min; 8 cold).
	@echo "==> lint: golangci-lint (about 2 min cold, seconds after)"
	@$(LINT) run ./...
	@for module in $(MODULES); do (cd $$module && $(LINT) run --config $(CURDIR)/.golangci.yml ./...); done
	@echo "==> lint: ruff and pyright (about 1 min)"
	@$(PYTHON) -m ruff format --check --quiet --config $(PYCONF) $(PYCODE)
	@$(PYTHON) -m ruff check --quiet --config $(PYCONF) $(PYCODE)
	@$(PYTHON) -m ruff format --check --quiet python
	@$(PYTHON) -m ruff check --quiet python
	@$(ACTIONLINT)
	@$(VENV)/bin/basedpyright -p $(PYCONF) --pythonpath $(TRAINING)
	@$(VENV)/bin/basedpyright -p python/pyproject.toml --pythonpath $(EXAMPLES)

.PHONY: generate
generate: venv $(CONTROLLER_GEN) ## Write generated files: golden files, CRDs, runtimes, references (2 min).
	@echo "==> generate: test/golden/wire_*.json, api/v1alpha1, manifests/base/crds, runtimes, dashboards, docs/reference (about 2 min)"
	@$(PYTHON) test/conformance/golden.py write
	@$(CONTROLLER_GEN) object:headerFile=hack/boilerplate.go.txt paths=./api/...
	@$(CONTROLLER_GEN) crd paths=./api/... output:crd:dir=manifests/base/crds
	@go test ./api/... -run CRD -count=1 -update
	@go test ./internal/inject -run 'Twins|Shipped' -count=1 -update
	@go -C hack/monitoring run ./dashboards $(CURDIR)/manifests/components/monitoring/dashboards
	@go test ./cmd/... -run '^TestReference$$' -count=1 -update

.PHONY: verify
verify: generate fmt lint ## Check that generated and formatted files are committed, and lint (3 min).
	@echo "==> verify: nothing changed by generate, fmt and mod tidy (seconds)"
	@go mod tidy -diff
	@git add --intent-to-add . && git diff --exit-code

##@ Test

# All parts run, also after one that fails. The Python parts run two at a time, since each waits for servers most of the time.
.PHONY: test
test: ## All that needs no Kubernetes: go test -race, pytest (25 min cold; 12 after).
	@$(MAKE) test-go; go=$$?; \
	$(MAKE) -k -j2 --output-sync=line test-docs test-conformance test-loader test-examples && exit $$go

.PHONY: check
check: ## All that CI runs: verify, test, test-cluster, e2e, demo (55 min cold; as root).
	@.ci/run

.PHONY: nightly
nightly: ## All that runs at night and before a release: random, long, repeated (as root).
	@.ci/nightly

.PHONY: bench
bench: $(BENCH_NEEDS) ## Measure beside peers: NAME=turns; without a name, list the benchmarks.
	@$(PYTHON3) hack/make/benches.py $(if $(NAME),run '$(NAME)',list)

.PHONY: clean
clean: ## Remove bin/ and caches of the checkout; CLEAN=all also those outside it.
	@echo "==> clean: bin and Python caches$(if $(filter all,$(CLEAN)), and $(CACHE))"
	@rm -rf bin .pytest_cache .ruff_cache
	@find hack test -name __pycache__ -type d -prune -exec rm -rf {} +
	@$(if $(filter all,$(CLEAN)),rm -rf $(CACHE),true)


print-%: # the value of a variable: make -s print-PYTHON
	@echo $($*)
