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

// Objects does with an API server's objects what tests do. What fails, or doesn't come, ends the test: so its
// methods are for a test's own goroutine. Set Client before use; any number of tests may use one.
type Objects struct {
	Client client.Client
	Within time.Duration // how long to wait; 0: Deadline
}

// Create creates an object.
func (o Objects) Create(t testing.TB, object client.Object) {
	t.Helper()
	if err := o.Client.Create(t.Context(), object); err != nil {
		t.Fatal(err)
	}
}

// Delete deletes an object in the background, as kubectl does, and waits for nothing.
func (o Objects) Delete(t testing.TB, object client.Object) {
	t.Helper()
	if err := o.Client.Delete(t.Context(), object, client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
		t.Fatal(err)
	}
}

// Become reads an object until check, which looks at what was read, returns nil. A message says that it was to be what.
func (o Objects) Become(t testing.TB, object client.Object, namespace, name, what string, check func() error) {
	t.Helper()
	EventuallyWithin(t, cmp.Or(o.Within, Deadline), fmt.Sprintf("%T %s to be %s", object, name, what), func() error {
		if err := o.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, object); err != nil {
			return err
		}
		return check()
	})
}

// Appear waits for an object and reads it.
func (o Objects) Appear(t testing.TB, object client.Object, namespace, name string) {
	t.Helper()
	o.Become(t, object, namespace, name, "there", func() error { return nil })
}

// Vanish waits until there is no such object.
func (o Objects) Vanish(t testing.TB, object client.Object, namespace, name string) {
	t.Helper()
	EventuallyWithin(t, cmp.Or(o.Within, Deadline), fmt.Sprintf("%T %s to go", object, name), func() error {
		err := o.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, object)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(err, errors.New("it is still there"))
	})
}

// DataCache waits until a DataCache is in the state and returns it. The scheme must have been told of the type.
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
