// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"cmp"
	"errors"
	"fmt"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/api/v1alpha1"
)

// Objects has helpers for tests that work with an API server's objects. They fail the test on errors and time-outs, so they must be
// called from the test's goroutine. Set Client before use; several tests may share one.
type Objects struct {
	Client client.Client
	Within time.Duration // time limit; 0: Deadline
}

// Create creates an object.
func (o Objects) Create(t testing.TB, object client.Object) {
	t.Helper()
	if err := o.Client.Create(t.Context(), object); err != nil {
		t.Fatal(err)
	}
}

// Delete deletes an object with background propagation, as kubectl does, without waiting.
func (o Objects) Delete(t testing.TB, object client.Object) {
	t.Helper()
	if err := o.Client.Delete(t.Context(), object, client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
		t.Fatal(err)
	}
}

// Become reads an object until check, which inspects it, returns nil. what describes the expected state in messages.
func (o Objects) Become(t testing.TB, object client.Object, namespace, name, what string, check func() error) {
	t.Helper()
	EventuallyLong(t, cmp.Or(o.Within, Deadline), fmt.Sprintf("%T %s to be %s", object, name, what), func() error {
		if err := o.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, object); err != nil {
			return err
		}
		return check()
	})
}

// Appear waits until an object exists and reads it.
func (o Objects) Appear(t testing.TB, object client.Object, namespace, name string) {
	t.Helper()
	o.Become(t, object, namespace, name, "there", func() error { return nil })
}

// Vanish waits until an object does not exist.
func (o Objects) Vanish(t testing.TB, object client.Object, namespace, name string) {
	t.Helper()
	EventuallyLong(t, cmp.Or(o.Within, Deadline), fmt.Sprintf("%T %s to go", object, name), func() error {
		err := o.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, object)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(err, errors.New("it is still there"))
	})
}

// DataCache waits until a DataCache is in the state and returns it. The scheme must contain the type.
func (o Objects) DataCache(t testing.TB, namespace, name string, state v1alpha1.State) *v1alpha1.DataCache {
	t.Helper()
	dc := &v1alpha1.DataCache{}
	o.Become(t, dc, namespace, name, string(state), func() error {
		if dc.Status.State != state {
			return fmt.Errorf("it is %q: %+v", dc.Status.State, dc.Status.Conditions)
		}
		return nil
	})
	return dc
}
