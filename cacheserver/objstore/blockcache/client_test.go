// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package blockcache

import (
	"context"
	"encoding/pem"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestTheCertificateIsOfTheAddress checks that an object cache that is named by its IP address must have a certificate for it.
func TestTheCertificateIsOfTheAddress(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(http.NotFoundHandler()) // its certificate is for example.com, 127.0.0.1 and ::1
	t.Cleanup(server.Close)
	dir := t.TempDir()
	ca, token := filepath.Join(dir, "ca.crt"), filepath.Join(dir, "token")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	for path, content := range map[string][]byte{ca: text, token: []byte("x")} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for address, want := range map[string]string{"127.0.0.1": "", "127.0.0.2": "certificate is valid for 127.0.0.1"} {
		url := strings.Replace(server.URL, "127.0.0.1", address, 1)
		c := newClient(Config{URL: url, CAFile: ca, Bucket: "b", TokenFile: token, Timeout: 5 * time.Second})
		c.http.Transport.(*http.Transport).DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, server.Listener.Addr().String())
		}
		err := c.get(t.Context(), "name", pagesOf("name", 1), extent{length: 1}, make([]byte, 1))
		if want == "" && !errors.Is(err, errMiss) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("https://%s: %v, want %q", address, err, want)
		}
	}
}
