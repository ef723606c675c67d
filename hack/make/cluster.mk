# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
#
# A real Kubernetes on this machine, and what runs on it.

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
# What CI runs: train by the SDK and the proposal's sample client, BERT, a lost machine, known readers, put and train, install and upgrade.
E2E_CI := ^Test(SampleClient|BERT|NodeIsLost|SharedCache|PutAndTrain|Chart)$$

.PHONY: e2e-ci
e2e-ci: E2E := -run '$(E2E_CI)'
e2e-ci: e2e ## The six tests of e2e that CI runs (about 8 min).

.PHONY: e2e
e2e: training-venv $(GOTESTSUM) $(if $(E2E_KUBECONFIG),,cluster) ## Real training jobs with the Kubeflow SDK, on that cluster or on E2E_KUBECONFIG=FILE's (about 25 min; E2E='-run Kill' for a part).
	@echo "==> e2e: training jobs on $(or $(E2E_KUBECONFIG),$(CLUSTER)) (about 25 min; CI's six tests 8)"
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

.PHONY: scale-cluster
scale-cluster: training-venv cluster ## Start a cache of PODS=100 data nodes on that cluster, and write what it takes, and what one of 1,000 would take, for docs/scale.md (about 10 min).
	@DATACACHE_CLUSTER=$(CLUSTER) E2E_PODS=$(PODS) E2E_PODS_PAGE=$(MEASURED)/cluster.txt go test ./test/e2e -count=1 -timeout=0 -v -run '^TestManyPods$$'
