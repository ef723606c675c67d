// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"slices"
	"testing"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/internal/wellknown"
	"github.com/kubeflow/datacache/test/kit/hubtest"
)

// hubToken is a token of the hub that may read hubRepo, which others can't see.
const (
	hubToken = "hf_reader"
	hubRepo  = "acme/bert"
	hubText  = "a private model's configuration"
)

// startHub starts a hub with a private model.
func startHub(t *testing.T) *hubtest.Hub {
	t.Helper()
	return hubtest.StartAt(t, ownAddress(t), &hubtest.Repo{
		Kind: "models", ID: hubRepo, Readers: []string{hubToken}, Private: true, Files: map[string]hubtest.File{"config.json": {Text: hubText}},
	})
}

// hubScript reads a file of the hub as huggingface_hub does, by the variables of the environment.
const hubScript = `
import os, sys, time, urllib.error, urllib.request
if "HF_ENDPOINT" not in os.environ:
    sys.exit(print("no mirror"))
request = urllib.request.Request(os.environ["HF_ENDPOINT"] + "/` + hubRepo + `/resolve/main/config.json")
if "HF_TOKEN_PATH" in os.environ:
    request.add_header("Authorization", "Bearer " + open(os.environ["HF_TOKEN_PATH"]).read())
while True:
    try:
        print(urllib.request.urlopen(request, timeout=60).read().decode())
    except urllib.error.HTTPError as error:
        if error.code >= 429:
            time.sleep(1)
            continue
        print("status", error.code)
    break
`

// readHub checks that the webhook of the component hub-mirror, in namespaces with its label, makes a TrainJob's trainer read the hub through
// the mirror, with what the hub shows to the namespace.
func readHub(t *testing.T, own, other string) {
	t.Helper()
	unlabelled := hubJob(t, own, "unlabelled")
	for _, name := range []string{own, other} {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		label := []byte(`{"metadata":{"labels":{"datacache.kubeflow.org/hub-mirror":"enabled"}}}`)
		if err := cluster.Client.Patch(t.Context(), ns, client.RawPatch(types.MergePatchType, label)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{own, other} {
		await(t, "the webhook to be for namespace "+name, func() error { // the API server learns of the label a moment later
			job := newHubJob(name, "nothing")
			err := cluster.Client.Create(t.Context(), job, client.DryRunAll)
			if err == nil && len(job.Spec.Trainer.Env) == 0 {
				err = errors.New("a TrainJob is not changed")
			}
			return err
		})
	}
	reader, stranger := hubJob(t, own, "reader"), hubJob(t, other, "stranger")
	for r, want := range map[*run]string{unlabelled: "no mirror", reader: hubText, stranger: "status 401"} {
		r.ends(t, trainer.TrainJobComplete)
		if lines := r.look(t).Logs[wellknown.NodeName+"-0"]; !slices.Contains(lines, want) {
			t.Errorf("TrainJob %s in %s wrote %q, want %q", r.name, r.namespace, lines, want)
		}
	}
}

// hubJob creates a TrainJob whose trainer runs hubScript.
func hubJob(t *testing.T, namespace, name string) *run {
	t.Helper()
	cluster.Create(t, newHubJob(namespace, name))
	return &run{namespace: namespace, name: name}
}

func newHubJob(namespace, name string) *trainer.TrainJob {
	return &trainer.TrainJob{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: trainer.TrainJobSpec{
			RuntimeRef: trainer.RuntimeRef{Name: "torch-distributed"},
			Trainer:    &trainer.Trainer{Image: new(trainerImage), Command: []string{"python3", "-c", hubScript}, NumNodes: new(int32(1))},
		},
	}
}
