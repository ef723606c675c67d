// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// nodes maps the simulated nodes to their zones.
var nodes = map[string]string{"node-a": "zone-a", "node-b": "zone-b"}

const (
	askEvery       = 100 * time.Millisecond // interval at which a Play is called for each pod
	kubeletWorkers = 8
)

// Kubelet simulates the kubelets of all nodes: it sets the status of each scheduled pod as the Play of the pod's namespace says.
// Without a Play, every pod is running and ready, and none ends. It is safe for concurrent use.
type Kubelet struct {
	client  kubernetes.Interface
	pods    listers.PodLister
	queue   workqueue.TypedRateLimitingInterface[cache.ObjectName]
	address string // of the nodes
	stop    func() // stops everything and waits

	mu    sync.Mutex
	nodes map[string]bool // that are simulated
	plays map[string]Play
	dial  Dial // nil: no pod listens
	lives map[types.UID]*life
	seen  int // number of pods so far
}

// life is the kubelet's state for one pod, besides the pod's status.
type life struct {
	ip      string
	log     string
	started bool
	ended   bool
}

// Play sets the namespace's Play, for existing and future pods. Nil removes it.
func (k *Kubelet) Play(namespace string, play Play) {
	k.mu.Lock()
	k.plays[namespace] = play
	k.mu.Unlock()
	pods, err := k.pods.Pods(namespace).List(labels.Everything())
	if err != nil {
		panic(err) // an informer's lister returns no errors
	}
	for _, pod := range pods {
		k.queue.Add(cache.MetaObjectToName(pod))
	}
}

// startKubelet creates the nodes, serves their logs and ports and simulates their pods until stop is called.
func startKubelet(ctx context.Context, c *Cluster) (*Kubelet, error) {
	set, err := kubernetes.NewForConfig(c.Config)
	if err != nil {
		return nil, err
	}
	for name, zone := range nodes {
		if err := c.createNode(ctx, name, zone); err != nil {
			return nil, err
		}
	}
	factory := informers.NewSharedInformerFactory(set, 0)
	pods := factory.Core().V1().Pods()
	k := &Kubelet{
		client: set, pods: pods.Lister(), address: c.Address,
		nodes: map[string]bool{}, plays: map[string]Play{}, lives: map[types.UID]*life{},
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[cache.ObjectName](askEvery, time.Second)),
	}
	for name := range nodes {
		k.nodes[name] = true
	}
	if _, err := pods.Informer().AddEventHandler(k.handler()); err != nil {
		return nil, err
	}
	server, err := k.serve(ctx, c)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), pods.Informer().HasSynced) {
		cancel()
		return nil, errors.Join(errors.New("the kubelet could not list the pods"), server.Close())
	}
	var workers sync.WaitGroup
	for range kubeletWorkers {
		workers.Go(func() { k.work(ctx) })
	}
	k.stop = sync.OnceFunc(func() {
		cancel()
		k.queue.ShutDown()
		workers.Wait()
		server.Close()
		factory.Shutdown()
	})
	return k, nil
}

// createNode creates a node that is Ready, has unlimited room, and whose kubelet listens at the cluster's address.
func (c *Cluster) createNode(ctx context.Context, name, zone string) error {
	room := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("100k"), corev1.ResourceMemory: resource.MustParse("1Pi"),
		corev1.ResourceEphemeralStorage: resource.MustParse("1Pi"), corev1.ResourcePods: resource.MustParse("100k"),
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
		corev1.LabelHostname: name, corev1.LabelTopologyZone: zone, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64",
	}}}
	if err := c.Client.Create(ctx, node); err != nil {
		return fmt.Errorf("creating node %s: %w", name, err)
	}
	node.Status = corev1.NodeStatus{
		Capacity: room, Allocatable: room,
		Addresses:       []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: c.Address}},
		DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: kubeletPort}},
		Conditions:      []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"}},
	}
	if err := c.Client.Status().Update(ctx, node); err != nil {
		return fmt.Errorf("reporting node %s: %w", name, err)
	}
	// Admission taints every new node as not ready; the node controller, which would remove the taint, doesn't run.
	if err := c.Client.Patch(ctx, node, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"taints":null}}`))); err != nil {
		return fmt.Errorf("untainting node %s: %w", name, err)
	}
	return nil
}

func (k *Kubelet) handler() cache.ResourceEventHandler {
	add := func(object any) {
		if pod, ok := object.(*corev1.Pod); ok {
			k.queue.Add(cache.MetaObjectToName(pod))
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    add,
		UpdateFunc: func(_, object any) { add(object) },
		DeleteFunc: func(object any) {
			if gone, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = gone.Obj
			}
			if pod, ok := object.(*corev1.Pod); ok {
				k.forget(pod.UID)
			}
		},
	}
}

func (k *Kubelet) work(ctx context.Context) {
	for {
		name, shutdown := k.queue.Get()
		if shutdown {
			return
		}
		again, err := k.sync(ctx, name)
		switch {
		case ctx.Err() != nil:
		case err != nil: // a conflict, or the server is unavailable: retried at the next call
			k.queue.AddRateLimited(name)
		case again:
			k.queue.Forget(name)
			k.queue.AddAfter(name, askEvery)
		default:
			k.queue.Forget(name)
		}
		k.queue.Done(name)
	}
}

// sync updates one pod's status according to its Play; again says whether to call it again.
func (k *Kubelet) sync(ctx context.Context, name cache.ObjectName) (again bool, err error) {
	pod, err := k.pods.Pods(name.Namespace).Get(name.Name)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if !k.simulates(pod.Spec.NodeName) {
		return false, nil // not bound yet, or on a Machine that was lost
	}
	if ended(pod) && pod.DeletionTimestamp == nil {
		return false, nil
	}
	play := k.playOf(pod.Namespace)
	act := Act{}
	if play != nil {
		act = play(pod.DeepCopy())
	}
	if pod.DeletionTimestamp != nil && act.Linger {
		return true, k.report(ctx, pod, act)
	}
	if pod.DeletionTimestamp != nil {
		return false, k.remove(ctx, pod, act)
	}
	return play != nil, k.report(ctx, pod, act)
}

// report writes the status of a pod in the state act, if it differs.
func (k *Kubelet) report(ctx context.Context, pod *corev1.Pod, act Act) error {
	status := statusOf(pod, act, k.address, k.record(pod, act), metav1.Now().Rfc3339Copy())
	if equality.Semantic.DeepEqual(status, pod.Status) {
		return nil
	}
	pod = pod.DeepCopy()
	pod.Status = status
	_, err := k.client.CoreV1().Pods(pod.Namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	return client.IgnoreNotFound(err)
}

// remove ends a pod's containers and deletes the pod, in the two steps that controllers expect.
func (k *Kubelet) remove(ctx context.Context, pod *corev1.Pod, act Act) error {
	if !ended(pod) {
		act.Waiting = ""
		if act.Exit == nil {
			act.Exit = new(int32(exitTerminated))
		}
		if err := k.report(ctx, pod, act); err != nil {
			return err
		}
	}
	err := k.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: new(int64(0)), Preconditions: &metav1.Preconditions{UID: &pod.UID},
	})
	return client.IgnoreNotFound(err)
}

func (k *Kubelet) simulates(node string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.nodes[node]
}

func (k *Kubelet) simulate(node string, on bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.nodes[node] = on
}

func (k *Kubelet) playOf(namespace string) Play {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.plays[namespace]
}

// record stores act's log and restarts for the pod, and returns the pod's IP address.
func (k *Kubelet) record(pod *corev1.Pod, act Act) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	l := k.lives[pod.UID]
	if l == nil {
		l = &life{ip: fmt.Sprintf("10.244.%d.%d", k.seen/250%256, 1+k.seen%250)}
		k.seen++
		k.lives[pod.UID] = l
	}
	if act.IP != "" {
		l.ip = act.IP
	}
	l.log = act.Log
	l.started = l.started || act.Waiting == ""
	l.ended = act.Exit != nil && (pod.DeletionTimestamp != nil || !startsAgain(pod.Spec.RestartPolicy, *act.Exit))
	return l.ip
}

func (k *Kubelet) forget(pod types.UID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.lives, pod)
}
