# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
#
# What a release is made of: RELEASE.md.

# What a release is for: images, and kubectl datacache's archives; .krew.yaml has the same.
export RELEASE_PLATFORMS ?= linux/amd64 linux/arm64
export PLUGIN_PLATFORMS  ?= linux-amd64 linux-arm64 darwin-amd64 darwin-arm64 windows-amd64 windows-arm64

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
