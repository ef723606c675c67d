// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
	sigsyaml "sigs.k8s.io/yaml"
)

const fieldOwner = client.FieldOwner("kubetest")

// Install applies a manifest file like kubectl, except that it omits Deployments, whose programs run as processes here or in the
// test, and directs the calls of webhooks to https://address, trusting the cluster's certificates. address ("host:port") may be empty
// if the file has no webhooks. When it returns, CRDs can be used.
func (c *Cluster) Install(ctx context.Context, file, address string) error {
	objects, err := readManifest(file)
	if err != nil {
		return err
	}
	for _, o := range objects {
		if o.GetKind() == "Deployment" {
			continue
		}
		if _, err := redirectWebhooks(o, address, c.ca.pem); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		if err := c.apply(ctx, o); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	for _, o := range objects {
		if o.GetKind() != "CustomResourceDefinition" {
			continue
		}
		err := c.await(ctx, "CRD "+o.GetName(), func(ctx context.Context) error { return c.established(ctx, o.GetName()) })
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) apply(ctx context.Context, o *unstructured.Unstructured) error {
	err := c.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(o), fieldOwner, client.ForceOwnership)
	if err != nil {
		return fmt.Errorf("applying %s %s: %w", o.GetKind(), o.GetName(), err)
	}
	return nil
}

func (c *Cluster) established(ctx context.Context, name string) error {
	var crd apiextensions.CustomResourceDefinition
	if err := c.Client.Get(ctx, client.ObjectKey{Name: name}, &crd); err != nil {
		return err
	}
	for _, condition := range crd.Status.Conditions {
		if condition.Type == apiextensions.Established && condition.Status == apiextensions.ConditionTrue {
			return nil
		}
	}
	return errors.New("not established yet")
}

// readManifest parses the objects of a YAML file.
func readManifest(file string) ([]*unstructured.Unstructured, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var objects []*unstructured.Unstructured
	documents := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		o := &unstructured.Unstructured{}
		if err := sigsyaml.Unmarshal(document, &o.Object); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		if len(o.Object) > 0 { // skip documents with only comments
			objects = append(objects, o)
		}
	}
}

// redirectWebhooks replaces the Service of the webhooks in a configuration with https://address, and returns the URLs. Other objects
// are not changed.
func redirectWebhooks(o *unstructured.Unstructured, address string, ca []byte) (urls []string, err error) {
	if kind := o.GetKind(); kind != "MutatingWebhookConfiguration" && kind != "ValidatingWebhookConfiguration" {
		return nil, nil
	}
	if address == "" {
		return nil, fmt.Errorf("%s %s needs an address for its webhooks", o.GetKind(), o.GetName())
	}
	webhooks, _, err := unstructured.NestedSlice(o.Object, "webhooks")
	if err != nil {
		return nil, err
	}
	for _, webhook := range webhooks {
		w, ok := webhook.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("%s %s: a webhook is a %T", o.GetKind(), o.GetName(), webhook)
		}
		path, _, err := unstructured.NestedString(w, "clientConfig", "service", "path")
		if err != nil {
			return nil, err
		}
		url := "https://" + address + path
		w["clientConfig"] = map[string]any{"url": url, "caBundle": base64.StdEncoding.EncodeToString(ca)}
		urls = append(urls, url)
	}
	return urls, unstructured.SetNestedSlice(o.Object, webhooks, "webhooks")
}
