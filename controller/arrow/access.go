// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package arrow

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"slices"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/controller/heads"
	"github.com/kubeflow/datacache/controller/issuer"
	"github.com/kubeflow/datacache/controller/kube"
	"github.com/kubeflow/datacache/controller/podstate"
	"github.com/kubeflow/datacache/controller/workload"
	"github.com/kubeflow/datacache/internal/authority"
	"github.com/kubeflow/datacache/internal/wellknown"
)

// keepSecret makes the cache's authority and the Secret with its private key before pods are created that need them, and again if somebody
// deleted the Secret and a pod waits for it: then all pods are deleted, since those with another key could not authenticate to the new ones.
// The certificate is in the status first, so that whoever sees a Secret's pods knows how to check them. changed says that there is another
// one; a controller that is stopped in between leaves a certificate without a Secret, and the next one makes both again.
func (e *Engine) keepSecret(ctx context.Context, dc *v1alpha1.DataCache, want *lws.LeaderWorkerSet) (changed bool, err error) {
	set := &lws.LeaderWorkerSet{}
	err = e.Client.Get(ctx, client.ObjectKeyFromObject(want), set)
	switch {
	case apierrors.IsNotFound(err), err == nil && kube.ReplacesTemplate(set, want):
		if dc.Status.CABundle != "" {
			if lacks, err := e.lacksSecret(ctx, dc, kube.SecretName(dc)); err != nil || !lacks {
				return false, err
			}
		}
		return true, e.makeSecret(ctx, dc)
	case err != nil:
		return false, fmt.Errorf("start DataCache %s: %w", kube.Qualified(dc), err)
	}
	pods, err := e.pods(ctx, dc)
	name := workload.SecretOf(set)
	if err != nil || !podstate.LacksSecret(pods, name) {
		return false, err
	}
	if lacks, err := e.lacksSecret(ctx, dc, name); err != nil || !lacks {
		return false, err
	}
	return false, e.Release(ctx, dc)
}

// lacksSecret reports whether a Secret of the cache does not exist. The controller has no right to read
// Secrets, so it asks the API server by a dry run whether it could create this one.
func (e *Engine) lacksSecret(ctx context.Context, dc *v1alpha1.DataCache, name string) (bool, error) {
	probe := workload.Secret(dc, "", nil, nil)
	probe.Name = name
	err := e.Client.Create(ctx, probe, client.DryRunAll)
	if apierrors.IsAlreadyExists(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for Secret %s: %w", name, err)
	}
	return true, nil
}

// makeSecret writes the certificate of a new authority to the cache's status, then the Secret.
func (e *Engine) makeSecret(ctx context.Context, dc *v1alpha1.DataCache) error {
	certificate, private, err := authority.New(dc.Name, e.Now())
	if err != nil {
		return err
	}
	key := make([]byte, 32)
	if _, err := rand.Read(key); err != nil {
		return fmt.Errorf("make the cache's key: %w", err)
	}
	old := dc.DeepCopy()
	dc.Status.CABundle = string(certificate)
	if err := e.Client.Status().Patch(ctx, dc, client.MergeFromWithOptions(old, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("write the authority of DataCache %s: %w", kube.Qualified(dc), err)
	}
	if err := e.Client.Create(ctx, workload.Secret(dc, hex.EncodeToString(key), certificate, private)); err != nil {
		return fmt.Errorf("create Secret %s: %w", kube.SecretName(dc), err)
	}
	return nil
}

// accessOf returns whom the cache's servers are to serve. A reader that can't be checked is not served: without keys, a cache for known readers
// serves nobody.
func (e *Engine) accessOf(ctx context.Context, dc *v1alpha1.DataCache) (access workload.Access, err error) {
	access = workload.Access{
		Rows: cmp.Or(dc.Spec.TLS.Rows, v1alpha1.RowsTLS), Accounts: slices.Sorted(slices.Values(dc.Spec.Access.Accounts)),
		Audiences: []string{wellknown.Audience(dc.Namespace, dc.Name)},
	}
	if placement := dc.Labels[wellknown.LabelPlacement]; placement != "" && kube.JobOf(dc) != nil {
		access.Audiences = append(access.Audiences, wellknown.PlacementAudience(placement))
	}
	config := &corev1.ConfigMap{}
	err = e.Client.Get(ctx, types.NamespacedName{Namespace: dc.Namespace, Name: kube.AccessName(dc.Name)}, config)
	if client.IgnoreNotFound(err) != nil {
		return access, fmt.Errorf("get ConfigMap %s: %w", kube.AccessName(dc.Name), err)
	}
	before := workload.AccessIn(config)
	if access.Readers, err = e.readersOf(ctx, dc, before.Readers); err != nil {
		return access, err
	}
	access.Writers = workload.Writers(dc, access.Readers)
	if access.Namespaces, err = e.namespacesOf(ctx, dc, access.Readers); err != nil {
		return access, err
	}
	if access.Jobs, err = e.namesOf(ctx, dc); err != nil {
		return access, err
	}
	own := e.Keys.Current(ctx).Issuer
	if own.URL == "" { // not known yet: as an earlier leader wrote it
		if at := slices.IndexFunc(before.Issuers, func(i workload.Issuer) bool { return i.Audience == "" }); at >= 0 {
			own = before.Issuers[at]
		}
	}
	if dc.Spec.Arrow.ObjectCache != nil {
		access.ObjectCacheCA = e.ObjectCacheCA.Current(ctx, before.ObjectCacheCA)
	}
	access.Issuers, _ = issuer.All(own, dc.Spec.Access.Issuers) // accessConditions have the error
	return access, nil
}

// readersOf returns whom the cache serves: as its spec says, else as it began. The manager's setting is for caches whose pods start now.
func (e *Engine) readersOf(ctx context.Context, dc *v1alpha1.DataCache, began v1alpha1.Readers) (v1alpha1.Readers, error) {
	if e.NoAnyone {
		return v1alpha1.ReadersKnown, nil
	}
	if dc.Spec.Access.Readers != "" {
		return dc.Spec.Access.Readers, nil
	}
	set, err := e.find(ctx, dc)
	if err != nil {
		return "", err
	}
	if set != nil && began != "" {
		return began, nil
	}
	return e.Readers, nil
}

// namespacesOf returns the namespaces whose accounts may read. Those that a selector chooses are listed only for a cache that checks them.
func (e *Engine) namespacesOf(ctx context.Context, dc *v1alpha1.DataCache, readers v1alpha1.Readers) ([]string, error) {
	names := []string{dc.Namespace}
	switch chosen := dc.Spec.Access.Namespaces; {
	case chosen.From == v1alpha1.AccessNames:
		names = append(names, chosen.Names...)
	case chosen.From == v1alpha1.AccessSelector && readers == v1alpha1.ReadersKnown:
		selector, err := metav1.LabelSelectorAsSelector(chosen.Selector)
		if err != nil {
			return nil, fmt.Errorf("access.namespaces.selector: %w", err)
		}
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NamespaceList"))
		if err := e.Live.List(ctx, list, client.MatchingLabelsSelector{Selector: selector}); err != nil {
			return nil, fmt.Errorf("list the namespaces that access.namespaces.selector chooses (where the manager may not, choose them from: Names): %w", err)
		}
		for i := range list.Items {
			names = append(names, list.Items[i].Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// namesOf returns the names of the TrainJobs that use the cache and whose tokens were made before they had one.
func (e *Engine) namesOf(ctx context.Context, dc *v1alpha1.DataCache) (map[string]string, error) {
	var names map[string]string
	for _, user := range dc.Status.UsedBy {
		job := &trainer.TrainJob{}
		err := e.Client.Get(ctx, kube.KeyOf(user), job)
		if client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("get TrainJob %s: %w", user, err)
		}
		if placement := job.Annotations[wellknown.AnnotationPlacement]; err == nil && placement != "" {
			if names == nil {
				names = map[string]string{}
			}
			names[placement] = job.Name
		}
	}
	return names, nil
}

// accessConditions are the conditions of who reads the cache; nil if nothing was applied yet, or the cache is released.
func (e *Engine) accessConditions(ctx context.Context, dc *v1alpha1.DataCache, set *lws.LeaderWorkerSet, answers []heads.Answer) []metav1.Condition {
	applied, ok := e.accesses.Load(client.ObjectKeyFromObject(dc))
	access, _ := applied.(workload.Access)
	if !ok {
		return nil
	}
	known := metav1.Condition{Type: v1alpha1.ConditionReadersKnown, Status: metav1.ConditionFalse}
	switch {
	case set != nil && workload.SecretOf(set) != kube.SecretName(dc):
		known.Reason, known.Message = v1alpha1.ReasonStartedBefore, "its pods were started by an earlier release and serve whoever connects, in plain text: suspend and resume it to start others"
	case access.Readers == v1alpha1.ReadersAnyone:
		known.Reason, known.Message = v1alpha1.ReasonAnyone, "whoever can connect to its head reads its rows: set access.readers: Known"
	case slices.ContainsFunc(answers, func(a heads.Answer) bool {
		return a.Status != nil && a.Status.Access.Readers != string(v1alpha1.ReadersKnown)
	}):
		known.Reason, known.Message = v1alpha1.ReasonApplying, "its heads have not read the change yet, which takes up to two minutes"
	default:
		known.Status, known.Reason, known.Message = metav1.ConditionTrue, v1alpha1.ReasonKnown, "it serves only accounts that access names, by their tokens"
		if e.NoAnyone && dc.Spec.Access.Readers == v1alpha1.ReadersAnyone {
			known.Message = "access.readers: Anyone is not allowed by this installation (--allow-anyone=false): " + known.Message
		}
	}
	conditions := []metav1.Condition{known}
	keys := e.Keys.Current(ctx)
	_, wrong := issuer.All(keys.Issuer, dc.Spec.Access.Issuers)
	if err := cmp.Or(keys.Err, wrong); err != nil && checksTokens(dc, access.Readers) {
		conditions = append(conditions, metav1.Condition{
			Type: v1alpha1.ConditionTokensUnverifiable, Status: metav1.ConditionTrue, Reason: "NoKeys", Message: err.Error(),
		})
	}
	return conditions
}

// checksTokens reports whether the cache's users connect by TLS, with a token.
func checksTokens(dc *v1alpha1.DataCache, readers v1alpha1.Readers) bool {
	return readers == v1alpha1.ReadersKnown || dc.Spec.TLS.Rows == v1alpha1.RowsTLS
}

// Trusted returns the certificate of the cache's authority for clients, "" if they are to connect in plain text.
func Trusted(dc *v1alpha1.DataCache) string {
	if !byTLS(dc, dc.Status.Conditions) {
		return ""
	}
	return dc.Status.CABundle
}

// byTLS reports whether clients are to connect by TLS to a cache with these conditions.
func byTLS(dc *v1alpha1.DataCache, conditions []metav1.Condition) bool {
	known := meta.FindStatusCondition(conditions, v1alpha1.ConditionReadersKnown)
	if dc.Status.CABundle == "" || known == nil || known.Reason == v1alpha1.ReasonStartedBefore {
		return false
	}
	readers := v1alpha1.ReadersKnown
	if known.Reason == v1alpha1.ReasonAnyone {
		readers = v1alpha1.ReadersAnyone
	}
	return checksTokens(dc, readers)
}

// endpoint is the address that clients connect to, by the conditions, or where there are none by those of the status.
func endpoint(dc *v1alpha1.DataCache, conditions []metav1.Condition) string {
	if conditions == nil {
		conditions = dc.Status.Conditions
	}
	scheme := "grpc"
	if byTLS(dc, conditions) {
		scheme = "grpc+tls"
	}
	return fmt.Sprintf("%s://%s.%s:%d", scheme, wellknown.ServiceName(dc.Name), dc.Namespace, wellknown.FlightPort)
}
