# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Where tools, environments, programs and results are. Nothing big lands in the checkout; Go keeps its own caches.

CACHE   := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/datacache

LOCK    := hack/python/requirements.txt
venv_of  = $(CACHE)/$(1)-$(shell { $(PYTHON3) -V; cat $(2); } 2>/dev/null | sha256sum | cut -c1-12)
VENV    := $(call venv_of,venv,$(LOCK))
PYTHON  := $(VENV)/bin/python
# Beside it: torch and the Kubeflow SDK, for the loader's adaptors and the end-to-end tests; over that, JAX, Ray, others' trainers, pandas and Jupyter's
# kernel, for the examples; the loaders that the benchmark "loader" compares with, some of which want older packages than ours; clients of the object cache and of
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
DLIO := $(CACHE)/tools/dlio-$(DLIO_VERSION)
MEGATRON_BRIDGE := $(CACHE)/tools/megatron-bridge-$(MEGATRON_BRIDGE_VERSION)

# golangci-lint remembers findings with the paths of the checkout that it saw first: each checkout has its own memory.
export GOLANGCI_LINT_CACHE := $(CACHE)/lint-$(shell pwd | sha256sum | cut -c1-12)
