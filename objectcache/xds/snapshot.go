// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package xds

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"strings"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/protobuf/proto"

	"github.com/kubeflow/datacache/objectcache/router"
)

// audience is a kind of client. Each gets a Listener and assignments of its own.
type audience string

const (
	envoys audience = "envoy"
	grpcs  audience = "grpc"
)

// audiences tells the kind of a client by its Node; it is a cache.NodeHash.
type audiences struct{}

// ID returns the audience of a client.
func (audiences) ID(node *core.Node) string {
	if strings.HasPrefix(node.GetUserAgentName(), "gRPC") { // "gRPC Go", "gRPC C-core", "gRPC Java"
		return string(grpcs)
	}
	return string(envoys)
}

// snapshots returns the configuration for the members. It depends on the set of members and cfg only, versions included, so that all
// object caches with the same members serve the same: a client that reconnects to another one over delta xDS is sent nothing again.
func snapshots(members []router.Member, cfg Config) (map[audience]*cache.Snapshot, error) {
	members = router.Distinct(members)
	zoned, err := assignment(members)
	if err != nil {
		return nil, err
	}
	for i := range members {
		members[i].Zone = ""
	}
	flat, err := assignment(members)
	if err != nil {
		return nil, err
	}
	made := map[audience]*cache.Snapshot{}
	for who, resources := range map[audience]map[resource.Type][]types.Resource{
		envoys: {
			resource.ListenerType: {listenerOf(cfg)}, resource.RouteType: {&constant.envoyRoutes}, resource.ClusterType: {clusterOf(cfg.Objects)},
			resource.EndpointType: {zoned},
		},
		// Without zones: grpc-go 1.83 divides a zone's weight by its number of members, and the C core 1.85 does not, so that their rings
		// would differ. And without TLS: gRPC takes authorities only from its own configuration (gRFC A29).
		grpcs: {resource.ListenerType: {&constant.grpcListener}, resource.ClusterType: {clusterOf(nil)}, resource.EndpointType: {flat}},
	} {
		if made[who], err = snapshotOf(resources); err != nil {
			return nil, err
		}
	}
	return made, nil
}

func snapshotOf(resources map[resource.Type][]types.Resource) (*cache.Snapshot, error) {
	snapshot := &cache.Snapshot{}
	for typeURL, list := range resources {
		version, err := versionOf(list)
		if err != nil {
			return nil, err
		}
		snapshot.Resources[cache.GetResponseType(typeURL)] = cache.NewResources(version, list)
	}
	return snapshot, snapshot.ConstructVersionMap() // versions of single resources, for delta xDS
}

// versionOf is a hash over the resources.
func versionOf(resources []types.Resource) (string, error) {
	sum := sha256.New()
	for _, r := range resources {
		text, err := proto.MarshalOptions{Deterministic: true}.Marshal(r)
		if err != nil {
			return "", err
		}
		var length [8]byte
		binary.LittleEndian.PutUint64(length[:], uint64(len(text)))
		_, _ = sum.Write(length[:]) // writing to a hash never fails
		_, _ = sum.Write(text)
	}
	return hex.EncodeToString(sum.Sum(nil)[:8]), nil
}
