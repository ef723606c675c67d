// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"cmp"
	"os"
	"path"
	"testing"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/test/kit/hubtest"
)

// TestFolder trains from a folder of Parquet files.
func TestFolder(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	plain := reviews
	plain.Plain = true
	j := cacheJob("folder", "", 2, "loader")
	j.Initializer = "Arrow"
	j.Dataset = map[string]any{
		"source": plain.write(t), "cluster_size": 3,
		"head_cpu": "50m", "head_mem": "128Mi", "worker_cpu": "50m", "worker_mem": "256Mi",
	}
	r := train(t, ns, j)
	r.ends(t, trainer.TrainJobComplete)
	readOnce(t, r, r.look(t), 2, reviews.Rows)
}

// TestHubDataset trains from a gated data set on a hub, with a token in a Secret.
func TestHubDataset(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	hub := hubtest.StartAt(t, ownAddress(t), &hubtest.Repo{Kind: "datasets", ID: "acme/reviews", Gated: true, Readers: []string{hubToken}, Files: hubFiles(t)})
	cluster.Create(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "hub"}, StringData: map[string]string{"HF_TOKEN": hubToken}})
	dc := sharedCache(ns, "", ns)
	dc.Spec.Access = v1alpha1.Access{}
	dc.Spec.Credentials.SecretRef.Name = "hub"
	dc.Spec.Arrow.MetadataLocation, dc.Spec.Arrow.Table = nil, ""
	dc.Spec.Arrow.Source = &v1alpha1.Source{Files: &v1alpha1.FilesSource{URIs: []string{"hf://acme/reviews?split=train"}}}
	dc.Spec.Arrow.Env = []v1alpha1.StoreVariable{{Name: "HF_ENDPOINT", Value: hub.URL}}
	cluster.Create(t, dc)
	j := referring("hub", ns, dc.Name)
	delete(j.Args, "pause")
	r := train(t, ns, j)
	r.ends(t, trainer.TrainJobComplete)
	readOnce(t, r, r.look(t), 1, reviews.Rows)
}

// hubFiles returns the files of reviews as the split train of a data set, with a split test beside it.
func hubFiles(t *testing.T) map[string]hubtest.File {
	t.Helper()
	plain := reviews
	plain.Plain = true
	keys := storeKeys(t)
	store := objstore.New(objstore.Config{S3: objstore.S3{
		Endpoint: cmp.Or(os.Getenv("E2E_STORE"), string(keys["AWS_ENDPOINT_URL"])), Region: string(keys["AWS_REGION"]),
		AccessKeyID: string(keys["AWS_ACCESS_KEY_ID"]), SecretAccessKey: string(keys["AWS_SECRET_ACCESS_KEY"]),
	}})
	files := map[string]hubtest.File{}
	for e, err := range store.List(t.Context(), plain.write(t)) {
		if err != nil {
			t.Fatal(err)
		}
		data, err := store.ReadAtMost(t.Context(), e.URI, 1<<30)
		if err != nil {
			t.Fatal(err)
		}
		files[path.Join("train", path.Base(e.Path))] = hubtest.File{Text: string(data), LFS: true}
	}
	for _, f := range files {
		files["test/first.parquet"] = f
		break
	}
	return files
}
