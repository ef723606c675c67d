// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package pages tests the pages of head, data node and object cache, and the page of all DataCaches, in a real browser: make test-pages.
package pages
