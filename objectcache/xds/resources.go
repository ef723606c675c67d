// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package xds

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpoint "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listener "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"                     // registers a type that resources.yaml names
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3" // registers a type that resources.yaml names
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/maglev/v3"          // registers a type that resources.yaml names
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/ring_hash/v3"       // registers a type that resources.yaml names
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/retry/host/previous_hosts/v3"               // registers a type that resources.yaml names
	transport "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3" // registers a type that resources.yaml names
	matcher "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/kubeflow/datacache/objectcache/router"
)

//go:embed resources.yaml
var resourcesYAML []byte

// objects is the name of Envoy's Listener and RouteConfiguration, and of everybody's Cluster and ClusterLoadAssignment.
const objects = "objects"

// resources is the content of resources.yaml. It is immutable.
type resources struct {
	envoyListener, grpcListener listener.Listener
	envoyRoutes                 route.RouteConfiguration
	cluster                     cluster.Cluster
}

// constant is the parsed resources.yaml.
var constant = parseResources()

func parseResources() *resources {
	var texts map[string]any
	if err := yaml.Unmarshal(resourcesYAML, &texts); err != nil {
		panic(err) // it is embedded, and a test reads it
	}
	r := &resources{}
	for name, into := range map[string]proto.Message{
		"envoyListener": &r.envoyListener, "grpcListener": &r.grpcListener, "envoyRoutes": &r.envoyRoutes, "cluster": &r.cluster,
	} {
		text, err := json.Marshal(texts[name])
		if err == nil {
			err = protojson.Unmarshal(text, into)
		}
		if err != nil {
			panic(fmt.Sprintf("resources.yaml: %s: %v", name, err)) // it is embedded, and a test reads it
		}
	}
	return r
}

// listenerOf is Envoy's Listener.
func listenerOf(cfg Config) *listener.Listener {
	made := proto.CloneOf(&constant.envoyListener)
	made.Address = socketAddress(cfg.Listener)
	made.Address.GetSocketAddress().Ipv4Compat = cfg.Listener.Addr().Is6()
	made.FilterChains[0].TransportSocket = downstreamTLS(cfg.Objects)
	return made
}

// clusterOf is the Cluster of all members, to which Envoys speak TLS; nil: plain HTTP.
func clusterOf(objectTLS *ObjectTLS) *cluster.Cluster {
	made := proto.CloneOf(&constant.cluster)
	made.TransportSocket = upstreamTLS(objectTLS)
	return made
}

func socketAddress(at netip.AddrPort) *core.Address {
	return &core.Address{Address: &core.Address_SocketAddress{SocketAddress: &core.SocketAddress{
		Address: at.Addr().String(), PortSpecifier: &core.SocketAddress_PortValue{PortValue: uint32(at.Port())},
	}}}
}

// upstreamTLS verifies object caches' certificates; nil without TLS. Authorities are public, and part of the configuration, so that
// Envoys need no file of them.
func upstreamTLS(t *ObjectTLS) *core.TransportSocket {
	if t == nil {
		return nil
	}
	validation := &transport.CertificateValidationContext{
		TrustedCa: &core.DataSource{Specifier: &core.DataSource_InlineString{InlineString: t.Authorities()}},
		MatchTypedSubjectAltNames: []*transport.SubjectAltNameMatcher{{
			SanType: transport.SubjectAltNameMatcher_DNS,
			Matcher: &matcher.StringMatcher{MatchPattern: &matcher.StringMatcher_Exact{Exact: t.ServerName}},
		}},
	}
	return transportSocket(&transport.UpstreamTlsContext{Sni: t.ServerName, CommonTlsContext: &transport.CommonTlsContext{
		AlpnProtocols:         []string{"http/1.1"},
		ValidationContextType: &transport.CommonTlsContext_ValidationContext{ValidationContext: validation},
	}})
}

// downstreamTLS is for Envoy's clients; nil without TLS. Envoy reads the certificate from files, since xDS carries no secrets here, and
// again when they change.
func downstreamTLS(t *ObjectTLS) *core.TransportSocket {
	if t == nil || t.EnvoyCertificate == "" {
		return nil
	}
	from := &core.ConfigSource{
		ResourceApiVersion:    core.ApiVersion_V3,
		ConfigSourceSpecifier: &core.ConfigSource_PathConfigSource{PathConfigSource: &core.PathConfigSource{Path: t.EnvoyCertificate}},
	}
	return transportSocket(&transport.DownstreamTlsContext{CommonTlsContext: &transport.CommonTlsContext{
		AlpnProtocols:                  []string{"http/1.1"},
		TlsCertificateSdsSecretConfigs: []*transport.SdsSecretConfig{{Name: objects, SdsConfig: from}},
	}})
}

func transportSocket(config proto.Message) *core.TransportSocket {
	return &core.TransportSocket{
		Name: "envoy.transport_sockets.tls", ConfigType: &core.TransportSocket_TypedConfig{TypedConfig: pack(config)},
	}
}

// assignment lists the members, which must be those of router.Distinct, zone by zone. Each is hashed by its name. A zone's weight is its
// number of members, so that a policy that heeds it gives each member the same share; Envoy's Maglev does not.
func assignment(members []router.Member) (*endpoint.ClusterLoadAssignment, error) {
	zones := map[string][]*endpoint.LbEndpoint{}
	for _, m := range members {
		at, err := netip.ParseAddrPort(m.Address)
		if err != nil {
			return nil, fmt.Errorf("member %q: address %q, want IP:PORT, since Envoy resolves no names of endpoints: %w", m.Name, m.Address, err)
		}
		zones[m.Zone] = append(zones[m.Zone], lbEndpoint(m.Name, at))
	}
	made := &endpoint.ClusterLoadAssignment{ClusterName: objects}
	for _, zone := range slices.Sorted(maps.Keys(zones)) {
		made.Endpoints = append(made.Endpoints, &endpoint.LocalityLbEndpoints{
			Locality:            &core.Locality{Zone: zone},
			LoadBalancingWeight: wrapperspb.UInt32(uint32(len(zones[zone]))),
			LbEndpoints:         zones[zone],
		})
	}
	return made, nil
}

func lbEndpoint(name string, at netip.AddrPort) *endpoint.LbEndpoint {
	return &endpoint.LbEndpoint{
		HostIdentifier: &endpoint.LbEndpoint_Endpoint{Endpoint: &endpoint.Endpoint{
			Address: socketAddress(at),
		}},
		Metadata: &core.Metadata{FilterMetadata: map[string]*structpb.Struct{
			"envoy.lb": {Fields: map[string]*structpb.Value{"hash_key": structpb.NewStringValue(name)}},
		}},
	}
}

// pack returns the message, whose text must be UTF-8, as an Any with the same bytes in every process.
func pack(m proto.Message) *anypb.Any {
	packed := &anypb.Any{}
	if err := anypb.MarshalFrom(packed, m, proto.MarshalOptions{Deterministic: true}); err != nil {
		panic(fmt.Sprintf("marshal %T: %v", m, err)) // only text that is not UTF-8 can't be marshaled
	}
	return packed
}
