// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strings"
	"testing"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/wellknown"
)

// putRows puts rows like those of sdk/tables.py.
const putRows = `
import os, pathlib
import pyarrow as pa
from kubeflow_datacache import DataCache, put
folder = pathlib.Path("/tmp/credentials")
folder.mkdir()
(folder / "ca.crt").write_text(os.environ["CA"])
(folder / "token").write_text(os.environ["TOKEN"])
os.environ["DATACACHE_CREDENTIALS"] = str(folder)
ids = range(int(os.environ["ROWS"]))
rows = pa.table({"id": pa.array(ids, pa.int64()), "content": [f"review {i} " for i in ids]})
with DataCache.from_env() as cache:
    print("published", put(cache, "words", rows), flush=True)
`

// TestPutAndTrain trains on a dataset that a pod puts into a cache without a table. The TrainJob is there first, and waits.
func TestPutAndTrain(t *testing.T) {
	t.Parallel()
	const rows = 20_000
	ns := namespace(t)
	dc := sharedCache(ns, "", ns)
	dc.Spec.Credentials, dc.Spec.Retention.IdleTTL = nil, nil
	dc.Spec.Arrow.MetadataLocation, dc.Spec.Arrow.Table, dc.Spec.Arrow.Puts = nil, "", &v1alpha1.Puts{Enabled: true}
	cluster.Create(t, dc)
	dc = cluster.DataCache(t, ns, dc.Name, v1alpha1.StateReady)
	j := referring("words", ns, dc.Name+"/words")
	j.Nodes, j.Args = 2, map[string]any{"batch": 100}
	r := train(t, ns, j)
	step := podOf(t, ns, "words-dataset-initializer-0-0", "")
	writes(t, &step, "waiting: for the dataset words, which nobody has put yet")

	env := func(name, value string) corev1.EnvVar { return corev1.EnvVar{Name: name, Value: value} }
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "putter"},
		Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{
			Name: "put", Image: trainerImage, ImagePullPolicy: corev1.PullNever, Command: []string{"python3", "-c", putRows},
			Env: []corev1.EnvVar{
				env("DATACACHE_ENDPOINT", fmt.Sprintf("grpc+tls://%s.%s.svc:50051", wellknown.ServiceName(dc.Name), ns)), env("CA", dc.Status.CABundle),
				env("TOKEN", tokenOf(t, ns, wellknown.Audience(ns, dc.Name), nil)), env("ROWS", fmt.Sprint(rows)),
			},
		}}},
	}
	cluster.Create(t, pod)
	writes(t, pod, "published")
	r.ends(t, trainer.TrainJobComplete)
	readOnce(t, r, r.look(t), 2, rows)
	page, err := podPage(t, ns, "shared-cache-0", "")
	if err != nil || !strings.Contains(string(page), "Datasets that clients put") || !strings.Contains(string(page), "words") {
		t.Errorf("the head's page does not list the dataset (%v): %s", err, page)
	}
}
