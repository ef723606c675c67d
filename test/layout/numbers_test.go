// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package layout

import (
	"go/ast"
	"go/token"
	"path"
	"slices"
	"strings"
	"testing"
)

// foreignNumbers are patterns of the files that check untrusted lengths, offsets and counts of messages and files.
var foreignNumbers = []string{
	"cacheserver/protocol/exchange/*.go",
	"cacheserver/put/incoming/*.go",
	"cacheserver/rows/check.go",
	"cacheserver/rows/foreign.go",
	"cacheserver/node/stage/text.go",
	"cacheserver/source/delta/vector.go",
	"cacheserver/source/parquet/footer.go",
	"cacheserver/source/parquet/section.go",
	"cacheserver/source/parquet/thrift.go",
	"cacheserver/source/parquet/weight.go",
	"cacheserver/source/parquet/decode/header.go",
	"cacheserver/source/parquet/decode/page.go",
	"cacheserver/source/parquet/decode/pages.go",
}

// fits begins the comment that says why an operation on foreign numbers can't overflow.
const fits = "// fits: "

// TestForeignNumbersAreCompared rejects subtractions, multiplications and shifts of two variables in these files: with untrusted numbers the result may
// overflow and pass the check that follows. Where it can't overflow, a comment at the end of the line says why.
func TestForeignNumbersAreCompared(t *testing.T) {
	set, files := repository(t)
	checked, commented := 0, 0
	for _, f := range files {
		listed := func(pattern string) bool {
			ok, err := path.Match(pattern, f.path)
			if err != nil {
				t.Fatal(err)
			}
			return ok
		}
		if f.isTest() || !slices.ContainsFunc(foreignNumbers, listed) {
			continue
		}
		checked++
		lines := strings.Split(f.text, "\n")
		ast.Inspect(f.ast, func(n ast.Node) bool {
			of, ok := n.(*ast.BinaryExpr)
			if !ok || of.Op != token.SUB && of.Op != token.MUL && of.Op != token.SHL || isConstant(of.X) || isConstant(of.Y) {
				return true
			}
			at := set.Position(of.OpPos)
			if _, why, ok := strings.Cut(lines[at.Line-1], fits); ok && len(why) > 0 {
				commented++
				return true
			}
			t.Errorf("%s:%d: %s of two numbers: compare them first, or say at the end of the line why the result fits, as in %q", f.path, at.Line, of.Op, fits+"both are below 2^31")
			return true
		})
	}
	if checked < len(foreignNumbers) || commented < 10 {
		t.Errorf("%d files with %d comments: are the patterns right?", checked, commented)
	}
}

// isConstant reports whether an expression consists of literals.
func isConstant(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.BasicLit:
		return true
	case *ast.ParenExpr:
		return isConstant(e.X)
	case *ast.BinaryExpr:
		return isConstant(e.X) && isConstant(e.Y)
	}
	return false
}
