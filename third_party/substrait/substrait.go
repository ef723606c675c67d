// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package substrait stands in for the module of that name, which go.mod replaces: of its 250 KB of function definitions
// it has those that iceberg-go names. iceberg-go parses all of them whenever a program starts; see README.md.
package substrait

import "embed"

//go:embed extensions
var definitions embed.FS

// GetSubstraitExtensionsFS is the folder "extensions" with the definitions, YAML files in Substrait's format
// (https://substrait.io/extensions).
func GetSubstraitExtensionsFS() embed.FS { return definitions }
