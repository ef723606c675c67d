// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
)

func TestStatusURL(t *testing.T) {
	for name, tt := range map[string]struct{ status, job, head, want, err string }{
		"a head":        {head: "train-cache-service:8080", job: "train", want: "http://train-cache-service:8080/status"},
		"a manager":     {status: "http://manager.svc/status/team-a/files", job: "train", head: "train-cache-service:8080", want: "http://manager.svc/status/team-a/files?job=train"},
		"without a job": {status: "http://manager.svc/status/team-a/files", want: "http://manager.svc/status/team-a/files"},
		"no URL":        {status: "manager.svc", err: `--status: "manager.svc"`},
		"no port":       {head: "train", err: "--head"},
		"nothing":       {err: "no cache named"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := statusURL(tt.status, tt.job, tt.head)
			if got != tt.want || tt.err == "" && err != nil || tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)) {
				t.Errorf("the URL is %q (%v), want %q (%q)", got, err, tt.want, tt.err)
			}
		})
	}
}
