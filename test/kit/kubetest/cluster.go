// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
)

// Options configures a cluster. Only Tools is required.
type Options struct {
	// Tools is the folder that 'make kube-tools' made; the Makefile passes it in DATACACHE_KUBE.
	Tools string
	// CRDs are manifest files that are installed before the controllers start: the garbage collector takes 30 s to discover kinds
	// that are added later.
	CRDs []string
	// Controllers are additional controllers of kube-controller-manager, by their names in its flag --controllers, besides those that
	// a TrainJob with a cache needs.
	Controllers []string
	// Programs replaces a manager's program, by the manager's name (JobSet, LWS, Trainer): the path of a program with the same flags
	// and permissions, or "" for none. The manager's CRDs, RBAC and webhooks are always installed.
	Programs map[string]string
	// Kueue adds Kueue to the cluster and replaces these fields of its stock configuration. The cluster has no Kueue if it is nil.
	Kueue map[string]any
	// Schedulers is the folder that 'make scheduler-tools' made. With it, kube-scheduler has the plugin Coscheduling, and the cluster has
	// PodGroups; the Makefile passes it in DATACACHE_SCHEDULERS.
	Schedulers string
	// Scheme adds types to Cluster.Client's scheme, which contains the types of Kubernetes, CRDs, Trainer, JobSet and LWS.
	Scheme func(*runtime.Scheme) error
}

// Cluster is a running control plane. It is safe for concurrent use, also by several tests; the caller that started it stops it.
type Cluster struct {
	// Config is the administrator's, without rate limit.
	Config *rest.Config
	// Objects has the administrator's Client, uncached; see Options.Scheme for its types.
	Objects
	// Address is the IPv4 loopback address on which everything listens; a test's own servers may use it too.
	Address string
	// CertDir contains ca.crt, tls.crt and tls.key: a serving certificate for Address and 127.0.0.1, and its CA.
	CertDir string
	// Kubelet simulates the nodes.
	Kubelet *Kubelet

	tools     string
	dir       string // used only by this cluster; Stop removes it
	ca        *authority
	http      *http.Client
	processes *processes
	managers  []*process

	mu    sync.Mutex
	users map[string]string // kubeconfig files, by user and groups
}

// Run starts a cluster, passes it to tests, stops it, and returns the result of tests: an exit code for TestMain. If the cluster
// doesn't start, Run prints the error and returns a failure; tests are never skipped because of that.
func Run(options Options, tests func(*Cluster) int) int {
	ctx := context.Background() //nolint:forbidigo // called from TestMain, which has no context
	began := time.Now()
	c, err := Start(ctx, options)
	if err != nil {
		fmt.Fprintln(os.Stderr, "kubetest:", err)
		return 1
	}
	defer c.Stop()
	fmt.Fprintf(os.Stderr, "kubetest: Kubernetes, JobSet, LWS and Trainer ready on %s after %.1f s\n", c.Address, time.Since(began).Seconds())
	return tests(c)
}

// Start starts a cluster and waits until all programs are serving: 5 to 10 s on an idle machine. The caller calls Stop. An error
// names the program that failed and its last log lines; nothing is left running then.
func Start(ctx context.Context, options Options) (*Cluster, error) {
	if options.Tools == "" {
		return nil, errors.New("Options.Tools is empty: run 'make kube-tools', and the tests by make or with DATACACHE_KUBE=$(make -s print-KUBE)")
	}
	if _, err := os.Stat(filepath.Join(options.Tools, "bin", "kube")); err != nil {
		return nil, fmt.Errorf("the Kubernetes programs are not built, run 'make kube-tools': %w", err)
	}
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "kubetest-")
	if err != nil {
		return nil, err
	}
	c := &Cluster{tools: options.Tools, dir: dir, Address: address, processes: newProcesses(dir), users: map[string]string{}}
	if err := c.start(ctx, options); err != nil {
		c.Stop()
		return nil, err
	}
	return c, nil
}

// identify creates the certificates and the administrator's clients.
func (c *Cluster) identify() error {
	// Trainer looks for certificates only in this path below the folder for temporary files.
	c.CertDir = c.path("tmp/k8s-webhook-server/serving-certs")
	if err := c.writeCertificates(); err != nil {
		return err
	}
	var err error
	if c.Config, err = c.ConfigFor("kubetest-admin", "system:masters"); err != nil {
		return err
	}
	c.http, err = rest.HTTPClientFor(c.Config)
	return err
}

func (c *Cluster) writeCertificates() error {
	var err error
	if c.ca, err = newAuthority(); err != nil {
		return err
	}
	cert, key, err := c.ca.serving(c.Address, "127.0.0.1")
	if err != nil {
		return err
	}
	kubeletCert, kubeletKey, err := c.ca.user("kube-apiserver-kubelet-client", nil)
	if err != nil {
		return err
	}
	_, tokenKey, err := c.ca.user("tokens", nil) // any key will do
	if err != nil {
		return err
	}
	return writeFiles(c.CertDir, map[string][]byte{
		"ca.crt": c.ca.pem, "tls.crt": cert, "tls.key": key,
		"kubelet-client.crt": kubeletCert, "kubelet-client.key": kubeletKey,
		"tokens.key": tokenKey,
	})
}

// start starts the components in the order of their dependencies.
func (c *Cluster) start(ctx context.Context, options Options) error {
	if err := c.identify(); err != nil {
		return err
	}
	if err := c.startStore(ctx); err != nil {
		return err
	}
	scheme, err := NewScheme(options.Scheme)
	if err != nil {
		return err
	}
	if c.Client, err = client.New(c.Config, client.Options{Scheme: scheme}); err != nil {
		return err
	}
	if options.Schedulers != "" {
		options.CRDs = append(slices.Clone(options.CRDs), filepath.Join(options.Schedulers, "manifests", "gangs.yaml"))
	}
	for _, crd := range options.CRDs {
		if err := c.Install(ctx, crd, ""); err != nil {
			return err
		}
	}
	for _, m := range options.managers() {
		if err := c.Install(ctx, c.manifest(m.name), c.webhookAddress(m)); err != nil {
			return err
		}
	}
	if err := c.startControllers(options); err != nil {
		return err
	}
	if err := c.startManagers(options); err != nil {
		return err
	}
	if c.Kubelet, err = startKubelet(ctx, c); err != nil {
		return err
	}
	return c.awaitManagers(ctx, options)
}

// NewScheme returns a scheme of all types of a cluster with Trainer, plus those that more, which may be nil, adds.
func NewScheme(more func(*runtime.Scheme) error) (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	adders := []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, apiextensions.AddToScheme, trainer.AddToScheme, jobset.AddToScheme, lws.AddToScheme,
	}
	if more != nil {
		adders = append(adders, more)
	}
	for _, add := range adders {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	return scheme, nil
}

// Stop ends all programs and removes the cluster's files. The cluster can't be used afterwards.
func (c *Cluster) Stop() {
	if c.Kubelet != nil {
		c.Kubelet.stop()
	}
	c.processes.stop()
	_ = os.RemoveAll(c.dir) // on failure, files stay in the folder for temporary files
}

// ConfigFor returns the configuration of a user in the groups, without rate limit. Except for members of system:masters, users only
// have the permissions of role bindings; a service account is the user "system:serviceaccount:<namespace>:<name>".
func (c *Cluster) ConfigFor(user string, groups ...string) (*rest.Config, error) {
	cert, key, err := c.ca.user(user, groups)
	if err != nil {
		return nil, err
	}
	return &rest.Config{
		Host:            "https://" + net.JoinHostPort(c.Address, apiServerPort),
		TLSClientConfig: rest.TLSClientConfig{CAData: c.ca.pem, CertData: cert, KeyData: key},
		QPS:             -1,
	}, nil
}

// Kubeconfig returns the path of a kubeconfig file for such a user, for programs and the Kubeflow SDK. It exists as long as the
// cluster.
func (c *Cluster) Kubeconfig(user string, groups ...string) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	who := strings.Join(append([]string{user}, groups...), ",")
	if file, made := c.users[who]; made {
		return file, nil
	}
	config, err := c.ConfigFor(user, groups...)
	if err != nil {
		return "", err
	}
	const name = "kubetest"
	file := c.path("kubeconfig-" + strconv.Itoa(len(c.users)))
	err = clientcmd.WriteToFile(clientcmdapi.Config{
		CurrentContext: name,
		Contexts:       map[string]*clientcmdapi.Context{name: {Cluster: name, AuthInfo: name, Namespace: "default"}},
		Clusters:       map[string]*clientcmdapi.Cluster{name: {Server: config.Host, CertificateAuthorityData: config.CAData}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{
			name: {ClientCertificateData: config.CertData, ClientKeyData: config.KeyData},
		},
	}, file)
	c.users[who] = file
	return file, err
}

// Kubectl returns the path of kubectl, of the cluster's version.
func (c *Cluster) Kubectl() string { return c.tool("kubectl") }

// freeAddress returns a random address of 127.0.0.0/8, so that clusters of several test binaries can use the same ports.
func freeAddress() (string, error) {
	var err error
	for range 20 {
		address := fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254))
		var listener net.Listener
		if listener, err = net.Listen("tcp", net.JoinHostPort(address, apiServerPort)); err == nil {
			return address, listener.Close()
		}
	}
	return "", fmt.Errorf("no address of 127.0.0.0/8 has port %s free: %w", apiServerPort, err)
}
