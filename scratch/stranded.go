// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package scratch

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// strandedBackOff is the maximum time until a claim without a usable node is checked again.
const strandedBackOff = 30 * time.Second

// stranded returns an obstacle if the pod's claim is bound to a volume that no ready node can use; nil if a node can, or if the
// volume is not known yet. The pod keeps its gate, since after its removal it could not get another claim.
func (w *worker) stranded(ctx context.Context, bound *corev1.PersistentVolumeClaim) (*obstacle, error) {
	if bound.Spec.VolumeName == "" {
		return nil, nil
	}
	volume := &corev1.PersistentVolume{}
	err := w.live.Get(ctx, client.ObjectKey{Name: bound.Spec.VolumeName}, volume)
	switch {
	case apierrors.IsNotFound(err):
		return noNode(bound, "which is gone"), nil
	case apierrors.IsForbidden(err): // then the scheduler has to report it
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("get the volume of claim %s: %w", bound.Name, err)
	case volume.Spec.NodeAffinity == nil || volume.Spec.NodeAffinity.Required == nil:
		return nil, nil
	}
	var nodes corev1.NodeList
	if err := w.cached.List(ctx, &nodes); err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	selector := nodeaffinity.NewLazyErrorNodeSelector(volume.Spec.NodeAffinity.Required)
	var down []string
	for i := range nodes.Items {
		node := &nodes.Items[i]
		if matches, err := selector.Match(node); err != nil || !matches {
			continue // the API server rejects invalid terms
		}
		if nodeReady(node) {
			return nil, nil
		}
		down = append(down, node.Name)
	}
	if len(down) == 0 {
		return noNode(bound, "and no node is there that it can be used on"), nil
	}
	slices.Sort(down)
	return noNode(bound, fmt.Sprintf("and of the nodes that it can be used on none is ready (%s)", strings.Join(down[:min(len(down), 3)], ", "))), nil
}

func noNode(bound *corev1.PersistentVolumeClaim, why string) *obstacle {
	return &obstacle{reason: EventStranded, label: "stranded", longest: strandedBackOff, message: fmt.Sprintf(
		"claim %s is bound to the volume %s, %s; the pod waits for that, or, to start with an empty disk, delete the claim", bound.Name, bound.Spec.VolumeName, why)}
}

func nodeReady(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// stripNode keeps only the parts of a node that stranded reads.
func stripNode(object any) (any, error) {
	node, ok := object.(*corev1.Node)
	if !ok {
		return object, nil
	}
	kept := &corev1.Node{TypeMeta: node.TypeMeta}
	kept.Name, kept.UID, kept.ResourceVersion, kept.Labels = node.Name, node.UID, node.ResourceVersion, node.Labels
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			kept.Status.Conditions = []corev1.NodeCondition{{Type: c.Type, Status: c.Status}}
		}
	}
	return kept, nil
}
