// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"testing"

	ice "github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table/substrait"
)

// Every predicate of iceberg-go finds its function among the few that third_party/substrait defines.
func TestSubstraitDefinitions(t *testing.T) {
	schema := ice.NewSchema(0,
		ice.NestedField{ID: 1, Name: "n", Type: ice.PrimitiveTypes.Int64},
		ice.NestedField{ID: 2, Name: "x", Type: ice.PrimitiveTypes.Float32},
		ice.NestedField{ID: 3, Name: "y", Type: ice.PrimitiveTypes.Float64},
		ice.NestedField{ID: 4, Name: "s", Type: ice.PrimitiveTypes.String},
	)
	n, s := ice.Reference("n"), ice.Reference("s")
	for name, expression := range map[string]ice.BooleanExpression{
		"equal":          ice.EqualTo(n, int64(1)),
		"not equal":      ice.NotEqualTo(s, "a"),
		"less":           ice.LessThan(n, int64(1)),
		"at most":        ice.LessThanEqual(s, "a"),
		"greater":        ice.GreaterThan(n, int64(1)),
		"at least":       ice.GreaterThanEqual(s, "a"),
		"null":           ice.IsNull(n),
		"not null":       ice.NotNull(s),
		"nan, 32 bits":   ice.IsNaN(ice.Reference("x")),
		"no nan, 64":     ice.NotNaN(ice.Reference("y")),
		"starts with":    ice.StartsWith(s, "a"),
		"other start":    ice.NotStartsWith(s, "a"),
		"in":             ice.IsIn(n, int64(1), int64(2)),
		"not in":         ice.NotIn(s, "a", "b"),
		"and, or, not":   ice.NewNot(ice.NewAnd(ice.IsNull(n), ice.NewOr(ice.IsNull(s), ice.EqualTo(n, int64(1))))),
		"and of several": ice.NewAnd(ice.IsNull(n), ice.IsNull(s), ice.NotNull(n), ice.NotNull(s)),
	} {
		bound, err := ice.BindExpr(schema, expression, true)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if _, _, err := substrait.ConvertExpr(schema, bound, true); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
