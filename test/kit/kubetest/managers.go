// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// The managers' names, as used in Options.Programs.
const (
	JobSet  = "jobset"
	LWS     = "lws"
	Trainer = "trainer"
	Kueue   = "kueue"
)

// manager describes one of the stock managers.
type manager struct {
	name      string
	namespace string   // namespace in its manifests
	account   string   // its service account
	config    string   // its ConfigMap
	port      int      // of its webhooks
	args      []string // in addition to those of its Deployment
	certs     string   // folder below /etc in which it wants certificates for its metrics, whether it serves these or not; "": none
}

const configFile = "controller_manager_config.yaml" // file in each ConfigMap

var managers = []manager{
	{name: JobSet, namespace: "jobset-system", account: "jobset-controller-manager", config: "jobset-manager-config", port: 19441},
	{name: LWS, namespace: "lws-system", account: "lws-controller-manager", config: "lws-manager-config", port: 19442},
	{name: Trainer, namespace: "kubeflow-system", account: "kubeflow-trainer-controller-manager", config: "kubeflow-trainer-config", port: 19443},
}

// kueue runs without its API server for lists of pending workloads, whose certificates must be at a fixed path.
var kueue = manager{
	name: Kueue, namespace: "kueue-system", account: "kueue-controller-manager", config: "kueue-manager-config", port: 19444,
	args: []string{"--feature-gates=VisibilityOnDemand=false"}, certs: "/etc/kueue/metrics/certs",
}

// withCerts is a script with arguments FOLDER CERTS PROGRAM ARGUMENTS: it runs the program with FOLDER's certificates in CERTS, in an /etc
// of its own. It needs root and a mount namespace.
const withCerts = `mount -t tmpfs none /etc && mkdir -p "$(dirname "$1")" && cp -r "$0" "$1" && shift && exec "$@"`

// managers returns the managers of a cluster with these options.
func (o Options) managers() []manager {
	if o.Kueue == nil {
		return managers
	}
	return append(slices.Clone(managers), kueue)
}

func (c *Cluster) manifest(name string) string {
	return filepath.Join(c.tools, "manifests", name+".yaml")
}

func (c *Cluster) webhookAddress(m manager) string { return c.Address + ":" + strconv.Itoa(m.port) }

// startManagers starts the managers, or the programs that replace them.
func (c *Cluster) startManagers(options Options) error {
	for _, m := range options.managers() {
		program, replaced := options.Programs[m.name]
		if replaced && program == "" {
			continue
		}
		if !replaced {
			program = c.tool(m.name + "-manager")
		}
		var changes map[string]any
		if m.name == Kueue {
			changes = options.Kueue
		}
		if err := c.startManager(m, program, changes); err != nil {
			return err
		}
	}
	return nil
}

// startManager starts one manager with the permissions of its own service account and its stock configuration, with changes. What would
// collide on a single address is replaced too: it has its own port for webhooks, no metrics and no probes. Leader election and certificate
// rotation are disabled.
func (c *Cluster) startManager(m manager, program string, changes map[string]any) error {
	kubeconfig, err := c.Kubeconfig("system:serviceaccount:"+m.namespace+":"+m.account, "system:serviceaccounts", "system:authenticated")
	if err != nil {
		return err
	}
	objects, err := readManifest(c.manifest(m.name))
	if err != nil {
		return err
	}
	stock := ""
	for _, o := range objects {
		if o.GetKind() == "ConfigMap" && o.GetName() == m.config {
			data, _ := o.Object["data"].(map[string]any)
			stock, _ = data[configFile].(string)
		}
	}
	if stock == "" {
		return fmt.Errorf("%s has no ConfigMap %s with %s", c.manifest(m.name), m.config, configFile)
	}
	config := map[string]any{}
	if err := yaml.Unmarshal([]byte(stock), &config); err != nil {
		return fmt.Errorf("the configuration of %s: %w", m.name, err)
	}
	maps.Copy(config, changes)
	config["metrics"] = map[string]any{"bindAddress": "0"}
	config["health"] = map[string]any{"healthProbeBindAddress": "0"}
	config["leaderElection"] = map[string]any{"leaderElect": false}
	if m.name == Trainer { // it looks for its certificates only below $TMPDIR
		config["webhook"] = map[string]any{"host": c.Address, "port": m.port}
		config["certManagement"] = map[string]any{"enable": false}
	} else {
		config["webhook"] = map[string]any{"host": c.Address, "port": m.port, "certDir": c.CertDir}
		config["internalCertManagement"] = map[string]any{"enable": false}
	}
	text, err := yaml.Marshal(config)
	if err != nil {
		return err
	}
	file := c.path(m.name + ".yaml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return err
	}
	args, err := stockArgs(objects, m, file)
	if err != nil {
		return err
	}
	env := []string{"KUBECONFIG=" + kubeconfig, "TMPDIR=" + c.path("tmp")}
	args = append(args, m.args...)
	if m.certs != "" {
		program, args = "unshare", append([]string{"--mount", "sh", "-c", withCerts, c.CertDir, m.certs, program}, args...)
	}
	p, err := c.processes.run(m.name, program, env, args...)
	c.managers = append(c.managers, p)
	return err
}

// stockArgs returns the arguments in a manager's own Deployment, with another configuration file.
func stockArgs(objects []*unstructured.Unstructured, m manager, file string) ([]string, error) {
	at := slices.IndexFunc(objects, func(o *unstructured.Unstructured) bool {
		return o.GetKind() == "Deployment" && o.GetName() == m.account
	})
	if at < 0 {
		return nil, fmt.Errorf("the manifests of %s have no Deployment %s", m.name, m.account)
	}
	deployment := &appsv1.Deployment{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(objects[at].Object, deployment); err != nil {
		return nil, fmt.Errorf("read Deployment %s: %w", m.account, err)
	}
	args := slices.Clone(deployment.Spec.Template.Spec.Containers[0].Args)
	for i, arg := range args {
		if strings.HasPrefix(arg, "--config=") {
			args[i] = "--config=" + file
			return args, nil
		}
	}
	return nil, fmt.Errorf("no argument --config=FILE in Deployment %s: %q", m.account, args)
}

// awaitManagers waits until each running manager responds on every path of its webhooks, and namespaces get their default service
// account.
func (c *Cluster) awaitManagers(ctx context.Context, options Options) error {
	for _, m := range options.managers() {
		if program, replaced := options.Programs[m.name]; replaced && program == "" {
			continue
		}
		objects, err := readManifest(c.manifest(m.name))
		if err != nil {
			return err
		}
		for _, o := range objects {
			urls, err := redirectWebhooks(o, c.webhookAddress(m), c.ca.pem)
			if err != nil {
				return err
			}
			for _, url := range urls {
				err := c.await(ctx, "the webhook at "+url, func(ctx context.Context) error { return c.answers(ctx, url) })
				if err != nil {
					return err
				}
			}
		}
	}
	return c.await(ctx, "the default service account", func(ctx context.Context) error {
		return c.Client.Get(ctx, client.ObjectKey{Namespace: "default", Name: "default"}, &corev1.ServiceAccount{})
	})
}

// answers returns an error unless a server handles webhook calls at the URL: any status but 404 for an empty request.
func (c *Cluster) answers(ctx context.Context, url string) error {
	status, said, err := c.ask(ctx, http.MethodPost, url)
	if err == nil && status == http.StatusNotFound {
		err = fmt.Errorf("%s says %d: %s", url, status, said)
	}
	return err
}

// InstallRuntimes installs stock ClusterTrainingRuntimes of Trainer by name, unmodified: torch-distributed,
// torch-distributed-with-cache, deepspeed-distributed, ... It is idempotent.
func (c *Cluster) InstallRuntimes(ctx context.Context, names ...string) error {
	var known []string
	for _, file := range []string{c.manifest("runtimes"), c.manifest("data-cache")} {
		objects, err := readManifest(file)
		if err != nil {
			return err
		}
		for _, o := range objects {
			if o.GetKind() != "ClusterTrainingRuntime" {
				continue
			}
			known = append(known, o.GetName())
			if !slices.Contains(names, o.GetName()) {
				continue
			}
			if err := c.apply(ctx, o); err != nil {
				return err
			}
		}
	}
	for _, name := range names {
		if !slices.Contains(known, name) {
			return fmt.Errorf("no stock runtime %q: there are %q", name, known)
		}
	}
	return nil
}
