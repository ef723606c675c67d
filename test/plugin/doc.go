// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package plugin tests the program trainer-manager, which is Trainer with datacache compiled in, in place of the stock Trainer: on a
// real API server, without our webhook.
package plugin
