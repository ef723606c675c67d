// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package xds

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpoint "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listener "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	httprouter "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcm "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	maglevpolicy "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/maglev/v3"
	ringpolicy "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/ring_hash/v3"
	previoushosts "github.com/envoyproxy/go-control-plane/envoy/extensions/retry/host/previous_hosts/v3"
	transport "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	upstream "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	matcher "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	kind "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/kubeflow/datacache/objectcache/maglev"
	"github.com/kubeflow/datacache/objectcache/router"
)

const (
	// objects is the name of Envoy's Listener and RouteConfiguration, and of everybody's Cluster and ClusterLoadAssignment.
	objects = "objects"
	// Target is the name of the Listener of gRPC clients, which use xds:///datacache-object-cache as their target.
	Target = "datacache-object-cache"
	// KeyHeader is the metadata key in which gRPC clients pass BUCKET/KEY, by which a call's member is chosen.
	KeyHeader = "datacache-object"

	// hopHeader marks a request that an object cache forwarded. It must not get through Envoy: a node that receives it serves the
	// request itself.
	hopHeader = "Datacache-Hop"

	prefix = "/v1/objects/"
	// batchPath is the path without its query of a request for many objects; its keys belong to many members.
	batchPath = prefix + "[^/]+"
	// ReadyPath is answered by Envoy itself, once it has its configuration.
	ReadyPath = "/ready"

	// connectTimeout bounds the wait for a member that died and is still listed.
	connectTimeout = 2 * time.Second
	// idleTimeout is shorter than the two minutes after which an object cache closes an idle connection, so that Envoy does not send a
	// request on a connection that is being closed.
	idleTimeout = 90 * time.Second
	// selections is how often Envoy looks for a member other than the one that failed. Each look is like a draw at random: of two
	// members, five would find the same again for one key in 32.
	selections = 32
	// atOnce is the number of requests, connections and retries that one Envoy may have open at a time. The defaults, 1024 requests
	// and 3 retries, would fail requests when many clients start together or while a member that died is listed.
	atOnce = 1 << 16
)

// listenerOf is Envoy's Listener. Keys are everything after the bucket in the raw request target, so paths must not be changed.
func listenerOf(cfg Config) *listener.Listener {
	on := cfg.Listener
	manager := &hcm.HttpConnectionManager{
		StatPrefix:                   objects,
		RouteSpecifier:               &hcm.HttpConnectionManager_Rds{Rds: &hcm.Rds{ConfigSource: overADS(), RouteConfigName: objects}},
		HttpFilters:                  routerFilter(),
		NormalizePath:                wrapperspb.Bool(false),
		MergeSlashes:                 false,
		PathWithEscapedSlashesAction: hcm.HttpConnectionManager_KEEP_UNCHANGED,
		UseRemoteAddress:             wrapperspb.Bool(true), // an X-Forwarded-For header of a client is not trusted
		GenerateRequestId:            wrapperspb.Bool(false),
		Proxy_100Continue:            true, // the object cache refuses a PUT that is too large before its body is sent
	}
	return &listener.Listener{
		Name: objects,
		Address: &core.Address{Address: &core.Address_SocketAddress{SocketAddress: &core.SocketAddress{
			Address: on.Addr().String(), Ipv4Compat: on.Addr().Is6(), PortSpecifier: &core.SocketAddress_PortValue{PortValue: uint32(on.Port())},
		}}},
		FilterChains: []*listener.FilterChain{{Filters: []*listener.Filter{{
			Name: "envoy.filters.network.http_connection_manager", ConfigType: &listener.Filter_TypedConfig{TypedConfig: pack(manager)},
		}}, TransportSocket: downstreamTLS(cfg.Objects)}},
	}
}

// routes is Envoy's RouteConfiguration. Requests for an object are hashed over BUCKET/KEY, as package router does.
func routes() *route.RouteConfiguration {
	cutPrefix := &matcher.RegexMatchAndSubstitute{Pattern: &matcher.RegexMatcher{Regex: "^" + prefix}}
	return &route.RouteConfiguration{
		Name:                   objects,
		RequestHeadersToRemove: []string{hopHeader},
		VirtualHosts: []*route.VirtualHost{{Name: objects, Domains: []string{"*"}, Routes: []*route.Route{
			{
				Match: &route.RouteMatch{PathSpecifier: &route.RouteMatch_Path{Path: ReadyPath}},
				Action: &route.Route_DirectResponse{DirectResponse: &route.DirectResponseAction{
					Status: 200, Body: &core.DataSource{Specifier: &core.DataSource_InlineString{InlineString: "ready\n"}},
				}},
			},
			{
				Match:  &route.RouteMatch{PathSpecifier: &route.RouteMatch_SafeRegex{SafeRegex: &matcher.RegexMatcher{Regex: batchPath}}},
				Action: &route.Route_Route{Route: action()}, // without a hash, members are chosen at random
			},
			{
				Match:  &route.RouteMatch{PathSpecifier: &route.RouteMatch_Prefix{Prefix: prefix}},
				Action: &route.Route_Route{Route: action(hashOver(&route.RouteAction_HashPolicy_Header{HeaderName: ":path", RegexRewrite: cutPrefix}))},
			},
		}}},
	}
}

// action sends requests to the Cluster. A request that can't be sent to its member, because no connection could be made, is sent to
// another, which forwards it or answers for the member: without the predicate, the retry would go to the same member.
func action(policies ...*route.RouteAction_HashPolicy) *route.RouteAction {
	return &route.RouteAction{
		ClusterSpecifier: &route.RouteAction_Cluster{Cluster: objects},
		HashPolicy:       policies,
		Timeout:          durationpb.New(0), // the object cache limits the time that bodies may take
		RetryPolicy: &route.RetryPolicy{
			RetryOn: "connect-failure", NumRetries: wrapperspb.UInt32(1), HostSelectionRetryMaxAttempts: selections,
			RetryHostPredicate: []*route.RetryPolicy_RetryHostPredicate{{
				Name: "envoy.retry_host_predicates.previous_hosts",
				ConfigType: &route.RetryPolicy_RetryHostPredicate_TypedConfig{
					TypedConfig: pack(&previoushosts.PreviousHostsPredicate{}),
				},
			}},
		},
	}
}

func hashOver(header *route.RouteAction_HashPolicy_Header) *route.RouteAction_HashPolicy {
	return &route.RouteAction_HashPolicy{PolicySpecifier: &route.RouteAction_HashPolicy_Header_{Header: header}}
}

// grpcListener is the Listener of gRPC clients (gRFC A27), with its routes: calls are hashed over KeyHeader (gRFC A42).
func grpcListener() *listener.Listener {
	manager := &hcm.HttpConnectionManager{
		HttpFilters: routerFilter(),
		RouteSpecifier: &hcm.HttpConnectionManager_RouteConfig{RouteConfig: &route.RouteConfiguration{
			Name: Target,
			VirtualHosts: []*route.VirtualHost{{Name: Target, Domains: []string{"*"}, Routes: []*route.Route{{
				Match: &route.RouteMatch{PathSpecifier: &route.RouteMatch_Prefix{}},
				Action: &route.Route_Route{Route: &route.RouteAction{
					ClusterSpecifier: &route.RouteAction_Cluster{Cluster: objects},
					HashPolicy:       []*route.RouteAction_HashPolicy{hashOver(&route.RouteAction_HashPolicy_Header{HeaderName: KeyHeader})},
				}},
			}}}},
		}},
	}
	return &listener.Listener{Name: Target, ApiListener: &listener.ApiListener{ApiListener: pack(manager)}}
}

// clusterOf is the Cluster of the members, which are reached over TLS unless objects is nil. With health checks, outlier detection or hash_balance_factor, Envoys would have tables that
// differ from package router's and from each other's. Clients use the first policy that they know; gRPC has no Maglev.
func clusterOf(objectTLS *ObjectTLS) *cluster.Cluster {
	many := wrapperspb.UInt32(atOnce)
	return &cluster.Cluster{
		Name:                 objects,
		ClusterDiscoveryType: &cluster.Cluster_Type{Type: cluster.Cluster_EDS},
		EdsClusterConfig:     &cluster.Cluster_EdsClusterConfig{EdsConfig: overADS()},
		ConnectTimeout:       durationpb.New(connectTimeout),
		LoadBalancingPolicy: &cluster.LoadBalancingPolicy{Policies: []*cluster.LoadBalancingPolicy_Policy{
			policy("envoy.load_balancing_policies.maglev", &maglevpolicy.Maglev{TableSize: wrapperspb.UInt64(maglev.DefaultSize)}),
			policy("envoy.load_balancing_policies.ring_hash", &ringpolicy.RingHash{HashFunction: ringpolicy.RingHash_XX_HASH}),
		}},
		CommonLbConfig: &cluster.Cluster_CommonLbConfig{HealthyPanicThreshold: &kind.Percent{Value: 0}},
		CircuitBreakers: &cluster.CircuitBreakers{Thresholds: []*cluster.CircuitBreakers_Thresholds{{
			MaxConnections: many, MaxPendingRequests: many, MaxRequests: many, MaxRetries: many,
		}}},
		TypedExtensionProtocolOptions: map[string]*anypb.Any{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": pack(upstreamHTTP())},
		TransportSocket:               upstreamTLS(objectTLS),
	}
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

func upstreamHTTP() *upstream.HttpProtocolOptions {
	http1 := &upstream.HttpProtocolOptions_ExplicitHttpConfig{
		ProtocolConfig: &upstream.HttpProtocolOptions_ExplicitHttpConfig_HttpProtocolOptions{HttpProtocolOptions: &core.Http1ProtocolOptions{}},
	}
	return &upstream.HttpProtocolOptions{
		CommonHttpProtocolOptions: &core.HttpProtocolOptions{IdleTimeout: durationpb.New(idleTimeout)},
		UpstreamProtocolOptions:   &upstream.HttpProtocolOptions_ExplicitHttpConfig_{ExplicitHttpConfig: http1},
	}
}

func policy(name string, config proto.Message) *cluster.LoadBalancingPolicy_Policy {
	return &cluster.LoadBalancingPolicy_Policy{TypedExtensionConfig: &core.TypedExtensionConfig{Name: name, TypedConfig: pack(config)}}
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
			Address: &core.Address{Address: &core.Address_SocketAddress{SocketAddress: &core.SocketAddress{
				Address: at.Addr().String(), PortSpecifier: &core.SocketAddress_PortValue{PortValue: uint32(at.Port())},
			}}},
		}},
		Metadata: &core.Metadata{FilterMetadata: map[string]*structpb.Struct{
			"envoy.lb": {Fields: map[string]*structpb.Value{"hash_key": structpb.NewStringValue(name)}},
		}},
	}
}

func overADS() *core.ConfigSource {
	return &core.ConfigSource{
		ResourceApiVersion: core.ApiVersion_V3, ConfigSourceSpecifier: &core.ConfigSource_Ads{Ads: &core.AggregatedConfigSource{}},
	}
}

func routerFilter() []*hcm.HttpFilter {
	config := &hcm.HttpFilter_TypedConfig{TypedConfig: pack(&httprouter.Router{})}
	return []*hcm.HttpFilter{{Name: "envoy.filters.http.router", ConfigType: config}}
}

// pack returns the message, whose text must be UTF-8, as an Any with the same bytes in every process.
func pack(m proto.Message) *anypb.Any {
	packed := &anypb.Any{}
	if err := anypb.MarshalFrom(packed, m, proto.MarshalOptions{Deterministic: true}); err != nil {
		panic(fmt.Sprintf("marshal %T: %v", m, err)) // only text that is not UTF-8 can't be marshaled
	}
	return packed
}
