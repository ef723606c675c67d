// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"testing"

	"github.com/kubeflow/datacache/controller/engine"
	"github.com/kubeflow/datacache/test/kit/cachetest"
)

func TestNoticeOf(t *testing.T) {
	t.Parallel()
	for reason, want := range map[string]string{
		"": "", engine.ReasonLoading: "", engine.ReasonLoaded: "", engine.ReasonUnreachable: "", engine.ReasonFailed: "",
		engine.ReasonStarting: "PodsStarting: why", engine.ReasonRefused: "Refused: why", "Unschedulable": "Unschedulable: why", engine.ReasonReleased: "Released: why",
	} {
		dc := cachetest.Minimal()
		setConditions(&dc.Status, engine.Condition{State: "Pending", Reason: reason, Message: "why"}, 1, cachetest.Noon)
		if got := noticeOf(dc); got != want {
			t.Errorf("notice of %q is %q, want %q", reason, got, want)
		}
	}
	if got := noticeOf(cachetest.Minimal()); got != "" {
		t.Errorf("notice of a DataCache without status is %q", got)
	}
}
