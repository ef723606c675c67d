# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
#
# The parts of test, and what CI and the night run beside them.

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
RENEWALS ?= 3

# Packages whose tests run Kubernetes' own programs, which take long to build; test/e2e wants a whole cluster besides.
CLUSTER_PACKAGES := ./test/kit/kubetest ./test/controlplane ./test/gang ./test/install ./test/kueue ./test/plugin ./test/scratch ./test/objectcache/cluster ./test/fluid

# The packages that take longest, and wait for processes in much of that time, run beside all others.
LONG_PACKAGES := ./test/faults ./test/objectcache

GO_PACKAGES = $(LONG_PACKAGES) $$(go list ./... | grep -v -x -F $$(go list ./test/e2e $(LONG_PACKAGES) $(CLUSTER_PACKAGES) | sed 's/^/-e /'))

# gotest PACKAGES [OPTIONS]: runs Go tests under the race detector; says at the end what was skipped and why. With -short it leaves out what is
# random, long or repeated, which test-night runs.
define gotest
	@mkdir -p $(REPORTS)
	@CGO_ENABLED=1 $(GOTESTSUM) --format pkgname-and-test-fails --format-hide-empty-pkg --jsonfile $(REPORTS)/$@.json -- \
		-race -timeout=30m $(2) $(GOTEST) $(1)
endef

.PHONY: slowest
slowest: # the 40 slowest tests of the last runs of the targets below
	@$(PYTHON3) hack/slowest.py $(REPORTS) 40

.PHONY: test-go
test-go: venv clients-venv hub-venv browser prometheus $(PROMTOOL) $(GOTESTSUM) ## The Go part of test (about 10 min cold, 4 min after).
	@echo "==> test: go test -race (about 10 min cold, 4 min after)"
	$(call gotest,$(GO_PACKAGES),-short)
	@go -C hack/images test ./...
	@go -C hack/monitoring test ./...

.PHONY: test-night
test-night: venv clients-venv hub-venv browser prometheus $(PROMTOOL) $(GOTESTSUM) kube-tools scheduler-tools fluid-tools training-venv ## What test and test-cluster leave out: random, long and repeated tests (about 40 min).
	@echo "==> test: go test -race, all of it (about 20 min)"
	$(call gotest,$(GO_PACKAGES) $(CLUSTER_PACKAGES))
	@$(MAKE) -j2 --output-sync=line test-conformance test-loader NIGHT=1

.PHONY: test-pages
test-pages: browser ## The servers' pages in a real browser (about 20 s warm).
	@echo "==> test: the servers' pages in Chromium (about 20 s warm)"
	@go test ./test/pages -count=1 $(GOTEST)

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
	$(call gotest,$(CLUSTER_PACKAGES),-short)

# What pytest is called with: also by flaky, for any part of it.
CONFORMANCE := $(PYTHON) -m pytest --rootdir test/conformance -c test/conformance/pytest.ini --server $(SERVER) --minio $(MINIO) --rest-catalog $(CATALOG) --java-flight $(JAVA_FLIGHT) --spark-jars $(SPARK_JARS)
LOADER := $(TRAINING) -m pytest --rootdir python -c python/pyproject.toml --server $(SERVER) --rest-catalog $(CATALOG)

.PHONY: flaky
flaky: build venv training-venv clients-venv hub-venv browser prometheus $(PROMTOOL) ## Run TESTS='./cacheserver/... test/conformance/test_wire.py' N=20 times in random order, also with little processor time, and print how often each passed (hours for all; as root).
	@FLAKY_CONFORMANCE='$(CONFORMANCE)' FLAKY_LOADER='$(LOADER)' $(PYTHON3) hack/flaky.py --runs $(or $(N),20) $(or $(TESTS),$(GO_PACKAGES) test/conformance python/tests)

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
		$(CONFORMANCE) test/conformance -m '$(if $(NIGHT),night,not night)' -rs --junitxml=$(REPORTS)/$@$(if $(NIGHT),-night).xml $(PYTEST)
	@echo "==> test: the benches' own arithmetic (seconds)"
	@$(PYTHON) -m pytest test/bench -q -p no:cacheprovider

.PHONY: test-loader
test-loader: build training-venv $(CATALOG)/complete ## The Python loader's part of test, torch and the Kubeflow SDK included (about 4 min; nothing to do while nothing changed).
	@hack/bootstrap clients
	@echo "==> test: the loader against $(SERVER) (about 4 min)"
	@PYTHONPATH=python/src hack/unless-passed $(CACHE)/passed $(LOADER_PARTS) runtimes test/golden -- \
		$(LOADER) python/tests --ignore python/tests/examples --ignore python/tests/trainers --ignore python/tests/test_docs.py -m '$(if $(NIGHT),night,not night)' -rs --junitxml=$(REPORTS)/$@$(if $(NIGHT),-night).xml $(PYTEST)

.PHONY: test-examples
test-examples: build examples-venv ## The loader in JAX, Ray Train, TRL, torchtitan, torchft, Megatron and pandas, its notebook, docs/frameworks.md (about 3 min, 1 more the first time; nothing to do while nothing changed).
	@echo "==> test: the loader in JAX, Ray Train, TRL, torchtitan, torchft, Megatron, pandas and a notebook (about 3 min)"
	@PYTHONPATH=python/src hack/unless-passed $(CACHE)/passed $(LOADER_PARTS) runtimes docs/frameworks.md $(EXAMPLES_LOCK) -- \
		$(EXAMPLES) -m pytest python/tests/examples -rs --junitxml=$(REPORTS)/$@.xml --rootdir python -c python/pyproject.toml --server $(SERVER) $(PYTEST)

.PHONY: test-ray
test-ray: build examples-venv ## Ray Train's workers that fail once and start anew (about 1 min; the night's; CI runs docs/frameworks.md with Ray).
	@RAY_RESTARTS=1 PYTHONPATH=python/src $(EXAMPLES) -m pytest python/tests/examples/test_ray.py -rs --rootdir python -c python/pyproject.toml --server $(SERVER) $(PYTEST)

.PHONY: test-megatron-bridge
test-megatron-bridge: build examples-venv ## CacheProvider with Megatron-Bridge's own data classes, whose package wants Python 3.12 and CUDA (about 1 min; not part of CI).
	@test -e $(MEGATRON_BRIDGE)/complete || { mkdir -p $(MEGATRON_BRIDGE) && cd $(MEGATRON_BRIDGE) && \
		$(PYTHON) -m pip download --quiet --no-deps --only-binary :all: --python-version 3.12 megatron-bridge==$(MEGATRON_BRIDGE_VERSION) && \
		$(PYTHON) -m zipfile -e *.whl . && touch complete; }
	@MEGATRON_BRIDGE=$(MEGATRON_BRIDGE)/megatron/bridge PYTHONPATH=python/src $(EXAMPLES) -m pytest python/tests/examples/test_megatron.py -k bridge \
		-rs --rootdir python -c python/pyproject.toml --server $(SERVER) $(PYTEST)

TRAINERS := $(CACHE)/tools/trainers-$(shell sha256sum hack/python/trainers 2>/dev/null | cut -c1-12)
.PHONY: test-trainers
test-trainers: build examples-venv ## A training step of trainers that CI does not install: Open MPI, DeepSpeed, torchtune, XGBoost, MLX; and JAX on two processes (about 2 min, 1 more the first time; prints NOT TRIED and why where packages can't be had).
	@hack/python/trainers $(EXAMPLES) $(TRAINERS)
	@TRAINERS=$(TRAINERS) PYTHONPATH=python/src $(EXAMPLES) -m pytest python/tests/trainers python/tests/examples/test_jax.py \
		-rs --rootdir python -c python/pyproject.toml --server $(SERVER) $(PYTEST)

.PHONY: fuzz
fuzz: bootstrap ## Run every fuzz target FUZZ=5000x times each (about 5 min; 8 more cold; FUZZ='--unguided 5000x': about 2).
	@echo "==> fuzz: $(FUZZ) a target (about 5 min; 8 more cold; --unguided about 2)"
	@GOGC=400 GOMEMLIMIT=512MiB hack/fuzz $(FUZZ)

.PHONY: schedules
schedules: bootstrap ## Run SCHEDULES=10000 seeded schedules of faults against whole caches in one process, on a fake clock, and LARGE=100 with 64 data nodes (about 45 min; the night runs 1,000 and 10).
	@echo "==> schedules: $(SCHEDULES) on a fake clock; a failure names the SEED that repeats it"
	@GOMAXPROCS=1 GOGC=400 SOAK_SCHEDULES=$(SCHEDULES) go test ./test/soak -run '^TestSchedules$$' -count=1 -timeout=0 -v | sed -u '/^=== /d; /--- PASS: TestSchedules\//d; $${/^FAIL/q1}'
	@echo "==> schedules: $(LARGE) with 64 data nodes"
	@GOMAXPROCS=1 GOGC=400 SOAK_NODES=64 SOAK_SCHEDULES=$(LARGE) go test ./test/soak -run '^TestSchedules$$' -count=1 -timeout=0 -v | sed -u '/^=== /d; /--- PASS: TestSchedules\//d; $${/^FAIL/q1}'

.PHONY: soak
soak: schedules build training-venv ## Run schedules, then real servers that are lost SOAK=200 times under the Python loader, and SOAK times under Go clients (about 90 min; CI runs a few of each but schedules).
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
mutants: bootstrap ## Build the cache server with one deliberate bug after the other (MUTANTS=100, or all) and have soak's schedules, or the test of the check, find them (about 20 min; the night's; CI checks that each can be made).
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
