// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

// document is a document of SPDX 2.3 in JSON (https://spdx.github.io/spdx-spec/v2.3), with the fields that are used here.
type document struct {
	Version       string         `json:"spdxVersion"`
	DataLicense   string         `json:"dataLicense"`
	ID            string         `json:"SPDXID"`
	Name          string         `json:"name"`
	Namespace     string         `json:"documentNamespace"`
	Creation      creation       `json:"creationInfo"`
	Packages      []spdxPackage  `json:"packages"`
	Relationships []relationship `json:"relationships"`
}

type creation struct {
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

type spdxPackage struct {
	Name        string        `json:"name"`
	ID          string        `json:"SPDXID"`
	Version     string        `json:"versionInfo"`
	Location    string        `json:"downloadLocation"`
	Analyzed    bool          `json:"filesAnalyzed"`
	Licence     string        `json:"licenseDeclared"`
	Copyright   string        `json:"copyrightText"`
	Purpose     string        `json:"primaryPackagePurpose"`
	Checksums   []checksum    `json:"checksums,omitempty"`
	References  []externalRef `json:"externalRefs,omitempty"`
	Description string        `json:"comment,omitempty"`
}

type checksum struct {
	Algorithm string `json:"algorithm"`
	Value     string `json:"checksumValue"`
}

type externalRef struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type relationship struct {
	From string `json:"spdxElementId"`
	Type string `json:"relationshipType"`
	To   string `json:"relatedSpdxElement"`
}

const noAssertion = "NOASSERTION"
