# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Tools and environments. Other targets call them as needed.

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
peers-venv: bootstrap ## The virtual environment with the loaders that the benchmark "loader" compares with (about 5 min, once).
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

.PHONY: mlperf-venv
mlperf-venv: training-venv # over that, MLPerf Storage's DLIO (about 1 min, once)
	@hack/venv --over $(TRAINING_VENV) $(MLPERF_VENV) $(MLPERF_LOCK)
	@test -e $(DLIO)/complete || { mkdir -p $(DLIO) && cd $(DLIO) && \
		$(PYTHON3) -m pip download --quiet --no-deps dlio-benchmark==$(DLIO_VERSION) && $(PYTHON3) -m zipfile -e *.whl . && touch complete; }

.PHONY: minio
minio: $(MINIO) # an S3 server (about 3 min, once)

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

.PHONY: trainer-cache
trainer-cache: bootstrap ## Build the data cache that ships with Trainer, for bench, where there is cargo (about 15 min, once).
	@test -x $(TRAINER_CACHE)/worker || { echo "==> trainer-cache: building (about 15 min, once)"; hack/trainer-cache $(TRAINER_CACHE); }
