// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/wellknown"
)

// shortestLogin and longestLogin bound the life of a token: the API server makes none for less, and caches take none for more.
const (
	shortestLogin = 10 * time.Minute
	longestLogin  = 24 * time.Hour
)

func loginCommand(at *target) *cobra.Command {
	var (
		account, dir string
		life         time.Duration
	)
	cmd := &cobra.Command{
		Use: "login [NAMESPACE/]NAME", Short: "Write a token for a cache, and the certificate of its authority, for a client outside of the cluster",
		Long: `Write a token for a cache, and the certificate of its authority, for a client outside of the cluster, or in a pod that is
no TrainJob's. The token is that of a ServiceAccount of the namespace (-n) and good for this cache alone; access of the cache
must name the namespace. Needs the right to create tokens of the account (edit), and to get the cache (view).`,
		Example: `  kubectl datacache login reviews --dir ./credentials
  DATACACHE_CREDENTIALS=./credentials DATACACHE_ENDPOINT=grpc+tls://localhost:50051 python evaluate.py`,
		Args: one("cache"), ValidArgsFunction: at.caches,
	}
	cmd.Flags().StringVar(&account, "account", "default", "ServiceAccount whose token it is")
	cmd.Flags().DurationVar(&life, "for", 8*time.Hour, "how long the token is good, from 10m to 24h")
	cmd.Flags().StringVar(&dir, "dir", "", "folder to write token and ca.crt into; it is made if it is not there")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case dir == "":
			return errors.New("--dir: missing, want a folder to write token and ca.crt into")
		case life < shortestLogin || life > longestLogin:
			return fmt.Errorf("--for: %s, want 10m to 24h", life)
		}
		c, err := at.reach()
		if err != nil {
			return err
		}
		until, err := c.login(cmd.Context(), args[0], account, life, dir)
		if err != nil {
			return err
		}
		fmt.Fprintf(cmd.OutOrStdout(), "%s is good until %s for %s/%s\nexport DATACACHE_CREDENTIALS=%s\n",
			filepath.Join(dir, wellknown.TokenFile), until.Format(time.RFC3339), c.namespace, account, dir)
		return nil
	}
	return cmd
}

// login writes a token of the account for the cache, and the certificate of its authority, and returns when the token expires.
func (c *cluster) login(ctx context.Context, name, account string, life time.Duration, dir string) (until time.Time, err error) {
	key := client.ObjectKey{Namespace: c.namespace, Name: name}
	if namespace, rest, ok := strings.Cut(name, "/"); ok {
		key = client.ObjectKey{Namespace: namespace, Name: rest}
	}
	dc := &v1alpha1.DataCache{}
	if err := c.Get(ctx, key, dc); err != nil {
		return until, fmt.Errorf("get DataCache %s: %w", key, err)
	}
	switch {
	case dc.Spec.Arrow == nil:
		return until, fmt.Errorf("DataCache %s caches files, which pods mount: there is nothing to log in to", key)
	case dc.Status.CABundle == "":
		return until, fmt.Errorf("DataCache %s has no authority yet: its pods were not started by this release. Try again when they run", key)
	}
	owner := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace, Name: account}}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		Audiences: []string{wellknown.Audience(key.Namespace, key.Name)}, ExpirationSeconds: new(int64(life.Seconds())),
	}}
	if err := c.SubResource("token").Create(ctx, owner, request); err != nil {
		return until, fmt.Errorf("make a token of ServiceAccount %s/%s: %w", c.namespace, account, err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return until, fmt.Errorf("--dir: %w", err)
	}
	for file, text := range map[string]string{wellknown.TokenFile: request.Status.Token, wellknown.AuthorityFile: dc.Status.CABundle} {
		if err := replace(filepath.Join(dir, file), text); err != nil {
			return until, fmt.Errorf("--dir: %w", err)
		}
	}
	return request.Status.ExpirationTimestamp.Time, nil
}

// replace writes a file that only its owner may read, in place of one that a client may be reading.
func replace(path, text string) error {
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-")
	if err != nil {
		return err
	}
	_, err = file.WriteString(text)
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		_ = os.Remove(file.Name())
	}
	return err
}
