// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Access says who may use a cache.
//
// +kubebuilder:validation:XValidation:rule="!has(self.accounts) || !has(self.readers) || self.readers != 'Anyone'",message="accounts must be unset with readers: Anyone, for which nobody proves an account"
type Access struct {
	// readers says whom the cache serves. Known: only ServiceAccounts of namespaces that may use it, which prove themselves by a token over
	// TLS; admission mounts the token into training pods. Anyone: whoever can connect. Unset: what the manager's --readers says when
	// the cache's pods are started, which is Known unless somebody set it.
	// +optional
	Readers Readers `json:"readers,omitempty"`

	// namespaces whose TrainJobs may use the cache, besides the DataCache's own. Unset: none.
	// +optional
	Namespaces NamespaceAccess `json:"namespaces,omitempty"`

	// accounts restricts namespaces: of a namespace that is named here, only these ServiceAccounts may read, written as
	// <namespace>/<name>. The namespace must be the DataCache's own or one of namespaces.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=317
	// +kubebuilder:validation:items:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?/[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	Accounts []string `json:"accounts,omitempty"`

	// issuers are OpenID providers whose tokens may read too, besides those of ServiceAccounts: of people, or of another system's jobs. Who
	// asks the provider for a token for audience and has one of values in claim is a reader.
	// +optional
	// +listType=map
	// +listMapKey=url
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	Issuers []Issuer `json:"issuers,omitempty"`
}

// Issuer is an OpenID provider. All fields are required.
type Issuer struct {
	// url is what its tokens have as iss, such as https://sso.example.com. It must not be the cluster's own issuer.
	// +kubebuilder:validation:Pattern=`^https?://[^/\s]+.*$`
	// +kubebuilder:validation:MaxLength=1024
	URL string `json:"url"`

	// keys are the public keys with which its tokens are checked: the JSON Web Key Set that its jwks_uri answers, as text. They are not
	// fetched: add a new key before the provider signs with it.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32768
	Keys string `json:"keys"`

	// audience is what a token must have as its only aud.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Audience string `json:"audience"`

	// claim is the name of the claim that decides, such as groups. Its value is a text or a list of texts.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Claim string `json:"claim"`

	// values are the values of the claim that may read.
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=256
	Values []string `json:"values"`
}

// Readers says whom a cache serves.
//
// +kubebuilder:validation:Enum=Known;Anyone
type Readers string

// The values of Readers.
const (
	ReadersKnown  Readers = "Known"
	ReadersAnyone Readers = "Anyone"
)

// TLS says what is encrypted between a cache and its clients. Every cache has an authority of its own for the certificates of its servers
// (status.caBundle).
type TLS struct {
	// rows says whether rows are encrypted on their way to clients. Plain is for networks that encrypt below, such as WireGuard or IPsec:
	// whoever reads along sees rows, and tickets, which give access to rows for an hour; tokens are always sent over TLS. Unset: TLS where
	// access.readers is Known, else Plain.
	// +optional
	Rows RowEncryption `json:"rows,omitempty"`
}

// RowEncryption says how rows are sent.
//
// +kubebuilder:validation:Enum=TLS;Plain
type RowEncryption string

// The values of RowEncryption.
const (
	RowsTLS   RowEncryption = "TLS"
	RowsPlain RowEncryption = "Plain"
)

// AccessFrom is how other namespaces are chosen.
//
// +kubebuilder:validation:Enum=Same;Names;Selector
type AccessFrom string

// The ways to choose namespaces.
const (
	// AccessSame allows only the DataCache's own namespace.
	AccessSame AccessFrom = "Same"
	// AccessNames also allows the namespaces of a list.
	AccessNames AccessFrom = "Names"
	// AccessSelector also allows the namespaces whose labels match a selector; an empty selector matches all.
	AccessSelector AccessFrom = "Selector"
)

// NamespaceAccess chooses namespaces.
//
// +kubebuilder:validation:XValidation:rule="has(self.names) == (has(self.from) && self.from == 'Names')",message="names must be set with from: Names, and only then"
// +kubebuilder:validation:XValidation:rule="has(self.selector) == (has(self.from) && self.from == 'Selector')",message="selector must be set with from: Selector, and only then"
type NamespaceAccess struct {
	// from is Same (the default), Names or Selector.
	// +optional
	From AccessFrom `json:"from,omitempty"`

	// names of the namespaces.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Names []string `json:"names,omitempty"`

	// selector over the labels of namespaces.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
}
