// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/wellknown"
	"github.com/kubeflow/datacache/test/kit/kubetest"
	"github.com/kubeflow/datacache/test/kit/proctest"
)

// kubectlPlugin is the plugin's program, and the namespace and user that it is called for.
type kubectlPlugin struct {
	t          *testing.T
	program    string
	kubeconfig string
	namespace  string
}

// buildPlugin builds the plugin, once for all tests, into the folder of the cacheserver that they run.
var buildPlugin = sync.OnceValues(func() (program string, err error) {
	program = filepath.Join(filepath.Dir(cacheserver), "kubectl-datacache")
	return program, kubetest.Build(context.Background(), "../..", "./cmd/kubectl-datacache", program) //nolint:forbidigo // not one test's
})

// pluginFor returns the plugin for an admin in the namespace.
func pluginFor(t *testing.T, namespace string) *kubectlPlugin {
	t.Helper()
	program, err := buildPlugin()
	if err != nil {
		t.Fatal(err)
	}
	admin, err := cluster.Kubeconfig("admin", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	return &kubectlPlugin{t: t, program: program, kubeconfig: admin, namespace: namespace}
}

// call runs the plugin with arguments that are separated by spaces; "" makes an empty one.
func (p *kubectlPlugin) call(args string) (out string, err error) {
	p.t.Helper()
	command := exec.CommandContext(p.t.Context(), p.program, p.arguments(args)...)
	text, err := command.CombinedOutput()
	return string(text), err
}

// arguments are args with flags that name the user and the namespace. What is completed comes last.
func (p *kubectlPlugin) arguments(args string) []string {
	all := strings.Split(args, " ")
	flags := []string{"--kubeconfig=" + p.kubeconfig, "--namespace=" + p.namespace}
	if all[0] == "__complete" {
		return append(append(all[:1:1], flags...), all[1:]...)
	}
	return append(all, flags...)
}

// start starts the plugin. It ends with the test.
func (p *kubectlPlugin) start(args string) *proctest.Process {
	p.t.Helper()
	return proctest.Start(p.t, "kubectl datacache "+args, os.Environ(), p.program, p.arguments(args)...)
}

// interrupt ends the process as Ctrl-C does.
func interrupt(t *testing.T, process *proctest.Process) {
	t.Helper()
	process.Signal(syscall.SIGINT)
	if code := process.Exit(); code != 0 {
		t.Errorf("%s ends with %d after Ctrl-C: %s", process.Name, code, process.Output)
	}
}

// as returns the plugin as another user, with the rules in the namespace.
func (p *kubectlPlugin) as(user string, rules ...rbacv1.PolicyRule) *kubectlPlugin {
	p.t.Helper()
	meta := metav1.ObjectMeta{Namespace: p.namespace, Name: user}
	cluster.Create(p.t, &rbacv1.Role{ObjectMeta: meta, Rules: rules})
	cluster.Create(p.t, &rbacv1.RoleBinding{
		ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: user},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user + "-" + p.namespace}},
	})
	kubeconfig, err := cluster.Kubeconfig(user + "-" + p.namespace)
	if err != nil {
		p.t.Fatal(err)
	}
	return &kubectlPlugin{t: p.t, program: p.program, kubeconfig: kubeconfig, namespace: p.namespace}
}

// TestKubectlPlugin runs the plugin's program against a cache with a real head.
func TestKubectlPlugin(t *testing.T) {
	t.Parallel()
	runtimes(t)
	ns := cluster.Namespace(t)
	cluster.Kubelet.Play(ns, func(pod *corev1.Pod) kubetest.Act {
		return kubetest.Act{Log: pod.Name + " starts\n" + pod.Name + " serves\n"}
	})
	head := served(t, ns, "train")
	cluster.Create(t, cacheJob(ns, "train", table, tableEnv()...))
	cluster.DataCache(t, ns, "train", v1alpha1.StateReady)
	kubetest.Eventually(t, "the pods of the cache and of the step", func() error {
		var pods corev1.PodList
		err := cluster.Client.List(t.Context(), &pods, client.InNamespace(ns))
		running := slices.DeleteFunc(pods.Items, func(pod corev1.Pod) bool { return pod.Status.Phase != corev1.PodRunning })
		if len(running) != 4 {
			return errors.Join(err, fmt.Errorf("%d run, want a head, two data nodes and the step", len(running)))
		}
		return nil
	})
	p := pluginFor(t, ns)
	p.says()
	p.ordersEvents()
	p.logs()
	p.completes()
	p.top(head)
	p.ui()
	p.uiOfAll()
	p.needsRights()
}

// says checks the commands that print what the API server has, and errors.
func (p *kubectlPlugin) says() {
	ns := p.namespace
	for args, parts := range map[string][]string{
		"list":                              {"NAMESPACE", ns, "train", "Ready", "100%", "1,000"},
		"ls --all-namespaces":               {ns},
		"list --state=Ready -o yaml":        {"kind: DataCacheList", "kind: DataCache\n", "table: demo.reviews"},
		"list --state=Failed -o json":       {`"kind": "DataCacheList"`, `"items": []`},
		"status train":                      {"cache       " + ns + "/train", "Ready: Loaded: all 1000 rows are in memory", "table       demo.reviews", "used by     " + ns + "/train"},
		"status train -o json":              {`"kind": "DataCache"`, `"state": "Ready"`},
		"fails: why train":                  {"WAITS  pod train-dataset-initializer-0-0-", "ok     TrainJob " + ns + "/train: active", "ok     ClusterTrainingRuntime " + wellknown.TwinName("torch-distributed"), "ok     DataCache " + ns + "/train: Ready"},
		"fails: why train -o yaml":          {"- blocks: false\n", "subject: TrainJob " + ns + "/train\n"},
		"completion bash":                   {"kubectl-datacache"},
		"help":                              {"kubectl datacache", "why"},
		"fails: why nobody":                 {`"nobody" not found`},
		"fails: status nobody":              {`"nobody" not found`},
		"fails: events nobody":              {`"nobody" not found`},
		"fails: top nobody":                 {`"nobody" not found`},
		"fails: ui nobody":                  {`"nobody" not found`},
		"fails: ui --server=head":           {"--server: name the cache whose server it is"},
		"fails: ui train -A":                {"--all-namespaces: leave out"},
		"fails: list --state=Good":          {`--state: "Good" is none of Pending, `},
		"fails: status train -o wide":       {`"wide" is neither json nor yaml`},
		"fails: status train -wojson":       {"[output watch]"},
		"fails: top train --over=1ms":       {"--over: 1ms is too short"},
		"fails: top train -A":               {"--all-namespaces: leave out"},
		"fails: logs train --server=x":      {`no pod "x" now: name head, node, or one of train-cache-0, train-cache-0-1, train-cache-0-2`},
		"fails: status train --context=any": {`context "any" does not exist`},
	} {
		args, wrong := strings.CutPrefix(args, "fails: ")
		out, err := p.call(args)
		if (err != nil) != wrong {
			p.t.Errorf("kubectl datacache %s: %v\n%s", args, err, out)
		}
		if err := lacks(out, parts); err != nil {
			p.t.Errorf("kubectl datacache %s: %v", args, err)
		}
	}
}

// ordersEvents checks that events are about the cache, its pods and its TrainJob, and in the order of time.
func (p *kubectlPlugin) ordersEvents() {
	cluster.Create(p.t, &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: p.namespace, Name: "other"},
		InvolvedObject: corev1.ObjectReference{Namespace: p.namespace, Kind: "Pod", Name: "train-cache-other-0"}, LastTimestamp: metav1.Now(),
	})
	kubetest.Eventually(p.t, "the events", func() error {
		out, err := p.call("events train")
		return errors.Join(err, lacks(out, []string{"LAST SEEN", "datacache/train", "trainjob/train", "Scheduled", "pod/train-cache-0-1"}))
	})
	out, err := p.call("events train -o json")
	var events corev1.EventList
	if err := errors.Join(err, json.Unmarshal([]byte(out), &events)); err != nil {
		p.t.Fatalf("%v in %s", err, out)
	}
	var last time.Time
	for _, e := range events.Items {
		at := e.LastTimestamp.Time
		switch {
		case e.Series != nil: // it happened again; the other times are those of the first
			at = e.Series.LastObservedTime.Time
		case at.IsZero():
			at = e.EventTime.Time
		}
		if at.Truncate(time.Second).Before(last) { // older events have seconds only
			p.t.Errorf("%s of %s comes after a later event", e.Reason, e.InvolvedObject.Name)
		}
		last = at.Truncate(time.Second)
		if e.InvolvedObject.Name == "train-cache-other-0" {
			p.t.Error("an event of another cache's pod is listed")
		}
	}
}

func (p *kubectlPlugin) logs() {
	for args, want := range map[string]string{
		"logs train":                          "train-cache-0 starts\ntrain-cache-0 serves\n",
		"logs train --tail=1":                 "train-cache-0 serves\n",
		"logs train --server=train-cache-0-2": "train-cache-0-2 starts\ntrain-cache-0-2 serves\n",
		"logs train --server=node --tail=1":   "train-cache-0-1  train-cache-0-1 serves\ntrain-cache-0-2  train-cache-0-2 serves\n",
		"logs train --server=gate --tail=1":   "serves\n",
	} {
		out, err := p.call(args)
		if strings.HasSuffix(args, "gate --tail=1") {
			out = regexp.MustCompile(`^train-dataset-initializer-0-0-\w+ `).ReplaceAllString(out, "")
		}
		if out != want || err != nil {
			p.t.Errorf("kubectl datacache %s gives %q (%v), want %q", args, out, err, want)
		}
	}
	follow := p.start("logs train --server=node --follow")
	kubetest.Eventually(p.t, "the followed logs", func() error {
		return lacks(follow.Output.String(), []string{"train-cache-0-1  train-cache-0-1 serves\n", "train-cache-0-2  train-cache-0-2 serves\n"})
	})
	interrupt(p.t, follow)
}

// completes checks what is completed, also through kubectl, which runs the program by another name.
func (p *kubectlPlugin) completes() {
	for args, parts := range map[string][]string{
		"__complete why ":                    {"train\n"},
		"__complete status ":                 {"train\n"},
		"__complete top ":                    {"train\n"},
		"__complete list --state ":           {"Pending\n", "Released\n"},
		"__complete status train -o ":        {"json\n", "yaml\n"},
		"__complete logs train --server ":    {"head\n", "node\n", "gate\n", "train-cache-0-1\n"},
		"__complete ui train --server ":      {"head\n", "train-cache-0-2\n"},
		"__complete status train --context ": {"kubetest\n"},
		"__complete list --namespace ":       {p.namespace + "\n"},
	} {
		out, err := p.call(args)
		if err := errors.Join(err, lacks(out, parts)); err != nil {
			p.t.Errorf("%s: %v", args, err)
		}
	}
	dir := filepath.Dir(p.program)
	if err := os.Symlink(p.program, filepath.Join(dir, "kubectl_complete-datacache")); err != nil {
		p.t.Fatal(err)
	}
	kubectl := exec.CommandContext(p.t.Context(), cluster.Kubectl(), "__complete", "datacache", "--kubeconfig="+p.kubeconfig, "-n", p.namespace, "status", "")
	kubectl.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
	out, err := kubectl.CombinedOutput()
	if err := errors.Join(err, lacks(string(out), []string{"train\n"})); err != nil {
		p.t.Errorf("completed by kubectl: %v", err)
	}
}

// top checks memory and rates while rank 1 of a job reads.
func (p *kubectlPlugin) top(head string) {
	ctx, cancel := context.WithCancel(p.t.Context())
	ended := make(chan error, 1)
	go func() {
		defer close(ended)
		ended <- readOn(ctx, head)
	}()
	defer func() { cancel(); <-ended }()
	kubetest.Eventually(p.t, "the reader in top", func() error {
		select {
		case err := <-ended:
			p.t.Fatalf("the reader ended: %v", err)
		default:
		}
		out, err := p.call("top train --over=2s -o json")
		var usages []struct {
			State         string
			MemoryLimit   int64
			RowsPerSecond float64
			Nodes         []struct{ Rows int64 }
			Readers       []struct {
				Job                           string
				Rank                          int
				RowsPerSecond, BytesPerSecond float64
			}
		}
		if err := errors.Join(err, json.Unmarshal([]byte(out), &usages)); err != nil {
			return fmt.Errorf("%w in %s", err, out)
		}
		if len(usages) != 1 || len(usages[0].Readers) != 1 || len(usages[0].Nodes) != 2 {
			return errors.New("it has another number of caches, readers or data nodes: " + out)
		}
		u, r := usages[0], usages[0].Readers[0]
		if u.State != "Ready" || u.MemoryLimit <= 0 || u.RowsPerSecond != r.RowsPerSecond || u.Nodes[0].Rows+u.Nodes[1].Rows != tableRows ||
			r.Job != "trial-7" || r.Rank != 1 || r.RowsPerSecond <= 0 || r.BytesPerSecond < 8*r.RowsPerSecond {
			return errors.New("it has " + out)
		}
		return nil
	})
	for args, parts := range map[string][]string{
		"top --over=1s":       {"NAMESPACE", "ROWS/S", p.namespace},
		"top --over=1s train": {"MEMORY", "LIMIT", "DATA NODE", "WHO WAITS", "trial-7", "train-cache-0"},
	} {
		out, err := p.call(args)
		if err := errors.Join(err, lacks(out, parts)); err != nil {
			p.t.Errorf("kubectl datacache %s: %v", args, err)
		}
	}
}

// readOn reads epochs as rank 1 of 2 of the job trial-7 until ctx ends.
func readOn(ctx context.Context, head string) error {
	clients := map[string]flight.Client{}
	defer func() {
		for _, c := range clients {
			_ = c.Close()
		}
	}()
	to := func(address string) (flight.Client, error) {
		if clients[address] == nil {
			c, err := flight.NewClientWithMiddleware(address, nil, nil, grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				return nil, err
			}
			clients[address] = c
		}
		return clients[address], nil
	}
	for epoch := 0; ctx.Err() == nil; epoch++ {
		if err := readEpoch(ctx, head, epoch, to); err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

func readEpoch(ctx context.Context, head string, epoch int, to func(string) (flight.Client, error)) error {
	planner, err := to(head)
	if err != nil {
		return err
	}
	command := fmt.Sprintf(`{"v":1,"kind":"epoch","seed":1,"epoch":%d,"shuffle":false,"global_batch":64,"tail":"pad","rank":1,"world":2,"job":"trial-7"}`, epoch)
	info, err := planner.GetFlightInfo(ctx, &flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: []byte(command)})
	if err != nil {
		return err
	}
	for _, endpoint := range info.Endpoint {
		node, err := to(strings.TrimPrefix(endpoint.Location[0].Uri, "grpc://"))
		if err != nil {
			return err
		}
		stream, err := node.DoGet(ctx, endpoint.Ticket)
		for err == nil {
			_, err = stream.Recv()
		}
		if !errors.Is(err, io.EOF) {
			return err
		}
	}
	return nil
}

// ui checks that the page of the head can be opened, and that Ctrl-C ends it.
func (p *kubectlPlugin) ui() {
	page := p.start("ui train")
	url := addressOf(p.t, page)
	for _, path := range []string{"", "status"} { // several connections
		status, text, err := proctest.Request(p.t.Context(), http.DefaultClient, http.MethodGet, url+path)
		if err != nil || status != http.StatusOK || !strings.Contains(text, "Ready") {
			p.t.Errorf("the page at %s answers %d (%v): %s", url+path, status, err, text)
		}
	}
	interrupt(p.t, page)
}

// addressOf returns the address of the page that the plugin serves, once it has printed it.
func addressOf(t *testing.T, plugin *proctest.Process) (url string) {
	t.Helper()
	kubetest.Eventually(t, "the page's address", func() error {
		if url = regexp.MustCompile(`http://127\.0\.0\.1:\S+`).FindString(plugin.Output.String()); url == "" {
			return errors.New(plugin.Output.String())
		}
		return nil
	})
	return url
}

// uiOfAll checks the page of all caches, for users with a client certificate and no right to forward ports: one who may list the caches
// of the namespace, and one who may list all.
func (p *kubectlPlugin) uiOfAll() {
	get := func(url string, status int, parts ...string) {
		p.t.Helper()
		got, text, err := proctest.Request(p.t.Context(), http.DefaultClient, http.MethodGet, url)
		if err := errors.Join(err, lacks(text, parts)); err != nil || got != status {
			p.t.Errorf("GET %s: %d, want %d: %v", url, got, status, err)
		}
	}
	lister := p.as("lister", rbacv1.PolicyRule{APIGroups: []string{wellknown.Group}, Resources: []string{"datacaches"}, Verbs: []string{"list"}})
	kubetest.Eventually(p.t, "list as lister", func() error { // the role takes effect
		_, err := lister.call("list")
		return err
	})
	row := ">" + p.namespace + "</a>/train"
	page := lister.start("ui")
	url := addressOf(p.t, page)
	get(url, http.StatusOK, row, "1,000", ">Ready 1</a>")
	get(url+"&state=Failed", http.StatusOK, "None is in this state.")
	folder, _, _ := strings.Cut(url, "?")
	get(folder+"page.css", http.StatusOK, ".caches")
	get(folder, http.StatusBadGateway, "cannot list resource \"datacaches\"", "at the cluster scope")
	root, _, _ := strings.Cut(strings.TrimPrefix(folder, "http://"), "/")
	get("http://"+root+"/?namespace="+p.namespace, http.StatusNotFound) // not without the random part
	interrupt(p.t, page)
	if out, err := lister.call("ui -A"); err == nil || !strings.Contains(out, "at the cluster scope") {
		p.t.Errorf("ui -A without the right to list all: %v, %s", err, out)
	}
	all := p.start("ui -A")
	get(addressOf(p.t, all), http.StatusOK, row, "in all namespaces")
	interrupt(p.t, all)
}

// needsRights checks what a user is told who may only read the namespace, and that the right that top names is enough.
func (p *kubectlPlugin) needsRights() {
	rules := []rbacv1.PolicyRule{
		{APIGroups: []string{wellknown.Group}, Resources: []string{"datacaches"}, Verbs: []string{"get", "list"}},
		{APIGroups: []string{""}, Resources: []string{"pods", "events"}, Verbs: []string{"get", "list"}},
	}
	viewer := p.as("viewer", rules...)
	forwarder := p.as("forwarder", append(rules, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods/portforward"}, Verbs: []string{"create"}})...)
	kubetest.Eventually(p.t, "top as forwarder", func() error {
		out, err := forwarder.call("top train --over=1s")
		return errors.Join(err, lacks(out, []string{"train-cache-0"}))
	})
	for args, parts := range map[string][]string{
		"status train": {"Ready"},
		"events train": {"datacache/train"},
		"top":          {p.namespace, "you need the right to create pods/portforward in namespace " + p.namespace},
		"top train":    {`cannot create resource "pods/portforward"`, "you need the right to create pods/portforward in namespace " + p.namespace},
		"ui train":     {"you need the right to create pods/portforward in namespace " + p.namespace},
		"logs train":   {`cannot get resource "pods/log"`},
		"why train":    {`cannot get resource "trainjobs"`},
	} {
		kubetest.Eventually(p.t, args+" as viewer", func() error { // until the role takes effect
			out, err := viewer.call(args)
			if readable := args == "status train" || args == "events train"; readable != (err == nil) {
				return fmt.Errorf("%w: %s", err, out)
			}
			return lacks(out, parts)
		})
	}
}
