// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objectcache

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/kubeflow/datacache/test/kit/hubtest"
	"github.com/kubeflow/datacache/test/kit/stocktest"
)

const tokenizer = `{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null, "pre_tokenizer": {"type": "Whitespace"},
	"post_processor": null, "decoder": null, "model": {"type": "WordLevel", "vocab": {"to": 0, "be": 1, "or": 2, "not": 3, "?": 4}, "unk_token": "?"}}`

// TestHubLibraries reads through transformers, datasets and huggingface_hub's file system, as a pod with a cluster's token.
func TestHubLibraries(t *testing.T) {
	t.Parallel()
	large := content("acme/bert", 0, 20<<20)
	bert := &hubtest.Repo{Kind: "models", ID: "acme/bert", Private: true, Readers: []string{hubToken}, Files: map[string]hubtest.File{
		"config.json":           {Text: `{"model_type": "bert", "vocab_size": 5}`},
		"tokenizer.json":        {Text: tokenizer},
		"tokenizer_config.json": {Text: `{"tokenizer_class": "PreTrainedTokenizerFast"}`},
		"model.safetensors":     {Text: large, LFS: true},
	}}
	data := &hubtest.Repo{Kind: "datasets", ID: "acme/data", Gated: true, Readers: []string{hubToken}, Files: map[string]hubtest.File{
		"train.jsonl": {Text: "{\"text\": \"a\", \"label\": 1}\n{\"text\": \"b\", \"label\": 2}\n", LFS: true},
		"README.md":   {Text: "---\nlicense: mit\n---\n"},
	}}
	hub := hubtest.Start(t, bert, data)
	m := startMirrors(t, 2, hub, "24h")
	rows := []any{map[string]any{"text": "a", "label": 1}, map[string]any{"text": "b", "label": 2}}
	for i, node := range m.nodes {
		got := hubClients(t, node.mirror()+"/hub", token+"\n",
			job{"do": "config", "repo": "acme/bert"},
			job{"do": "streamed", "repo": "acme/bert", "name": "model.safetensors", "start": 8<<20 - 10, "end": 8<<20 + 10},
			job{"do": "entries", "repo": "acme/bert"},
			job{"do": "whoami"},
			job{"do": "file", "repo": "acme/bert", "name": "none", "dir": t.TempDir()},
		)
		wantResult(t, "transformers", got[0], map[string]any{"type": "bert", "tokens": []int{0, 1, 2, 3, 0, 1}})
		wantResult(t, "a range", got[1], sum(large[8<<20-10:8<<20+10]))
		wantResult(t, "the tree", got[2], []string{"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"})
		wantResult(t, "whoami", got[3], "team-a")
		if got[4].Error != "EntryNotFoundError" && got[4].Error != "RemoteEntryNotFoundError" {
			t.Errorf("node %d: a file that is not there: %+v", i, got[4])
		}
	}
	// In a process of its own: transformers and datasets import each other, and can't do so in two threads.
	wantResult(t, "datasets", hubClients(t, m.nodes[1].mirror()+"/hub", token, job{"do": "rows", "repo": "acme/data"})[0], map[string]any{"whole": rows, "stream": rows})
	others := hubClients(t, m.nodes[0].mirror()+"/hub", otherToken, job{"do": "snapshot", "repo": "acme/bert"}, job{"do": "snapshot", "repo": "acme/data", "type": "dataset"})
	if others[0].Error != "RepositoryNotFoundError" || others[1].Error != "GatedRepoError" {
		t.Errorf("another namespace: %+v", others)
	}
	if hub.Saw(token) || hub.Saw(otherToken) {
		t.Error("the hub got the cluster's token")
	}
}

// TestHubTrainerInitializers runs the code of Trainer's initializers as it is in Trainer's release. Only the folder that it downloads to,
// a constant, is another.
func TestHubTrainerInitializers(t *testing.T) {
	t.Parallel()
	python := os.Getenv("DATACACHE_HUB_PYTHON")
	if python == "" {
		t.Skip("DATACACHE_HUB_PYTHON names no Python that has huggingface_hub: run by make, which makes one of hack/python/hub.txt")
	}
	model := private("acme/secret", 9<<20, hubToken)
	model.Files = map[string]hubtest.File{"config.json": {Text: "{}"}, "model.safetensors": {Text: content("m", 0, 9<<20), LFS: true}, "x.bin": {Text: "not asked for"}}
	data := private("acme/data", 0, hubToken)
	data.Kind, data.Files = "datasets", map[string]hubtest.File{"train.parquet": {Text: content("d", 0, 1000), LFS: true}}
	hub := hubtest.Start(t, model, data)
	m := startMirrors(t, 1, hub, "24h")
	endpoint := m.nodes[0].mirror() + "/hub"
	for _, test := range []struct {
		step, repo string
		login      bool // log in with a token of the hub; otherwise the pod's ServiceAccount token is used
		want       map[string]hubtest.File
	}{
		{"model", "acme/secret", false, model.Files}, {"model", "acme/secret", true, model.Files}, {"dataset", "acme/data", false, data.Files}, {"dataset", "acme/data", true, data.Files},
	} {
		home := t.TempDir()
		script := "import runpy, pkg.initializers.utils.utils as u\nu.MODEL_PATH = u.DATASET_PATH = " + `"` + home + `/out"` +
			"\nrunpy.run_module('pkg.initializers." + test.step + "', run_name='__main__')"
		cmd := exec.CommandContext(t.Context(), python, "-c", script)
		cmd.Dir = home
		cmd.Env = []string{
			"PATH=" + os.Getenv("PATH"), "HOME=" + home, "HF_HOME=" + home, "PYTHONPATH=" + stocktest.ModuleDir(t, "github.com/kubeflow/trainer/v2"), "PYTHONDONTWRITEBYTECODE=1",
			"HF_ENDPOINT=" + endpoint, "STORAGE_URI=hf://" + test.repo, "HF_HUB_DISABLE_TELEMETRY=1",
		}
		if test.login {
			cmd.Env = append(cmd.Env, "ACCESS_TOKEN="+hubToken)
		} else {
			cmd.Env = append(cmd.Env, "HF_TOKEN_PATH="+write(t, filepath.Join(home, "t"), token))
		}
		if text, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s, login %v: %v\n%s", test.step, test.login, err, text)
			continue
		}
		for name, f := range test.want {
			got, err := os.ReadFile(filepath.Join(home, "out", name))
			if wanted := name != "x.bin"; wanted && (err != nil || string(got) != f.Text) || !wanted && err == nil {
				t.Errorf("%s, login %v: %s has %d bytes, %v", test.step, test.login, name, len(got), err)
			}
		}
	}
	if n := hub.Requests(http.MethodGet + " /api/whoami-v2"); n == 0 {
		t.Error("nobody logged in at the hub")
	}
}
