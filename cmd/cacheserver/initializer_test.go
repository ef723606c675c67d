// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kubeflow/datacache/cacheserver/wait"
)

func TestHeadsOf(t *testing.T) {
	for name, tt := range map[string]struct{ status, pod, head, want, err string }{
		"a head":              {head: "train-cache-service:8080", pod: "8f0c", want: "[{ http://train-cache-service:8080/status}]"},
		"a head with a name":  {head: "web=10.0.0.1:80", want: "[{web http://10.0.0.1:80/status}]"},
		"two heads":           {head: "web=10.0.0.1:80,b/code=[::1]:81", want: "[{web http://10.0.0.1:80/status} {b/code http://[::1]:81/status}]"},
		"a manager":           {status: "http://manager.svc/status/team-a/files", pod: "8f0c", head: "train-cache-service:8080", want: "[{ http://manager.svc/status/team-a/files?pod=8f0c}]"},
		"without a pod":       {status: "http://manager.svc/status/team-a/files", want: "[{ http://manager.svc/status/team-a/files}]"},
		"no URL":              {status: "manager.svc", err: `--status: "manager.svc"`},
		"no port":             {head: "train", err: "--head"},
		"nothing":             {err: "no cache named"},
		"two without a name":  {head: "web=10.0.0.1:80,10.0.0.1:81", err: `--head: "10.0.0.1:81"`},
		"two of one name":     {head: "web=10.0.0.1:80,web=10.0.0.1:81", err: `--head: "web=10.0.0.1:81"`},
		"no port of a second": {head: "web=10.0.0.1:80,code=10.0.0.1", err: "--head"},
	} {
		t.Run(name, func(t *testing.T) {
			heads, err := headsOf(tt.status, tt.pod, tt.head)
			var of []string
			for _, h := range heads {
				of = append(of, fmt.Sprintf("{%s %s}", h.Name, h.URL))
			}
			got := fmt.Sprint(of)
			if tt.err == "" && (err != nil || got != tt.want) || tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)) {
				t.Errorf("the heads are %s (%v), want %s (%q)", got, err, tt.want, tt.err)
			}
		})
	}
}

// TestSetDatasets checks for which dataset of each cache the step waits.
func TestSetDatasets(t *testing.T) {
	const derive = `{"dataset":"tok","image":"tok:3"}`
	for name, tt := range map[string]struct{ uri, status, derive, want string }{
		"a table":                          {uri: "cache://web/a"},
		"a dataset made of a table":        {uri: "cache://web/a", derive: derive, want: "tok"},
		"a table that variables name":      {derive: derive, want: "tok"},
		"a DataCache":                      {uri: "datacache://web", derive: derive},
		"a dataset of a DataCache":         {uri: "datacache://team-b/web/ids", derive: derive, want: "ids"},
		"a cache of files, which has none": {uri: "fluid+s3://b/f", status: "http://manager.svc/status/team-a/files", derive: derive},
	} {
		t.Run(name, func(t *testing.T) {
			vars := map[string]string{"STORAGE_URI": tt.uri, "CACHE_STATUS": tt.status, "DERIVE": tt.derive}
			heads := []wait.Head{{}}
			if setDatasets(heads, func(name string) string { return vars[name] }); heads[0].Dataset != tt.want {
				t.Errorf("it waits for %q, want %q", heads[0].Dataset, tt.want)
			}
		})
	}
}

// TestJobsHead checks where the step looks for the caches of its TrainJob.
func TestJobsHead(t *testing.T) {
	for uri, want := range map[string]string{
		"":                              "train-cache-service:8080",
		"cache://web/a,b":               "train-cache-service:8080",
		"datacache://web":               "train-cache-service:8080",
		"datacache://code,team-b/books": "code=train-cache-service-5694d08a:8080,team-b/books=train-cache-service-dbd1502b:8080",
	} {
		vars := map[string]string{"TRAIN_JOB_NAME": "train", "STORAGE_URI": uri}
		if got := jobsHead(func(name string) string { return vars[name] }); got != want {
			t.Errorf("%q: the heads are %s, want %s", uri, got, want)
		}
	}
}
