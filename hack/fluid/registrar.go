// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// registrations is where the chart mounts the folder in which the kubelet looks for plugins.
const registrations = "/registration"

// register tells the kubelet of a CSI plugin, as kubernetes-csi's node-driver-registrar does, and takes that program's flags. It returns when
// the kubelet has refused the plugin; the container is then started again.
func register(args []string) error {
	flags := flag.NewFlagSet("node-driver-registrar", flag.ExitOnError)
	plugin := flags.String("csi-address", "", "the plugin's socket, in this container")
	endpoint := flags.String("kubelet-registration-path", "", "the plugin's socket, for the kubelet")
	flags.Int("v", 0, "without effect")
	if err := flags.Parse(args); err != nil {
		return err
	}
	conn, err := grpc.NewClient("unix://"+*plugin, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("--csi-address=%s: %w", *plugin, err)
	}
	defer conn.Close()
	info, err := csi.NewIdentityClient(conn).GetPluginInfo(context.Background(), &csi.GetPluginInfoRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return fmt.Errorf("ask the plugin for its name: %w", err)
	}
	socket := filepath.Join(registrations, info.GetName()+"-reg.sock")
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) { // left by an earlier container
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	p := &csiPlugin{name: info.GetName(), endpoint: *endpoint, refused: make(chan string, 1)}
	registration.RegisterRegistrationServer(server, p)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case reason := <-p.refused:
		server.GracefulStop()
		return fmt.Errorf("the kubelet refused the plugin %s: %s", p.name, reason)
	case err := <-served:
		return err
	}
}

// csiPlugin answers the kubelet.
type csiPlugin struct {
	name, endpoint string
	refused        chan string // holds one reason
}

// GetInfo says where the plugin is.
func (p *csiPlugin) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{
		Type: registration.CSIPlugin, Name: p.name, Endpoint: p.endpoint, SupportedVersions: []string{"1.0.0"},
	}, nil
}

// NotifyRegistrationStatus takes the kubelet's decision.
func (p *csiPlugin) NotifyRegistrationStatus(_ context.Context, status *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	if !status.PluginRegistered {
		select {
		case p.refused <- status.Error:
		default:
		}
	}
	return &registration.RegistrationStatusResponse{}, nil
}
