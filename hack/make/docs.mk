# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Pages, pictures and figures for those who maintain this.

.PHONY: pages
pages: browser ## Take the pictures of docs/watch.md anew: docs/pictures (about 20 s).
	@mkdir -p docs/pictures
	@DATACACHE_PICTURES=$(CURDIR)/docs/pictures go test ./test/pages -count=1 -run '^(TestACacheInItsLife|TestAllCaches)$$'

.PHONY: docs-serve
docs-serve: docs-venv ## Show the site at http://127.0.0.1:8000 and build it anew at each change, until Ctrl-C.
	@$(MKDOCS) serve --livereload

.PHONY: size
size: build ## How large the product's code and programs are, and where (seconds); SIZE='-comments 100 -seed 7' draws comments to judge.
	@go run ./hack/size $(SIZE) $(wildcard bin/cacheserver bin/objectcache)

.PHONY: profile
profile: build venv ## Keep CPU profiles of loads, streams and shuffled epochs and print their parts (about 2 min; PROFILE='--scale 0.1').
	@echo "==> profile: $(CACHE)/profiles (about 2 min)"
	@PATH="$(VENV)/bin:$$PATH" test/bench/profile --out $(CACHE)/profiles $(PROFILE)

.PHONY: comments
comments: ## Print 100 comments drawn at random, for somebody to read who did not write them (COMMENTS='--seed 7 --count 20').
	@$(PYTHON3) hack/draw_comments.py $(COMMENTS)
