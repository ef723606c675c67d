// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package admit

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/api/v1alpha1"
)

// FluidVersion is the API of Fluid that caches of files use.
var FluidVersion = schema.GroupVersion{Group: "data.fluid.io", Version: "v1alpha1"}

// csiDriver is the driver with which Fluid mounts files.
const csiDriver = "fuse.csi.fluid.io"

// MissingKind returns the first of Fluid's kinds that a DataCache needs and the cluster does not have, "" if it has all.
func MissingKind(mapper meta.RESTMapper, cache *v1alpha1.FluidCache) (string, error) {
	kinds := []string{"Dataset", string(cache.Runtime.Kind) + "Runtime"}
	if cache.WarmUp {
		kinds = append(kinds, "DataLoad")
	}
	for _, kind := range kinds {
		_, err := mapper.RESTMapping(FluidVersion.WithKind(kind).GroupKind(), FluidVersion.Version)
		if meta.IsNoMatchError(err) {
			return kind, nil
		}
		if err != nil {
			return "", fmt.Errorf("look for the kind %s of %s: %w", kind, FluidVersion, err)
		}
	}
	return "", nil
}

// FilesOff is the reason for which files are rejected by a manager without a status address.
const FilesOff = "this installation of datacache caches no files: its owner must add the component fluid (the chart's fluid.enabled, or the manager's --status and its rights; docs/fluid.md)"

// MissingText says that the cluster lacks a kind of Fluid, and what to do.
func MissingText(kind string) string {
	return fmt.Sprintf("there is no kind %s of %s in this cluster: install Fluid 1.0, or name a table by cache://", kind, FluidVersion)
}

// checkFluid rejects a TrainJob whose files Fluid can't cache here. Warnings tell what probably keeps Fluid's pods from running.
func (a *Admission) checkFluid(ctx context.Context, namespace string, at *field.Path, value string, cache *v1alpha1.FluidCache) (warnings []string, errs field.ErrorList, err error) {
	if a.Settings.StatusURL == "" {
		return nil, field.ErrorList{field.Forbidden(at, FilesOff)}, nil
	}
	if a.Mapper == nil {
		return nil, nil, nil
	}
	kind, err := MissingKind(a.Mapper, cache)
	if err != nil {
		return nil, nil, err
	}
	if kind != "" {
		return nil, field.ErrorList{field.Invalid(at, value, MissingText(kind))}, nil
	}
	if profile := cache.Runtime.Profile; profile != "" {
		found, err := a.exists(ctx, FluidVersion.WithKind("ThinRuntimeProfile"), "", profile)
		if err != nil {
			return nil, nil, err
		}
		if found == nil {
			return nil, field.ErrorList{field.Invalid(at, value, fmt.Sprintf(
				"there is no ThinRuntimeProfile %s: 'kubectl get thinruntimeprofiles' lists what there is", profile))}, nil
		}
	}
	warnings, err = a.warnOfFluid(ctx, namespace)
	return warnings, nil, err
}

func (a *Admission) warnOfFluid(ctx context.Context, namespace string) ([]string, error) {
	var warnings []string
	driver, err := a.exists(ctx, schema.GroupVersionKind{Group: "storage.k8s.io", Version: "v1", Kind: "CSIDriver"}, "", csiDriver)
	if err != nil {
		return nil, err
	}
	if driver == nil {
		warnings = append(warnings, fmt.Sprintf("there is no CSIDriver %s: without Fluid's CSI plugin no pod can mount the files", csiDriver))
	}
	own, err := a.exists(ctx, schema.GroupVersionKind{Version: "v1", Kind: "Namespace"}, "", namespace)
	if err != nil || own == nil {
		return warnings, err
	}
	const enforce = "pod-security.kubernetes.io/enforce"
	if level := own.Labels[enforce]; slices.Contains([]string{"baseline", "restricted"}, level) {
		warnings = append(warnings, fmt.Sprintf("the namespace %s has the label %s=%s, which refuses the privileged FUSE pods that Fluid starts in it", namespace, enforce, level))
	}
	return warnings, nil
}

// exists returns the metadata of an object, read from the API server; nil if there is none.
func (a *Admission) exists(ctx context.Context, kind schema.GroupVersionKind, namespace, name string) (*metav1.PartialObjectMetadata, error) {
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(kind)
	err := a.Readers[len(a.Readers)-1].Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, object)
	if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
		return nil, nil // the object does not exist
	}
	if err != nil {
		return nil, fmt.Errorf("get the %s %s: %w", kind.Kind, name, err)
	}
	return object, nil
}
