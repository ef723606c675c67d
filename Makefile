# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
#
# 'make help' lists the targets. CI calls only these (.ci/run).

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

# ---- Where things go. Nothing big lands in the checkout; Go keeps its own caches.
CACHE   := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/datacache
PYTHON3 ?= python3
LOCK    := hack/python/requirements.txt
venv_of  = $(CACHE)/$(1)-$(shell { $(PYTHON3) -V; cat $(2); } 2>/dev/null | sha256sum | cut -c1-12)
VENV    := $(call venv_of,venv,$(LOCK))
PYTHON  := $(VENV)/bin/python
# Beside it: torch and the Kubeflow SDK, for the loader's adaptors and the end-to-end tests; over that, JAX, Ray, others' trainers, pandas and Jupyter's
# kernel, for the examples; the loaders that bench-loader compares with, some of which want older packages than ours; clients of the object cache and of
# the hub's mirror as people install them; Spark.
TRAINING_LOCK := hack/python/training.txt
TRAINING_VENV := $(call venv_of,training,$(LOCK) $(TRAINING_LOCK))
TRAINING      := $(TRAINING_VENV)/bin/python
EXAMPLES_LOCK := hack/python/examples.txt
EXAMPLES_VENV := $(call venv_of,examples,$(LOCK) $(TRAINING_LOCK) $(EXAMPLES_LOCK))
EXAMPLES      := $(EXAMPLES_VENV)/bin/python
PEERS_LOCK    := hack/python/peers.txt
PEERS_VENV    := $(call venv_of,peers,$(PEERS_LOCK))
PEERS         := $(PEERS_VENV)/bin/python
MLPERF_LOCK   := hack/python/mlperf.txt
MLPERF_VENV   := $(call venv_of,mlperf,$(LOCK) $(TRAINING_LOCK) $(MLPERF_LOCK))
MLPERF        := $(MLPERF_VENV)/bin/python
CLIENTS_LOCK  := hack/python/clients.txt
CLIENTS_VENV  := $(call venv_of,clients,$(CLIENTS_LOCK))
CLIENTS       := $(CLIENTS_VENV)/bin/python
HUB_LOCK      := hack/python/hub.txt
HUB_VENV      := $(call venv_of,hub,$(HUB_LOCK))
HUB           := $(HUB_VENV)/bin/python
SPARK_LOCK    := hack/python/spark.txt
SPARK_VENV    := $(call venv_of,spark,$(SPARK_LOCK))
SPARK         := $(SPARK_VENV)/bin/python
FOLDERS_LOCK  := hack/python/folders.txt
FOLDERS_VENV  := $(call venv_of,folders,$(SPARK_LOCK) $(FOLDERS_LOCK))
DELTA_LOCK    := hack/python/delta.txt
DELTA_VENV    := $(call venv_of,delta,$(DELTA_LOCK))
DELTA         := $(DELTA_VENV)/bin/python
# MkDocs, for the documentation as a site.
DOCS_LOCK     := hack/python/docs.txt
DOCS_VENV     := $(call venv_of,docs,$(DOCS_LOCK))
DOCS          := $(DOCS_VENV)/bin/python
MKDOCS        := NO_MKDOCS_2_WARNING=1 DISABLE_MKDOCS_2_WARNING=true $(DOCS) -m mkdocs
# Over ours, what makes a release: hatchling for the wheel, uv to publish it, git-cliff for the changelog.
RELEASE_LOCK  := hack/python/release.txt
RELEASE_VENV  := $(call venv_of,release,$(LOCK) $(RELEASE_LOCK))
export RELEASE_PYTHON := $(RELEASE_VENV)/bin/python
LINT    := $(CACHE)/tools/golangci-lint-$(GOLANGCI_LINT_VERSION)/golangci-lint
MINIO   := $(CACHE)/tools/minio-$(MINIO_VERSION)/minio
GOTESTSUM := $(CACHE)/tools/gotestsum-$(GOTESTSUM_VERSION)/gotestsum
PROMTOOL  := $(CACHE)/tools/promtool-$(PROMTOOL_VERSION)/promtool
export DATACACHE_PROMTOOL := $(PROMTOOL)
ACTIONLINT := $(CACHE)/tools/actionlint-$(ACTIONLINT_VERSION)/actionlint
export COSIGN := $(CACHE)/tools/cosign-$(shell cat hack/cosign/main.go hack/cosign/go.sum 2>/dev/null | sha256sum | cut -c1-12)/cosign
CONTROLLER_GEN := $(CACHE)/tools/controller-gen-$(CONTROLLER_GEN_VERSION)/controller-gen
# Jars that tests run: Apache Iceberg's REST catalog, Arrow's Java client, Iceberg for Spark.
jars_of = $(CACHE)/tools/$(1)-$(shell sha256sum hack/$(1)/pom.xml 2>/dev/null | cut -c1-12)
CATALOG     := $(call jars_of,rest-catalog)
JAVA_FLIGHT := $(call jars_of,java-flight)
SPARK_JARS  := $(call jars_of,spark)
DELTA_JARS  := $(call jars_of,delta)
# Trainer's own data cache, which the bench measures beside ours, of the release that go.mod names.
TRAINER_CACHE := $(CACHE)/tools/trainer-cache-$(shell sed -n 's,.*github.com/kubeflow/trainer/v2 ,,p' go.mod 2>/dev/null)
# What test/pages looks at the servers' pages with: a browser, and axe-core, which says whether everybody can use them.
CHROMIUM ?= chromium-headless-shell
AXE      := $(CACHE)/tools/axe-$(shell sha256sum hack/axe/package-lock.json 2>/dev/null | cut -c1-12)
export DATACACHE_CHROMIUM := $(CHROMIUM)
export DATACACHE_AXE := $(AXE)
SERVER  := bin/cacheserver
# Kubernetes, JobSet, LWS and Trainer for the tests of the control plane; their versions are in the two go.mod files.
KUBE_SOURCE := $(addprefix hack/kube/,build main.go go.mod go.sum managers/go.mod managers/go.sum)
KUBE        := $(CACHE)/tools/kube-$(shell cat $(KUBE_SOURCE) 2>/dev/null | sha256sum | cut -c1-12)
KUBERNETES  ?=
export DATACACHE_KUBE := $(KUBE)
# Fluid's controllers, CSI plugin, charts and helm, for the tests of caches of files; their versions are in the two go.mod files.
SCHEDULERS_SOURCE := $(addprefix hack/kube/schedulers/,build main.go go.mod go.sum)
SCHEDULERS  := $(CACHE)/tools/schedulers-$(shell cat $(SCHEDULERS_SOURCE) 2>/dev/null | sha256sum | cut -c1-12)
export DATACACHE_SCHEDULERS := $(SCHEDULERS)
FLUID_SOURCE := $(addprefix hack/fluid/,build main.go fuse.go registrar.go go.mod go.sum helm/go.mod helm/go.sum)
FLUID        := $(CACHE)/tools/fluid-$(shell cat $(FLUID_SOURCE) 2>/dev/null | sha256sum | cut -c1-12)
export DATACACHE_FLUID := $(FLUID)
export DATACACHE_PYTHON := $(PYTHON)
export DATACACHE_MINIO := $(MINIO)
export DATACACHE_TRAINING_PYTHON := $(TRAINING)
export DATACACHE_CLIENTS_PYTHON := $(CLIENTS)
export DATACACHE_HUB_PYTHON := $(HUB)
export DATACACHE_SPARK_PYTHON := $(SPARK)
export DATACACHE_DOCS_PYTHON := $(DOCS)
# A whole cluster on this machine: its images, and the folder that is all it leaves on disk.
IMAGES  := $(CACHE)/images
CLUSTER := $(or $(DATACACHE_CLUSTER),$(CACHE)/cluster)
export DATACACHE_IMAGES := $(IMAGES)
# Where 'make release-build' puts what it makes, and 'make release' pushes images.
export RELEASE_DIR      ?= $(CURDIR)/bin/release
export RELEASE_REGISTRY ?= ghcr.io/kubeflow/datacache
# What long measurements print for docs/scale.md.
MEASURED := $(CURDIR)/test/scale/measured
# Where each test target writes how long its tests took, for 'make slowest'.
REPORTS ?= $(CACHE)/tests
PYCONF  := hack/python/pyproject.toml
PYCODE  := hack test docs/examples
MODULES := hack/images hack/cluster/coredns hack/monitoring

# Go compiles everything one way, as images want it, without libc and this machine's paths, and once more for the race detector, which
# needs cgo: cold, most of the time goes to dependencies, and each other way would compile them all again. Without grpcnotrace, gRPC links
# html/template, and a program with that keeps all methods of all types: cacheserver would have 20 MB more.
export CGO_ENABLED := 0
export GOFLAGS := $(filter-out -trimpath,$(shell go env GOFLAGS 2>/dev/null)) -trimpath -tags=grpcnotrace

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -X main.version=$(VERSION)
# What a release is for: images, and kubectl datacache's archives; .krew.yaml has the same.
export RELEASE_PLATFORMS ?= linux/amd64 linux/arm64
export PLUGIN_PLATFORMS  ?= linux-amd64 linux-arm64 darwin-amd64 darwin-arm64 windows-amd64 windows-arm64

# ---- What a run may change: make test PYTEST='-k wire', make fuzz FUZZ=1000000x
FUZZ     ?= 5000x
PYTEST   ?=
GOTEST   ?=
BENCH    ?=
PROFILE  ?=
SOAK     ?= 200
SCHEDULES ?= 10000
LARGE    ?= 100
TABLES   ?= 1000
MUTANTS  ?= 100
PRUNING  ?= 100
FOLDERS  ?= 60
CACHES   ?= 500
CLAIMS   ?= 10000
CLAIM_QPS ?= 25
FILES    ?= 100000
FLUID_CACHES ?= 200
FLUID_RUNS ?= 5
DEMO     ?=
SIZE     ?=
# The seed of all tests that draw random numbers: a number, or random, which is a new one for all programs of this run. Without it these
# targets take a new one, and the other targets the same at each run, as CI does.
soak schedules lost-machines test-folders fuzz-tables fuzz-pruning: export SEED ?= random
ifeq ($(SEED),random)
override SEED := $(shell od -An -N4 -tu4 /dev/urandom | tr -d ' ')
$(shell echo "==> SEED=$(SEED)" >&2)
endif
E2E      ?=
LOSSES   ?= 10
PODS     ?= 100
OBJECTS  ?= 4900000
RENEWALS ?= 3

export PYTHON3
# golangci-lint remembers findings with the paths of the checkout that it saw first: each checkout has its own memory.
export GOLANGCI_LINT_CACHE := $(CACHE)/lint-$(shell pwd | sha256sum | cut -c1-12)

.PHONY: help
help: ## List the targets.
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):[^#]*## (.*)/  \1\t\2/' | expand -t 20

.PHONY: bootstrap
bootstrap: # what the machine itself must have
	@hack/bootstrap

.PHONY: venv
venv: bootstrap
	@hack/venv $(VENV) $(LOCK)

.PHONY: training-venv
training-venv: bootstrap ## The virtual environment with torch and the Kubeflow SDK (about 3 min, once).
	@hack/venv $(TRAINING_VENV) $(LOCK) $(TRAINING_LOCK)

.PHONY: examples-venv
examples-venv: training-venv # over that, JAX, Ray, TRL, torchtitan, torchft, Megatron-core, pandas and Jupyter's kernel (about 1 min, once)
	@hack/venv --over $(TRAINING_VENV) $(EXAMPLES_VENV) $(EXAMPLES_LOCK)

.PHONY: peers-venv
peers-venv: bootstrap ## The virtual environment with the loaders that bench-loader compares with (about 5 min, once).
	@hack/venv $(PEERS_VENV) $(PEERS_LOCK)

.PHONY: clients-venv
clients-venv: bootstrap # clients of the object cache: pfio, Envoy, grpcio; ccache and curl
	@hack/bootstrap clients
	@hack/venv $(CLIENTS_VENV) $(CLIENTS_LOCK)

.PHONY: hub-venv
hub-venv: bootstrap # clients of the hub's mirror: huggingface_hub, transformers, datasets (about 1 min, once)
	@hack/venv $(HUB_VENV) $(HUB_LOCK)

.PHONY: spark-venv
spark-venv: bootstrap # Spark, which writes tables for the tests (about 2 min, once)
	@hack/venv $(SPARK_VENV) $(SPARK_LOCK)

.PHONY: folders-venv
folders-venv: spark-venv # over that, polars and pyarrow (seconds, once)
	@hack/venv --over $(SPARK_VENV) $(FOLDERS_VENV) $(FOLDERS_LOCK)

.PHONY: delta-venv
delta-venv: bootstrap # delta-rs, and Spark for Delta (about 2 min, once)
	@hack/venv $(DELTA_VENV) $(DELTA_LOCK)

.PHONY: docs-venv
docs-venv: bootstrap # MkDocs (seconds, once)
	@hack/venv $(DOCS_VENV) $(DOCS_LOCK)

.PHONY: release-venv
release-venv: venv # over that, what makes a release (seconds, once)
	@hack/venv --over $(VENV) $(RELEASE_VENV) $(RELEASE_LOCK)

print-%: # the value of a variable: make -s print-PYTHON
	@echo $($*)

$(LINT): | bootstrap
	@echo "==> golangci-lint $(GOLANGCI_LINT_VERSION): building (about 5 min, once)"
	@GOBIN=$(@D) go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_LINT_VERSION)

$(MINIO): | bootstrap
	@echo "==> minio $(MINIO_VERSION): building (about 3 min, once)"
	@GOBIN=$(@D) go install github.com/minio/minio@$(MINIO_VERSION)

$(GOTESTSUM): | bootstrap
	@echo "==> gotestsum $(GOTESTSUM_VERSION): building (seconds, once)"
	@GOBIN=$(@D) go install gotest.tools/gotestsum@$(GOTESTSUM_VERSION)

# Without the discovery of targets in clouds, which only its server needs.
$(PROMTOOL): | bootstrap
	@echo "==> promtool $(PROMTOOL_VERSION): building (about 2 min, once)"
	@GOBIN=$(@D) go install -tags remove_all_sd github.com/prometheus/prometheus/cmd/promtool@$(PROMTOOL_VERSION)

$(ACTIONLINT): | bootstrap
	@echo "==> actionlint $(ACTIONLINT_VERSION): building (seconds, once)"
	@GOBIN=$(@D) go install github.com/rhysd/actionlint/cmd/actionlint@$(ACTIONLINT_VERSION)

$(COSIGN): | bootstrap
	@echo "==> hack/cosign: building (about 3 min, once)"
	@go build -C hack/cosign -ldflags '-s -w' -o $@ .

$(CONTROLLER_GEN): | bootstrap
	@echo "==> controller-gen $(CONTROLLER_GEN_VERSION): building (about 1 min, once)"
	@GOBIN=$(@D) go install sigs.k8s.io/controller-tools/cmd/controller-gen@$(CONTROLLER_GEN_VERSION)

$(CATALOG)/complete: JARS := rest-catalog
$(JAVA_FLIGHT)/complete: JARS := java-flight
$(SPARK_JARS)/complete: JARS := spark
$(DELTA_JARS)/complete: JARS := delta
$(CATALOG)/complete $(JAVA_FLIGHT)/complete $(SPARK_JARS)/complete $(DELTA_JARS)/complete: | bootstrap
	@hack/bootstrap java
	@echo "==> hack/$(JARS): fetching jars (about 20 s, once)"
	@mvn -q -B -f hack/$(JARS)/pom.xml dependency:copy-dependencies -DoutputDirectory=$(@D)
	@touch $@

$(AXE)/complete: | bootstrap
	@hack/bootstrap browser
	@echo "==> hack/axe: fetching axe-core (seconds, once)"
	@mkdir -p $(@D)
	@cp hack/axe/package.json hack/axe/package-lock.json $(@D)
	@cd $(@D) && npm ci --ignore-scripts --no-audit --no-fund --silent
	@touch $@

.PHONY: browser
browser: $(AXE)/complete # the browser itself may have gone since
	@hack/bootstrap browser

.PHONY: prometheus
prometheus: bootstrap # for the dashboards
	@hack/bootstrap prometheus

.PHONY: tools
tools: venv spark-venv $(LINT) $(MINIO) $(PROMTOOL) $(CATALOG)/complete $(JAVA_FLIGHT)/complete $(SPARK_JARS)/complete ## Build and install the pinned tools into the cache (about 9 min, once; others call it as needed).

.PHONY: kube-tools
kube-tools: bootstrap ## Build Kubernetes and the stock managers for the tests of the control plane (about 15 min, once).
	@hack/kube/build $(KUBE)

.PHONY: scheduler-tools
scheduler-tools: kube-tools ## Build the gang schedulers for the tests of gangs (10 s after kube-tools).
	@hack/kube/schedulers/build $(SCHEDULERS)

.PHONY: fluid-tools
fluid-tools: bootstrap ## Build Fluid's controllers, its CSI plugin and helm for the tests of caches of files (about 5 min, once).
	@hack/fluid/build $(FLUID)

.PHONY: kube-pin
kube-pin: bootstrap ## Move hack/kube to another release of Kubernetes: KUBERNETES=v1.36.3.
	@hack/kube/pin $(KUBERNETES)

.PHONY: build
build: bootstrap ## Build bin/cacheserver and bin/objectcache (about 3 min cold, seconds after).
	@echo "==> build: $(SERVER), bin/objectcache (about 3 min cold, seconds after)"
	@mkdir -p bin
	@go build -ldflags '$(LDFLAGS)' -o bin/ ./cmd/cacheserver ./cmd/objectcache

.PHONY: managers
managers: bootstrap ## Build bin/manager and bin/trainer-manager, the control plane (about 5 min cold, seconds after).
	@echo "==> managers: bin/manager, bin/trainer-manager (about 5 min cold, seconds after)"
	@mkdir -p bin
	@go build -ldflags '$(LDFLAGS)' -o bin/ ./cmd/manager ./cmd/trainer-manager

.PHONY: plugin-archives
plugin-archives: bootstrap ## Build bin/plugin: kubectl datacache for six platforms as archives with LICENSE, and their checksums (about 10 min cold, 1 after).
	@echo "==> plugin-archives: bin/plugin (about 10 min cold, 1 after)"
	@hack/plugin-archives bin/plugin '$(VERSION)' $(PLUGIN_PLATFORMS)

.PHONY: release-version
release-version: release-venv ## Put another version into all files that name it, and its changes into CHANGELOG.md: NEW=v0.2.0 (seconds).
	@hack/release/version '$(NEW)'

.PHONY: release-build
release-build: release-venv ## Make in bin/release all that a release publishes, from the commit that is checked out (about 2 min warm; cold it compiles six platforms).
	@hack/release/release build

.PHONY: release
release: release-venv $(COSIGN) ## Publish what release-build made: images, chart, wheel, plugin, GitHub's release; for the workflow 'release' (RELEASE.md).
	@hack/release/release publish

.PHONY: release-rehearsal
release-rehearsal: release-venv fluid-tools $(if $(DATACACHE_CLUSTER),training-venv) $(COSIGN) ## Make a release twice, compare, publish it into a registry of this machine, install from there alone, and train on the cluster DATACACHE_CLUSTER=DIR if set (about 2 min warm; 1 more with a cluster).
	@hack/bootstrap arm64
	@PLUGIN_PLATFORMS='linux-amd64 linux-arm64' PYTHON=$(PYTHON) HELM=$(FLUID)/bin/ddc-helm hack/release/rehearse $(CACHE)/rehearsal

.PHONY: govulncheck
govulncheck: bootstrap ## Look for known vulnerabilities that our code reaches, in a database on the internet (about 5 min cold).
	@go run golang.org/x/vuln/cmd/govulncheck@$(GOVULNCHECK_VERSION) ./...

.PHONY: generate
generate: venv $(CONTROLLER_GEN) ## Write anew what is generated: the wire's golden files, the DataCache's deep copies and CRD, the runtimes, the dashboards, docs/reference (about 2 min).
	@echo "==> generate: test/golden/wire_*.json, api/v1alpha1, manifests/base/crds, runtimes, dashboards, docs/reference (about 2 min)"
	@$(PYTHON) test/conformance/golden.py write
	@$(CONTROLLER_GEN) object:headerFile=hack/boilerplate.go.txt paths=./api/...
	@$(CONTROLLER_GEN) crd paths=./api/... output:crd:dir=manifests/base/crds
	@go test ./api/... -run CRD -count=1 -update
	@go test ./internal/inject -run 'Twins|Shipped' -count=1 -update
	@go -C hack/monitoring run ./dashboards $(CURDIR)/manifests/components/monitoring/dashboards
	@go test ./cmd/... -run '^TestReference$$' -count=1 -update

.PHONY: fmt
fmt: venv $(LINT) ## Format Go and Python (seconds).
	@echo "==> fmt: gofmt and import order, ruff (seconds)"
	@$(LINT) fmt ./...
	@$(PYTHON) -m ruff format --quiet --config $(PYCONF) $(PYCODE)
	@$(PYTHON) -m ruff check --quiet --config $(PYCONF) --fix-only $(PYCODE)
	@$(PYTHON) -m ruff format --quiet python
	@$(PYTHON) -m ruff check --quiet --fix-only python

.PHONY: lint
lint: venv training-venv examples-venv $(LINT) $(ACTIONLINT) ## Check Go, Python and workflows: golangci-lint, ruff, pyright, actionlint (about 8 min cold, 30 s after).
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

# Packages whose tests run Kubernetes' own programs, which take long to build; test/e2e wants a whole cluster besides.
CLUSTER_PACKAGES := ./test/kit/kubetest ./test/controlplane ./test/gang ./test/install ./test/kueue ./test/plugin ./test/scratch ./test/objectcache/cluster ./test/fluid

# gotest PACKAGES: runs Go tests under the race detector; says at the end what was skipped and why.
define gotest
	@mkdir -p $(REPORTS)
	@CGO_ENABLED=1 $(GOTESTSUM) --format pkgname-and-test-fails --format-hide-empty-pkg --jsonfile $(REPORTS)/$@.json -- \
		-race -timeout=30m $(GOTEST) $(1)
endef

.PHONY: slowest
slowest: # the 40 slowest tests of the last runs of the targets below
	@$(PYTHON3) hack/slowest.py $(REPORTS) 40

# The Python parts run two at a time, since each waits for servers most of the time.
.PHONY: test
test: test-go ## Everything that needs no Kubernetes: go test -race, pytest on the real binary (about 25 min cold, 10 after a change, seconds without).
	@$(MAKE) -j2 --output-sync=line test-docs test-conformance test-loader test-examples

.PHONY: test-go
test-go: venv clients-venv hub-venv browser prometheus $(PROMTOOL) $(GOTESTSUM) ## The Go part of test (about 10 min cold, 4 min after).
	@echo "==> test: go test -race (about 10 min cold, 4 min after)"
	$(call gotest,$$(go list ./... | grep -v -x -F -e $$(go list ./test/e2e) $$(go list $(CLUSTER_PACKAGES) | sed 's/^/-e /')))
	@go -C hack/images test ./...
	@go -C hack/monitoring test ./...

.PHONY: test-pages
test-pages: browser ## The servers' pages in a real browser (about 20 s warm).
	@echo "==> test: the servers' pages in Chromium (about 20 s warm)"
	@go test ./test/pages -count=1 $(GOTEST)

.PHONY: pages
pages: browser ## Take the pictures of docs/watch.md anew: docs/pictures (about 20 s).
	@mkdir -p docs/pictures
	@DATACACHE_PICTURES=$(CURDIR)/docs/pictures go test ./test/pages -count=1 -run '^(TestACacheInItsLife|TestAllCaches)$$'

.PHONY: bench-pages
bench-pages: bootstrap ## What the page of a cache that is read costs, with 0 and with 10 listeners: CPU time of the server (about 1 min).
	@go test ./test/pages -run '^$$' -bench Page -benchtime 1x -count=1

.PHONY: docs
docs: docs-venv ## Build the documentation as a site: bin/site (about 10 s, 20 more the first time; SITE_URL=https://... where it will be).
	@echo "==> docs: bin/site (about 10 s)"
	@$(MKDOCS) --quiet build --clean

.PHONY: docs-serve
docs-serve: docs-venv ## Show the site at http://127.0.0.1:8000 and build it anew at each change, until Ctrl-C.
	@$(MKDOCS) serve --livereload

# What the loader's tests depend on, besides what each target adds.
LOADER_PARTS = ./cmd/cacheserver python $(filter-out test/conformance/test_%,$(wildcard test/conformance/*.py)) hack/kit $(LOCK) $(TRAINING_LOCK)

.PHONY: test-docs
test-docs: build docs venv training-venv ## The pages' part of test: what the site links to and loads, and all Python code of its pages (about 1 min; without that code seconds while nothing changed).
	@echo "==> test: the site and the pages' code (about 1 min)"
	@$(PYTHON) -m pytest test/docs -q -p no:cacheprovider
	@PYTHONPATH=python/src hack/unless-passed $(CACHE)/passed $(LOADER_PARTS) runtimes README.md docs -- \
		$(TRAINING) -m pytest python/tests/test_docs.py -rs --junitxml=$(REPORTS)/$@.xml --rootdir python -c python/pyproject.toml --server $(SERVER) $(PYTEST)

.PHONY: test-go-install
test-go-install: bootstrap ## go install github.com/kubeflow/datacache/cmd/cacheserver@VERSION, from a zip of this checkout and without a network (about 1 min; 3 more cold).
	@echo "==> test: go install from the module's zip (about 1 min; 3 more cold)"
	@go build -o /dev/null ./cmd/cacheserver
	@DATACACHE_GO_INSTALL=1 go test ./test/layout -run '^TestGoInstall$$' -count=1 -v

.PHONY: test-cluster
test-cluster: kube-tools scheduler-tools fluid-tools training-venv prometheus $(GOTESTSUM) ## The control plane on a real API server with stock JobSet, LWS, Trainer and Fluid (about 30 min cold, of which 23 build them; 4 min after).
	@echo "==> test-cluster: go test -race on a real API server (about 5 min cold, 3 min after)"
	$(call gotest,$(CLUSTER_PACKAGES))

.PHONY: size
size: build ## How large the product's code and programs are, and where (seconds); SIZE='-comments 100 -seed 7' draws comments to judge.
	@go run ./hack/size $(SIZE) $(wildcard bin/cacheserver bin/objectcache)

.PHONY: check
check: ## All that CI runs: verify, test, test-cluster, fuzz, demo, go install, release-rehearsal, e2e (about 70 min cold, 40 after; as root).
	@.ci/run

# Left out: the test that measures resident memory, which would measure the emulator's, and the object cache, whose tests run MinIO.
.PHONY: test-arm64
test-arm64: bootstrap ## The data plane's Go tests as arm64, emulated by qemu (about 10 min).
	@hack/bootstrap arm64
	@echo "==> test: the data plane's Go tests as arm64 (about 10 min)"
	@GOARCH=arm64 go test -timeout=30m -exec qemu-aarch64-static -skip '^TestArenaResident$$' $(GOTEST) \
		./cacheserver/... ./objectcache/mirror/... ./internal/redact ./internal/reload

.PHONY: test-conformance
test-conformance: build venv spark-venv $(MINIO) $(CATALOG)/complete $(JAVA_FLIGHT)/complete $(SPARK_JARS)/complete ## The cache server's Python part of test: pyarrow, pyiceberg, DuckDB, Spark and Arrow's Java client against bin/cacheserver (about 5 min; nothing to do while nothing changed).
	@hack/bootstrap clients
	@echo "==> test: pytest against $(SERVER) (about 5 min)"
	@hack/unless-passed $(CACHE)/passed ./cmd/cacheserver ./cmd/objectcache test/conformance test/golden hack/kit hack/spark test/kit/icetest $(LOCK) $(SPARK_LOCK) -- \
		$(PYTHON) -m pytest test/conformance -rs --junitxml=$(REPORTS)/$@.xml --server $(SERVER) --minio $(MINIO) --rest-catalog $(CATALOG) --java-flight $(JAVA_FLIGHT) --spark-jars $(SPARK_JARS) $(PYTEST)
	@echo "==> test: the benches' own arithmetic (seconds)"
	@$(PYTHON) -m pytest test/bench -q -p no:cacheprovider

.PHONY: test-loader
test-loader: build training-venv $(CATALOG)/complete ## The Python loader's part of test, torch and the Kubeflow SDK included (about 4 min; nothing to do while nothing changed).
	@hack/bootstrap clients
	@echo "==> test: the loader against $(SERVER) (about 4 min)"
	@PYTHONPATH=python/src hack/unless-passed $(CACHE)/passed $(LOADER_PARTS) runtimes test/golden -- \
		$(TRAINING) -m pytest python/tests --ignore python/tests/examples --ignore python/tests/nightly --ignore python/tests/test_docs.py -rs --junitxml=$(REPORTS)/$@.xml --rootdir python -c python/pyproject.toml --server $(SERVER) --rest-catalog $(CATALOG) $(PYTEST)

.PHONY: test-examples
test-examples: build examples-venv ## The loader in JAX, Ray Train, TRL, torchtitan, torchft, Megatron and pandas, its notebook, docs/frameworks.md (about 3 min, 1 more the first time; nothing to do while nothing changed).
	@echo "==> test: the loader in JAX, Ray Train, TRL, torchtitan, torchft, Megatron, pandas and a notebook (about 3 min)"
	@PYTHONPATH=python/src hack/unless-passed $(CACHE)/passed $(LOADER_PARTS) runtimes docs/frameworks.md $(EXAMPLES_LOCK) -- \
		$(EXAMPLES) -m pytest python/tests/examples -rs --junitxml=$(REPORTS)/$@.xml --rootdir python -c python/pyproject.toml --server $(SERVER) $(PYTEST)

.PHONY: test-ray
test-ray: build examples-venv ## Ray Train's workers that fail once and start anew (about 1 min; not part of CI, which runs docs/frameworks.md with Ray).
	@RAY_RESTARTS=1 PYTHONPATH=python/src $(EXAMPLES) -m pytest python/tests/examples/test_ray.py -rs --rootdir python -c python/pyproject.toml --server $(SERVER) $(PYTEST)

MEGATRON_BRIDGE := $(CACHE)/tools/megatron-bridge-$(MEGATRON_BRIDGE_VERSION)
.PHONY: test-megatron-bridge
test-megatron-bridge: build examples-venv ## CacheProvider with Megatron-Bridge's own data classes, whose package wants Python 3.12 and CUDA (about 1 min; not part of CI).
	@test -e $(MEGATRON_BRIDGE)/complete || { mkdir -p $(MEGATRON_BRIDGE) && cd $(MEGATRON_BRIDGE) && \
		$(PYTHON) -m pip download --quiet --no-deps --only-binary :all: --python-version 3.12 megatron-bridge==$(MEGATRON_BRIDGE_VERSION) && \
		$(PYTHON) -m zipfile -e *.whl . && touch complete; }
	@MEGATRON_BRIDGE=$(MEGATRON_BRIDGE)/megatron/bridge PYTHONPATH=python/src $(EXAMPLES) -m pytest python/tests/examples/test_megatron.py -k bridge \
		-rs --rootdir python -c python/pyproject.toml --server $(SERVER) $(PYTEST)

NIGHTLY := $(CACHE)/tools/nightly-$(shell sha256sum hack/nightly 2>/dev/null | cut -c1-12)
.PHONY: test-nightly
test-nightly: build examples-venv ## A training step of trainers that CI does not install: Open MPI, DeepSpeed, torchtune, XGBoost, MLX; and JAX on two processes (about 2 min, 1 more the first time; prints NOT TRIED and why where packages can't be had).
	@hack/nightly $(EXAMPLES) $(NIGHTLY)
	@NIGHTLY=$(NIGHTLY) PYTHONPATH=python/src $(EXAMPLES) -m pytest python/tests/nightly python/tests/examples/test_jax.py \
		-rs --rootdir python -c python/pyproject.toml --server $(SERVER) $(PYTEST)

.PHONY: fuzz
fuzz: bootstrap ## Run every fuzz target FUZZ=5000x times each (about 5 min; 8 more cold; FUZZ='--unguided 5000x': about 2).
	@echo "==> fuzz: $(FUZZ) a target (about 5 min; 8 more cold; --unguided about 2)"
	@GOGC=400 GOMEMLIMIT=512MiB hack/fuzz $(FUZZ)

.PHONY: demo
demo: build venv ## Train a small model from one head and two data nodes (about 1 min; 2 more the first time).
	@echo "==> demo: table, head and two data nodes, training (about 1 min; the table is made once)"
	@PYTHONPATH=hack:python/src $(PYTHON) -m demo --server $(SERVER) --cache $(CACHE)/demo $(DEMO)

.PHONY: images
images: kube-tools fluid-tools $(MINIO) ## Build the container images as tarballs, without Docker (about 3 min; 6 more cold).
	@hack/bootstrap cluster
	@hack/images/build $(IMAGES)

.PHONY: cluster
cluster: kube-tools fluid-tools $(MINIO) ## Bring up a real Kubernetes of two nodes on this machine, with datacache and Fluid installed (about 2 min; 25 more cold; as root).
	@DATACACHE_CLUSTER=$(CLUSTER) hack/cluster/cluster up
	@DATACACHE_CLUSTER=$(CLUSTER) hack/cluster/cluster install

.PHONY: cluster-down
cluster-down: ## Stop that cluster and remove all that it made (seconds).
	@DATACACHE_CLUSTER=$(CLUSTER) hack/cluster/cluster down

.PHONY: cluster-check
cluster-check: kube-tools ## Prove that such a cluster leaves nothing behind, killed at any point (about 2 min).
	@hack/cluster/check

.PHONY: demo-cluster
demo-cluster: training-venv cluster ## Train on that cluster with the Kubeflow SDK: logs, rows a second, the parts of the way to the first batch (about 3 min; 30 more cold).
	@echo "==> demo-cluster: a TrainJob on $(CLUSTER) (about 1 min)"
	@DATACACHE_CLUSTER=$(CLUSTER) PYTHONPATH=hack:python/src hack/cluster/cluster run $(TRAINING) -m demo_cluster --image datacache/trainer:dev $(DEMO)

# TestRelease is release-rehearsal's, TestTokensAreRenewed is token-renewals'.
.PHONY: e2e
e2e: training-venv $(GOTESTSUM) $(if $(E2E_KUBECONFIG),,cluster) ## Real training jobs with the Kubeflow SDK, on that cluster or on E2E_KUBECONFIG=FILE's (about 10 min; E2E='-run Kill' for a part).
	@echo "==> e2e: training jobs on $(or $(E2E_KUBECONFIG),$(CLUSTER)) (about 10 min)"
	@mkdir -p $(REPORTS)
	@$(if $(E2E_KUBECONFIG),,DATACACHE_CLUSTER=$(CLUSTER)) $(GOTESTSUM) --format standard-verbose --jsonfile $(REPORTS)/$@.json -- \
		./test/e2e -count=1 -timeout=0 -parallel=6 -skip '^Test(Release|TokensAreRenewed)$$' $(E2E)

.PHONY: lost-machines
lost-machines: training-venv cluster ## Lose LOSSES=10 machines, one after the other, under training jobs on that cluster: seconds to the next batch (about 30 min; part of e2e once).
	@echo "==> lost-machines: $(LOSSES) on $(CLUSTER) (about 3 min each)"
	@DATACACHE_CLUSTER=$(CLUSTER) E2E_LOSSES=$(LOSSES) go test ./test/e2e -count=1 -timeout=0 -v -run '^TestMachinesAreLost$$'

.PHONY: token-renewals
token-renewals: training-venv cluster ## Train on that cluster until tokens that live 10 minutes were renewed RENEWALS=3 times, and try to read from another namespace (about 8 min each).
	@echo "==> token-renewals: $(RENEWALS) on $(CLUSTER) (about 8 min each)"
	@DATACACHE_CLUSTER=$(CLUSTER) E2E_RENEWALS=$(RENEWALS) go test ./test/e2e -count=1 -timeout=0 -v -run '^TestTokensAreRenewed$$'

.PHONY: trainer-cache
trainer-cache: bootstrap ## Build the data cache that ships with Trainer, for bench, where there is cargo (about 15 min, once).
	@test -x $(TRAINER_CACHE)/worker || { echo "==> trainer-cache: building (about 15 min, once)"; hack/trainer-cache $(TRAINER_CACHE); }

.PHONY: bench
bench: build venv trainer-cache ## Print the table of speed and memory beside peers (about 45 min, and 15 the first time; Ctrl-C prints what is measured so far; BENCH='--scale 0.1' for a quick look).
	@echo "==> bench: load, decode, memory, stream, many clients, latency, shuffle (about 45 min on idle cores)"
	@hack/bootstrap clients
	@PATH="$(VENV)/bin:$$PATH" test/bench/run --trainer-cache $(TRAINER_CACHE) $(BENCH)

.PHONY: profile
profile: build venv ## Keep CPU profiles of loads, streams and shuffled epochs and print their parts (about 2 min; PROFILE='--scale 0.1').
	@echo "==> profile: $(CACHE)/profiles (about 2 min)"
	@PATH="$(VENV)/bin:$$PATH" test/bench/profile --out $(CACHE)/profiles $(PROFILE)

.PHONY: bench-loader
bench-loader: build peers-venv ## Print the loader's table beside other loaders (about 30 min; BENCH='--scale 0.2 --repeat 1' for a quick look; 5 min and 8 GB for their environment, once).
	@echo "==> bench-loader: epochs and resumes through to torch (about 30 min on idle cores)"
	@PYTHONPATH=test/bench $(PEERS) -m loaderbench --server $(SERVER) --data $(CACHE)/bench-loader $(BENCH)

.PHONY: bench-mix
bench-mix: build venv ## Print what a mixture of three tables costs beside one table, and how soon it starts (about 1 min).
	@PYTHONPATH=python/src:test/conformance:hack $(PYTHON) test/bench/mix.py --server $(SERVER)

.PHONY: bench-host
bench-host: build venv ## Print what eight ranks of one host cost, each alone and with one reader: with the same rows, and with their own from 64 data nodes (about 5 min, 3 GB of memory; BENCH=--packs for packs).
	@PYTHONPATH=python/src:test/conformance:hack $(PYTHON) test/bench/host.py --server $(SERVER) $(BENCH)

.PHONY: bench-shared
bench-shared: build venv ## Print what epochs cost of a cache on the same machine, by TCP and in shared memory (about 2 min, 3 GB of memory).
	@PYTHONPATH=python/src:test/conformance:hack $(PYTHON) test/bench/shared.py --server $(SERVER) $(BENCH)

.PHONY: bench-take
bench-take: build venv ## Print what a shuffled epoch from 1 to 250 data nodes costs as streams and by row numbers (about 5 min, 4 GB of memory).
	@PYTHONPATH=python/src:test/conformance:hack $(PYTHON) test/bench/take.py --server $(SERVER) $(BENCH)

.PHONY: bench-early
bench-early: build venv ## Print how soon training starts while a cache loads 1,000 row groups from a slow store, in order, with windows and shuffled, beside bars (about 2 min).
	@PYTHONPATH=python/src:test/conformance:hack $(PYTHON) test/bench/early.py --server $(SERVER) $(BENCH)

.PHONY: bench-pack
bench-pack: build examples-venv ## Print how full and how equal packs of tokens are, which rows a resume loses, beside other packings, and what epochs, starts and resumes cost; draw docs/pictures/packs.svg (about 5 min).
	@PYTHONPATH=python/src:test/conformance:test/bench:hack $(EXAMPLES) test/bench/pack.py --server $(SERVER) --picture docs/pictures/packs.svg $(BENCH)

.PHONY: bench-turns
bench-turns: build venv ## Print what loads, streams, epochs and answers cost with BEFORE=BINARY, another version, and with this one, in turns (about 5 min, 4 GB of memory).
	@PYTHONPATH=python/src:test/conformance:test/bench:hack $(PYTHON) test/bench/turns.py --server $(SERVER) --before $(BEFORE) $(BENCH)

.PHONY: bench-known
bench-known: build venv ## Print what known readers cost: new tokens, GetFlightInfo, and as root the first batch over a full round trip (about 1 min).
	@PYTHONPATH=python/src:test/conformance:test/bench:hack $(PYTHON) test/bench/known.py --server $(SERVER)

.PHONY: bench-narrow
bench-narrow: build venv ## Print memory, load and streams of integers in fewer bytes than their type has, and memory and load of uint16 and float16 as files, beside bars (about 3 min, 3 GB of memory).
	@PYTHONPATH=python/src:test/conformance:hack $(PYTHON) test/bench/narrow.py --server $(SERVER) $(BENCH)

.PHONY: bench-spill
bench-spill: build venv ## Print what epochs of a table cost whose rows lie on a local disk, with all, half and a quarter of its bytes as memory (about 3 min, 4 GB of disk).
	@PYTHONPATH=python/src:test/conformance:test/bench:hack $(PYTHON) test/bench/spill.py --server $(SERVER) $(BENCH)

LARGE_GB ?= 8
LARGE_MB ?= 2250
.PHONY: bench-large
bench-large: build venv ## Load a table of LARGE_GB=8 as stored (twice that as Arrow and on disk) with LARGE_MB=2250 of memory for the whole process, read epochs of it, in order and shuffled, and restart it (about 3 min).
	@PYTHONPATH=python/src:test/conformance:test/bench:hack $(PYTHON) test/bench/spill.py --server $(SERVER) --gigabytes $$((2 * $(LARGE_GB))) --limit $(LARGE_MB) --epochs 3 --orders "in order,shuffled" $(BENCH)

.PHONY: bench-put
bench-put: build venv $(MINIO) ## Print what it costs to put rows, with 1, 4 and 16 writers, beside a C++ server that keeps them; the way to the first batch beside that through an Iceberg table; epochs (about 5 min, 3 GB of memory).
	@PYTHONPATH=python/src:test/conformance:test/bench:hack $(PYTHON) test/bench/put.py --server $(SERVER) --minio $(MINIO) $(BENCH)

.PHONY: bench-jobs
bench-jobs: build venv ## Print how one cache is shared among jobs, over loopback and, as root, over a full network; BENCH='--before OTHER_BINARY' compares (about 3 min).
	@PYTHONPATH=python/src:test/conformance:hack $(PYTHON) test/bench/jobs.py --server $(SERVER) $(BENCH)

.PHONY: bench-filters
bench-filters: build venv ## Print what the first request with a filter costs, and what epochs of a selection cost beside the whole table (about 2 min, 3 GB of memory).
	@PYTHONPATH=python/src:test/conformance:hack $(PYTHON) test/bench/filters.py --server $(SERVER)

.PHONY: bench-elastic
bench-elastic: build peers-venv ## Print what loaders lose and repeat of filtered and mixed rows when a training is resumed, also with other ranks (about 3 min).
	@echo "==> bench-elastic: trainings of several processes, stopped half way and resumed (about 3 min)"
	@PYTHONPATH=test/bench:test/conformance:hack:python/src $(PEERS) -m elastic --server $(SERVER) $(BENCH)

.PHONY: bench-worlds
bench-worlds: build training-venv ## Print how long a rank waits for its batch when ranks come and go, over a network with 1 ms round trip; the bar is 50 ms at p99 (about 1 min, as root).
	@PYTHONPATH=python/src:test/bench:test/conformance:hack chrt -r 1 $(TRAINING) test/bench/worlds.py --server $(SERVER)

.PHONY: bench-gpu
bench-gpu: build training-venv ## Print how long training steps wait for batches on the GPU, by each way there (about 3 min; says so where there is no GPU, and fails).
	@PYTHONPATH=python/src:test/conformance:hack $(TRAINING) test/bench/gpu.py --server $(SERVER)

DLIO := $(CACHE)/tools/dlio-$(DLIO_VERSION)
.PHONY: bench-mlperf
bench-mlperf: build training-venv ## Print how many accelerators of MLPerf Storage's flux and dlrm a core feeds, by DLIO's own loop: pyarrow by sample and by row group, and ours (about 12 min, 3 GB of memory, nothing else on the machine; no MLPerf result).
	@hack/venv --over $(TRAINING_VENV) $(MLPERF_VENV) $(MLPERF_LOCK)
	@test -e $(DLIO)/complete || { mkdir -p $(DLIO) && cd $(DLIO) && \
		$(PYTHON3) -m pip download --quiet --no-deps dlio-benchmark==$(DLIO_VERSION) && $(PYTHON3) -m zipfile -e *.whl . && touch complete; }
	@PYTHONPATH=python/src:test/bench:test/conformance:hack:$(DLIO) $(MLPERF) -m mlperf --server $(SERVER) $(BENCH)

.PHONY: bench-objects
bench-objects: build venv $(MINIO) ## Print the object cache's requests per CPU-second beside nginx, what a fleet and OBJECTS=4900000 objects a node take (for docs/scale.md), a 1 GB table read twice (about 25 min).
	@hack/bootstrap nginx
	@echo "==> bench-objects: requests per CPU-second beside nginx (about 5 min)"
	@OBJECTCACHE_SPEED=3s OBJECTCACHE_FLEET=$(MEASURED)/fleet.txt go test ./test/objectcache -run '^Test(Batch|Fleet)?Speed$$' -count=1 -v
	@echo "==> bench-objects: $(OBJECTS) objects on a disk: a start, the index, evictions (about 15 min)"
	@OBJECTCACHE_OBJECTS=$(OBJECTS) OBJECTCACHE_MANY=$(MEASURED)/objects.txt go test ./objectcache/store -run '^TestManyObjects$$' -count=1 -timeout=0 -v
	@echo "==> bench-objects: what a 1 GB table reads from its bucket, and how much when an object cache is lost (about 3 min)"
	@OBJECTCACHE_MB=1000 $(PYTHON) -m pytest test/conformance/test_object_cache.py --server $(SERVER) --minio $(MINIO) -s -k second_load

.PHONY: bench-fluid
bench-fluid: kube-tools fluid-tools training-venv ## Print how long FLUID_CACHES=200 caches of files at once take and their requests; then, on a real cluster, a TrainJob to its first byte, cold and warm (about 12 min; as root).
	@echo "==> bench-fluid: $(FLUID_CACHES) caches at once with Fluid's own controllers (about 4 min)"
	@FLUID_CACHES=$(FLUID_CACHES) go test ./test/fluid -run '^TestFluid$$/^many_at_once$$' -count=1 -timeout=0 -v
	@$(MAKE) cluster
	@echo "==> bench-fluid: TrainJobs to their first byte on $(CLUSTER), $(FLUID_RUNS) times cold and warm (about 6 min)"
	@DATACACHE_CLUSTER=$(CLUSTER) FLUID_RUNS=$(FLUID_RUNS) go test ./test/e2e -run '^TestFluid$$' -count=1 -timeout=0 -v

.PHONY: schedules
schedules: bootstrap ## Run SCHEDULES=10000 seeded schedules of faults against whole caches in one process, on a fake clock, and LARGE=100 with 64 data nodes (about 45 min; CI runs 200 and 3).
	@echo "==> schedules: $(SCHEDULES) on a fake clock; a failure names the SEED that repeats it"
	@GOMAXPROCS=1 GOGC=400 SOAK_SCHEDULES=$(SCHEDULES) go test ./test/soak -run '^TestSchedules$$' -count=1 -timeout=0 -v | sed -u '/^=== /d; /--- PASS: TestSchedules\//d; $${/^FAIL/q1}'
	@echo "==> schedules: $(LARGE) with 64 data nodes"
	@GOMAXPROCS=1 GOGC=400 SOAK_NODES=64 SOAK_SCHEDULES=$(LARGE) go test ./test/soak -run '^TestSchedules$$' -count=1 -timeout=0 -v | sed -u '/^=== /d; /--- PASS: TestSchedules\//d; $${/^FAIL/q1}'

.PHONY: soak
soak: schedules build training-venv ## Run schedules, then real servers that are lost SOAK=200 times under the Python loader, and SOAK times under Go clients (about 90 min; CI runs a few of each).
	@echo "==> soak: $(SOAK) schedules of the loader; a failure names the SEED and --schedule that repeat it (about 5 s each)"
	@PYTHONPATH=python/src $(TRAINING) -m pytest python/tests/test_kills.py python/tests/test_mixture_kills.py -k servers_are_lost --rootdir python -c python/pyproject.toml \
		--server $(SERVER) --thorough $$((($(SOAK) + 5) / 6))
	@echo "==> soak: the reader of a host is killed $(SOAK) times (about 3 s each)"
	@PYTHONPATH=python/src $(TRAINING) -m pytest python/tests/test_host.py -k killed_reader --rootdir python -c python/pyproject.toml --server $(SERVER) --thorough $(SOAK)
	@echo "==> soak: 1,000 histories of ranks that come and go, 10,000 resizes of one loader (about 7 min)"
	@PYTHONPATH=python/src $(TRAINING) -m pytest python/tests/test_resize.py -k "histories or leave_nothing" --rootdir python -c python/pyproject.toml --server $(SERVER) --thorough 125
	@echo "==> soak: $(SOAK) blows at random; the log's SEED repeats a run (about 10 s a blow)"
	@FAULTS_ROUNDS=$(SOAK) go test ./test/faults -run '^TestKillsAtRandom$$' -count=1 -timeout=0 -v
	@echo "==> soak: clients ask upstreams that misbehave at random 2,000 times; a failure names the SEED that repeats it (about 4 min)"
	@UPSTREAM_CASES=2000 go test ./test/faults -run '^TestUpstreamsThatMisbehaveAtRandom$$' -count=1 -timeout=0
	@echo "==> soak: 2,000 random filters beside DuckDB; the SEED at the top repeats it (about 2 min)"
	@SELECTION_FILTERS=2000 $(PYTHON) -m pytest test/conformance/test_selections.py -k random --server $(SERVER)
	@echo "==> soak: 1,000 damaged Parquet files beside pyarrow; the SEED at the top repeats it (about 7 min)"
	@HOSTILE_FILES=1000 $(PYTHON) -m pytest test/conformance/test_hostile_files.py -k mutants --server $(SERVER)
	@echo "==> soak: 10,000 epochs in order version 2; a failure names the SEED that repeats it (about 3 min)"
	@LANES_CASES=10000 go test ./cacheserver/epoch -run '^TestLanesAreExact$$' -count=1 -timeout=0
	@echo "==> soak: files of servers damaged, exchanged and replaced, 200 times in each way; a failure names the SEED that repeats it (about 10 min)"
	@DATACACHE_DAMAGE=200 go test ./cacheserver/node/stage ./objectcache/store ./test/faults -run '^TestDamaged(FilesOfPuts|Folder|SpillFiles)$$' -count=1 -timeout=0
	@echo "==> soak: attacks by clients, four times as large as in make test, and loads with little memory, on 2, 16 and 64 processors"
	@DATACACHE_ATTACK=4 DATACACHE_PROCESSORS=2,16,64 go test ./test/faults -run '^(TestCrowds|TestHostileExchange|TestHalfSentRequests|TestUnreadTakes|TestIdleStreams|TestLoad.*)$$' -count=1 -timeout=30m -v

.PHONY: test-delta
test-delta: build venv delta-venv $(DELTA_JARS)/complete ## Have delta-rs and Spark write Delta tables, DELTA_TABLES=30 of them at random from SEED on, and compare the rows of every version with delta-rs' (about 4 min; not part of CI).
	@DATACACHE_DELTA_PYTHON=$(DELTA) DATACACHE_DELTA_JARS=$(DELTA_JARS) $(PYTHON) -m pytest test/conformance/delta/check_rows.py -s --server $(SERVER) $(PYTEST)

.PHONY: test-folders
test-folders: build venv folders-venv hub-venv ## Have pyarrow, DuckDB, polars, Spark and datasets write FOLDERS=60 random folders each, from SEED on, and compare the rows with pyarrow.dataset's, DuckDB's and load_dataset's (about 5 min; CI writes 6 by pyarrow and DuckDB).
	@DATACACHE_FOLDERS_PYTHON=$(FOLDERS_VENV)/bin/python $(PYTHON) -m pytest test/conformance/test_random_folders.py --server $(SERVER) --folders $(FOLDERS) $(PYTEST)

.PHONY: fuzz-tables
fuzz-tables: build venv ## Write TABLES=1000 random Iceberg tables by hand, from SEED on, have caches serve them, compare the rows with a model's (about 2 min; CI runs 60).
	@PYTHONPATH=test/conformance:hack $(PYTHON) -m fuzz --server $(SERVER) --tables $(TABLES)

.PHONY: fuzz-pruning
fuzz-pruning: build venv $(CATALOG)/complete ## Have Iceberg's Java library write PRUNING=100 random tables of each type, and compare which files it and the cache read for random filters (about 5 min; CI writes 2).
	@$(PYTHON) -m pytest test/conformance/test_pruning.py -rs --server $(SERVER) --rest-catalog $(CATALOG) --pruning $(PRUNING) $(PYTEST)

.PHONY: mutants
mutants: bootstrap ## Build the cache server with one deliberate bug after the other (MUTANTS=100, or all) and have soak's schedules, or the test of the check, find them (about 20 min; CI tries two).
	@echo "==> mutants: deliberate bugs (about 20 min)"
	@MUTANTS=$(MUTANTS) MUTANTS_FIRST=0 go test ./test/soak/mutants -run '^(TestMutants|TestChecks)$$' -count=1 -timeout=0 -v

.PHONY: scale
scale: kube-tools ## Create CACHES=500 TrainJobs with caches, and CLAIMS=10000 pods with scratch volumes at CLAIM_QPS=25, at once: requests each, time, memory (about 20 min; not part of CI, which makes 20 and 60).
	@echo "==> scale: $(CACHES) TrainJobs at once (about 15 min)"
	@CACHES=$(CACHES) go test ./test/controlplane -run '^TestRequestsPerJob$$' -count=1 -timeout=0 -v
	@echo "==> scale: $(CLAIMS) claims at $(CLAIM_QPS) a second, and those of a StatefulSet and of ephemeral volumes (about 10 min)"
	@CLAIMS=$(CLAIMS) CLAIM_QPS=$(CLAIM_QPS) go test ./test/scratch -run '^TestScale$$' -count=1 -timeout=0 -v

.PHONY: scale-model
scale-model: ## Measure a head with 10, 100 and 300 data nodes beside the model of what it costs, and write docs/scale.md (about 1 min).
	@SCALE_PAGE=$(CURDIR)/docs/scale.md go test ./test/scale -run '^TestModel$$' -count=1 -timeout=0

.PHONY: scale-files
scale-files: ## Plan a table and a folder of FILES=100000 files on a store whose requests take 20 ms, the table also with two data nodes: time, CPU and memory a file (about 3 min; CI plans 2,048).
	@SCALE_FILES=$(FILES) go test ./test/scale -run '^TestFiles$$' -count=1 -timeout=0 -v

.PHONY: scale-cluster
scale-cluster: training-venv cluster ## Start a cache of PODS=100 data nodes on that cluster, and write what it takes, and what one of 1,000 would take, for docs/scale.md (about 10 min).
	@DATACACHE_CLUSTER=$(CLUSTER) E2E_PODS=$(PODS) E2E_PODS_PAGE=$(MEASURED)/cluster.txt go test ./test/e2e -count=1 -timeout=0 -v -run '^TestManyPods$$'

.PHONY: verify
verify: generate fmt lint ## What CI wants of a change: generated and formatted files are in the commit, lint is clean (about 1 min).
	@echo "==> verify: nothing changed by generate, fmt and mod tidy (seconds)"
	@go mod tidy -diff
	@git add --intent-to-add . && git diff --exit-code

.PHONY: comments
comments: ## Print 100 comments drawn at random, for somebody to read who did not write them (COMMENTS='--seed 7 --count 20').
	@$(PYTHON3) hack/draw_comments.py $(COMMENTS)

.PHONY: clean
clean: ## Remove bin/ and caches inside the checkout; CLEAN=all also the caches outside it.
	@echo "==> clean: bin and Python caches$(if $(filter all,$(CLEAN)), and $(CACHE))"
	@rm -rf bin .pytest_cache .ruff_cache
	@find hack test -name __pycache__ -type d -prune -exec rm -rf {} +
	@$(if $(filter all,$(CLEAN)),rm -rf $(CACHE),true)
