// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package fluid

import (
	"context"
	"fmt"
	"sync"

	fluid "github.com/fluid-cloudnative/fluid/api/v1alpha1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlcontroller "sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	ctrlsource "sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/wellknown"
)

// Watches starts to watch Fluid's kinds when the first cache needs them: an informer of a kind that does not exist would never sync, and
// Fluid may be installed while the manager runs. It is safe for concurrent use.
type Watches struct {
	Cache      cache.Cache
	Controller ctrlcontroller.Controller // set before the manager starts

	mu      sync.Mutex
	started map[string]bool // by kind
}

// start watches the kinds of the cache, which must exist, unless they are watched already.
func (w *Watches) start(files *v1alpha1.FluidCache) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	wanted := map[string]client.Object{"Dataset": &fluid.Dataset{}, runtimeKind(files.Runtime.Kind): newFluidRuntime(files.Runtime.Kind)}
	if files.WarmUp {
		wanted["DataLoad"] = &fluid.DataLoad{}
	}
	for kind, object := range wanted {
		if w.started[kind] {
			continue
		}
		if err := w.Controller.Watch(ctrlsource.Kind(w.Cache, object, handler.EnqueueRequestsFromMapFunc(cacheOfFluid))); err != nil {
			return fmt.Errorf("watch %ss: %w", kind, err)
		}
		if w.started == nil {
			w.started = map[string]bool{}
		}
		w.started[kind] = true
	}
	return nil
}

// any reports whether a kind is watched.
func (w *Watches) any() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.started) > 0
}

// cacheOfFluid maps an object of Fluid to the DataCache that it was made for.
func cacheOfFluid(_ context.Context, object client.Object) []reconcile.Request {
	labels := object.GetLabels()
	name := labels[wellknown.LabelCache]
	if name == "" || labels[wellknown.LabelManagedBy] != wellknown.ManagedBy {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: object.GetNamespace(), Name: name}}}
}
