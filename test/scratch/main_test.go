// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package scratch

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/internal/claim"
	"github.com/kubeflow/datacache/test/kit/kubetest"
	"github.com/kubeflow/datacache/test/kit/proctest"
)

const (
	system         = "datacache-scratch-volumes" // the manager's namespace, service account and Lease
	webhookOverlay = "../../manifests/scratch-volumes/webhook"
	policyOverlay  = "../../manifests/scratch-volumes/admission-policy"

	webhookPort = 19460 // ports of the one manager that runs
	probesPort  = 19461
)

var (
	cluster *kubetest.Cluster
	program string // path of the built manager
)

func TestMain(m *testing.M) {
	options := kubetest.Options{
		Tools: os.Getenv("DATACACHE_KUBE"), CRDs: []string{"testdata/workflows.yaml"},
		Controllers: []string{"ephemeral-volume-controller", "persistentvolume-binder-controller", "resourcequota-controller"},
	}
	race := []string{fmt.Sprintf("-race=%v", raceEnabled)}
	os.Exit(kubetest.RunWithProgram(options, "./cmd/manager", race, func(c *kubetest.Cluster, built string) int {
		cluster, program = c, built
		return m.Run()
	}))
}

// TestScratchVolumes runs its tests one after the other, on one manager whose webhook admits pods.
func TestScratchVolumes(t *testing.T) {
	install(t, webhookOverlay)
	takesOver(t) // first, since the manager that it leaves has a high rate
	for name, test := range map[string]func(*testing.T){
		"Kinds": kinds, "OrdinaryVolume": ordinaryVolume, "Restarts": restarts, "Suspended": suspended, "Refused": refused,
		"Quota": quota, "ForeignClaim": foreignClaim, "Stranded": stranded, "Rights": rights,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t)
		})
	}
}

// TestAdmissionPolicy: the API server admits pods by its own policies, without a webhook, and all kinds of jobs get the same claims.
func TestAdmissionPolicy(t *testing.T) {
	install(t, policyOverlay)
	start(t, "--webhook=false", "--claim-qps=100")
	ns := cluster.Namespace(t)
	kubetest.Eventually(t, "the API server to apply both policies", func() error { // it reads each of them some time after its creation
		pod := barePod(ns, "pod")
		if err := cluster.Client.Create(t.Context(), pod, client.DryRunAll); err != nil {
			return err
		}
		if !claim.Gated(pod) {
			return errors.New("a pod with a scratch volume has no gate")
		}
		pod = barePod(ns, "pod")
		pod.Spec.Volumes[0].Ephemeral.VolumeClaimTemplate.Annotations[claim.Mark] = "shared"
		if err := cluster.Client.Create(t.Context(), pod, client.DryRunAll); !apierrors.IsInvalid(err) {
			return errors.Join(errors.New("a pod with a wrong annotation is not rejected as invalid"), err)
		}
		return nil
	})
	kinds(t)
	t.Run("Refused", func(t *testing.T) { refusedWith(t, "must be no more than 253") })
}

// install applies an overlay, except for the Deployment. When the test ends, it deletes the overlay's webhooks and admission policies.
func install(t *testing.T, overlay string) {
	t.Helper()
	objects := cluster.Render(t, overlay)
	text, err := os.ReadFile(objects)
	if err != nil {
		t.Fatal(err)
	}
	var admission []string
	for object := range strings.SplitSeq(string(text), "\n---\n") {
		if strings.Contains(object, "apiVersion: admissionregistration.k8s.io/") {
			admission = append(admission, object)
		}
	}
	admit := filepath.Join(t.TempDir(), "admission.yaml")
	if err := os.WriteFile(admit, []byte(strings.Join(admission, "\n---\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := cluster.Install(t.Context(), objects, at(webhookPort)); err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := cluster.Kubeconfig("kubetest-admin", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if out, err := exec.Command(cluster.Kubectl(), "--kubeconfig="+kubeconfig, "delete", "-f", admit).CombinedOutput(); err != nil {
			t.Errorf("delete the admission of %s: %v\n%s", overlay, err, out)
		}
	})
}

func at(port int) string { return net.JoinHostPort(cluster.Address, strconv.Itoa(port)) }

// start runs a manager and waits until it is ready. There may be only one at a time.
func start(t *testing.T, flags ...string) *proctest.Process {
	t.Helper()
	kubeconfig, err := cluster.Kubeconfig(account, groups...)
	if err != nil {
		t.Fatal(err)
	}
	args := []string{
		"scratch-volumes", "--leader-elect", "--kubeconfig=" + kubeconfig, "--metrics=0", "--probes=" + at(probesPort),
		"--webhook-host=" + cluster.Address, fmt.Sprintf("--webhook-port=%d", webhookPort), "--rotate-certs=false", "--cert-dir=" + cluster.CertDir,
	}
	m := proctest.Start(t, "the manager", os.Environ(), program, append(args, flags...)...)
	kubetest.AwaitReady(t, at(probesPort), m.Alive)
	return m
}
