// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

// rendered is the object cache with components, by kind and name.
type rendered map[string]*unstructured.Unstructured

// render renders manifests/object-cache with components of manifests/components, and checks that the API server would accept all of it.
func render(t *testing.T, components ...string) rendered {
	t.Helper()
	objects, file := build(t, components...)
	admin, err := cluster.Kubeconfig("admin", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	apply := exec.CommandContext(t.Context(), cluster.Kubectl(), "--kubeconfig", admin, "apply", "--dry-run=server", "-f", file)
	if text, err := apply.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return objects
}

// build renders manifests/object-cache with components of manifests/components into a file, as a user's kustomization does.
func build(t *testing.T, components ...string) (objects rendered, file string) {
	t.Helper()
	manifests, err := filepath.Abs("../../../manifests")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if manifests, err = filepath.Rel(dir, manifests); err != nil { // kustomize accepts no absolute path
		t.Fatal(err)
	}
	folders := []string{}
	for _, name := range components {
		folders = append(folders, filepath.Join(manifests, "components", name))
	}
	text, err := json.Marshal(map[string]any{"resources": []string{filepath.Join(manifests, "object-cache")}, "components": folders})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	file = cluster.Render(t, dir)
	if text, err = os.ReadFile(file); err != nil {
		t.Fatal(err)
	}
	objects = rendered{}
	for document := range bytes.SplitSeq(text, []byte("\n---\n")) {
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(document, &object.Object); err != nil {
			t.Fatal(err)
		}
		objects[object.GetKind()+" "+object.GetName()] = object
	}
	return objects, file
}

// get converts an object, which must be in the namespace of the object cache.
func get[T any](t *testing.T, objects rendered, name string) *T {
	t.Helper()
	object := objects[name]
	if object == nil {
		t.Fatalf("no %s", name)
	}
	if object.GetNamespace() != home {
		t.Errorf("%s is in namespace %q, want %s", name, object.GetNamespace(), home)
	}
	typed := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, typed); err != nil {
		t.Fatal(err)
	}
	return typed
}

// port returns the number of a container's named port.
func port(t *testing.T, c corev1.Container, name string) int32 {
	t.Helper()
	i := slices.IndexFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.Name == name })
	if i < 0 {
		t.Fatalf("container %s has no port %s", c.Name, name)
	}
	return c.Ports[i].ContainerPort
}

// selects checks that a Service selects the pods of a DaemonSet, and no others of the namespace.
func selects(t *testing.T, objects rendered, service, daemonSet string) *corev1.Service {
	t.Helper()
	s := get[corev1.Service](t, objects, "Service "+service)
	for _, name := range []string{"datacache-object-cache", "datacache-envoy"} {
		pods := labels.Set(get[appsv1.DaemonSet](t, objects, "DaemonSet "+name).Spec.Template.Labels)
		if got := labels.SelectorFromSet(s.Spec.Selector).Matches(pods); got != (name == daemonSet) {
			t.Errorf("Service %s selects the pods of %s: %v", service, name, got)
		}
	}
	return s
}

// TestEnvoyComponent checks that the parts of the component agree: addresses, ports and labels.
func TestEnvoyComponent(t *testing.T) {
	t.Parallel()
	objects := render(t, "envoy")
	caches := get[appsv1.DaemonSet](t, objects, "DaemonSet datacache-object-cache").Spec.Template.Spec.Containers[0]
	envoys := get[appsv1.DaemonSet](t, objects, "DaemonSet datacache-envoy").Spec.Template
	envoy := envoys.Spec.Containers[0]
	env := map[string]string{}
	for _, e := range caches.Env {
		env[e.Name] = e.Value
	}
	if env["XDS_LISTEN"] != fmt.Sprintf(":%d", port(t, caches, "xds")) || env["OBJECT_CACHE_DIR"] == "" {
		t.Errorf("the object cache's environment is %v, want XDS_LISTEN at its port xds, beside what it has without Envoy", env)
	}
	if on, err := netip.ParseAddrPort(env["XDS_ENVOY"]); err != nil || int32(on.Port()) != port(t, envoy, "objects") {
		t.Errorf("XDS_ENVOY is %s, want Envoy's port objects, %d", on, port(t, envoy, "objects"))
	}

	config := ""
	for _, volume := range envoys.Spec.Volumes {
		if volume.ConfigMap != nil {
			config = get[corev1.ConfigMap](t, objects, "ConfigMap "+volume.ConfigMap.Name).Data["envoy.yaml"]
		}
	}
	xds := selects(t, objects, "datacache-object-cache-xds", "datacache-object-cache")
	address := fmt.Sprintf("{address: %s.%s.svc, port_value: %d}", xds.Name, xds.Namespace, xds.Spec.Ports[0].Port)
	if !strings.Contains(config, address) || xds.Spec.Ports[0].TargetPort.String() != "xds" {
		t.Errorf("Envoy's configuration lacks %s, or that Service leads to %v", address, &xds.Spec.Ports[0].TargetPort)
	}
	if metrics := fmt.Sprintf("port_value: %d", port(t, envoy, "metrics")); !strings.Contains(config, metrics) {
		t.Errorf("Envoy's configuration lacks %s", metrics)
	}
	selects(t, objects, "datacache-object-cache", "datacache-object-cache") // or Envoys would become members

	policy := get[networkingv1.NetworkPolicy](t, objects, "NetworkPolicy datacache-object-cache").Spec
	for _, p := range caches.Ports {
		open, forEnvoys := false, false
		for _, rule := range policy.Ingress {
			for _, allowed := range rule.Ports {
				if allowed.Port.String() == p.Name {
					open = len(rule.From) == 0
					forEnvoys = !open && labels.SelectorFromSet(rule.From[0].PodSelector.MatchLabels).Matches(labels.Set(envoys.Labels))
				}
			}
		}
		if open == (p.Name == "xds") || forEnvoys != (p.Name == "xds") {
			t.Errorf("port %s is open to all: %v, to Envoys: %v", p.Name, open, forEnvoys)
		}
	}
}

// TestImagesComponent checks that containerd of a node reaches the mirror where the object cache says, and that init container and server use
// the same folder.
func TestImagesComponent(t *testing.T) {
	t.Parallel()
	pod := get[appsv1.DaemonSet](t, render(t, "object-cache-mirrors", "object-cache-images"), "DaemonSet datacache-object-cache").Spec.Template.Spec
	i := slices.IndexFunc(pod.Containers[0].Ports, func(p corev1.ContainerPort) bool { return p.Name == "mirrors" })
	if i < 0 {
		t.Fatal("there is no port mirrors")
	}
	if p := pod.Containers[0].Ports[i]; p.HostPort != p.ContainerPort || p.HostIP != "127.0.0.1" {
		t.Errorf("the mirrors' port is %+v, want the same port at the node's loopback address", p)
	}
	for _, c := range []corev1.Container{pod.InitContainers[0], pod.Containers[0]} {
		mount := slices.IndexFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == "registry-hosts" && !m.ReadOnly })
		if mount < 0 || !slices.Contains(c.Env, corev1.EnvVar{Name: "WRITE_HOSTS", Value: c.VolumeMounts[mount].MountPath}) {
			t.Errorf("container %s does not write to the folder of registry hosts: %v", c.Name, c.Env)
		}
	}
}

// TestTLSComponents checks that the parts of object-cache-tls, envoy and envoy-tls agree. Nothing here knows the kind Certificate.
func TestTLSComponents(t *testing.T) {
	t.Parallel()
	objects, _ := build(t, "envoy", "object-cache-tls", "envoy-tls")
	certificate := objects["Certificate datacache-object-cache"].Object["spec"].(map[string]any)
	names, secret := certificate["dnsNames"].([]any), certificate["secretName"].(string)
	for _, service := range []string{"datacache-object-cache", "datacache-envoy"} {
		s := get[corev1.Service](t, objects, "Service "+service)
		if name := s.Name + "." + s.Namespace + ".svc"; !slices.Contains(names, any(name)) || s.Spec.Ports[0].Port != 443 {
			t.Errorf("Service %s has port %d, and the certificate is for %v", service, s.Spec.Ports[0].Port, names)
		}
	}
	read := map[string]bool{} // paths of the files that the programs are told
	for _, name := range []string{"datacache-object-cache", "datacache-envoy"} {
		pod := get[appsv1.DaemonSet](t, objects, "DaemonSet "+name).Spec.Template.Spec
		volume := slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Secret != nil && v.Secret.SecretName == secret })
		if volume < 0 {
			t.Fatalf("%s has no volume of the Secret %s", name, secret)
		}
		mount := slices.IndexFunc(pod.Containers[0].VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == pod.Volumes[volume].Name })
		if mount < 0 {
			t.Fatalf("%s doesn't mount the Secret", name)
		}
		for _, file := range []string{"tls.crt", "tls.key", "ca.crt"} {
			read[pod.Containers[0].VolumeMounts[mount].MountPath+"/"+file] = true
		}
	}
	env := map[string]string{}
	for _, e := range get[appsv1.DaemonSet](t, objects, "DaemonSet datacache-object-cache").Spec.Template.Spec.Containers[0].Env {
		env[e.Name] = e.Value
	}
	if !read[env["TLS_CERT"]] || !read[env["TLS_KEY"]] || !read[env["TLS_CA"]] {
		t.Errorf("the object cache reads %v, which is not in its volume", env)
	}
	envoys := get[appsv1.DaemonSet](t, objects, "DaemonSet datacache-envoy").Spec.Template.Spec
	if scheme := envoys.Containers[0].ReadinessProbe.HTTPGet.Scheme; scheme != corev1.URISchemeHTTPS {
		t.Errorf("Envoy's readiness probe uses %q, want HTTPS", scheme)
	}
	for _, volume := range envoys.Volumes {
		if volume.ConfigMap == nil {
			continue
		}
		files := get[corev1.ConfigMap](t, objects, "ConfigMap "+volume.ConfigMap.Name).Data
		if files["envoy.yaml"] == "" || !strings.Contains(files["objects.yaml"], "filename: /etc/envoy-tls/tls.crt") || env["XDS_ENVOY_CERT"] != "/etc/envoy/objects.yaml" {
			t.Errorf("Envoy's files are %v, and the object cache names %s", files, env["XDS_ENVOY_CERT"])
		}
	}
}

// TestTrafficOfClients checks how clients reach a pod, with and without the component object-cache-local.
func TestTrafficOfClients(t *testing.T) {
	t.Parallel()
	for name, components := range map[string][]string{"zone": {"envoy"}, "node": {"envoy", "object-cache-local"}, "node alone": {"object-cache-local"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			objects := render(t, components...)
			services := map[string]bool{"datacache-object-cache": true} // every Service by name; true if clients use it
			if components[0] == "envoy" {
				services["datacache-envoy"], services["datacache-object-cache-xds"] = true, false
			}
			for service, forClients := range services {
				spec := get[corev1.Service](t, objects, "Service "+service).Spec
				local := spec.InternalTrafficPolicy != nil && *spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal
				near := spec.TrafficDistribution != nil && *spec.TrafficDistribution == corev1.ServiceTrafficDistributionPreferClose
				if want := forClients && slices.Contains(components, "object-cache-local"); local != want || near == want {
					t.Errorf("Service %s: node-local %v, of the zone %v, want node-local: %v", service, local, near, want)
				}
			}
		})
	}
}
