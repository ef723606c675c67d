# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
#
# What the target bench of the Makefile needs: test/bench/benches.toml has all benchmarks, whose commands use these variables.

export VENV PYTHON TRAINING EXAMPLES PEERS MLPERF MINIO SERVER CACHE CLUSTER TRAINER_CACHE DLIO BENCH BEFORE

ifneq ($(filter bench,$(MAKECMDGOALS)),)
BENCH_NEEDS := $(if $(NAME),$(shell $(PYTHON3) hack/make/benches.py needs '$(NAME)'))
endif
