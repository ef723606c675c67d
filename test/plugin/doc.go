// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package plugin holds the tests of the program trainer-manager, Trainer with datacache compiled in, in the place of the stock Trainer:
// on a real API server, without our webhook.
package plugin
