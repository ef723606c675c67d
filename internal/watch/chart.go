// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

const (
	// chartWidth and chartHeight are the size of a chart's coordinate system: one unit of width for bucket seconds.
	chartWidth  = seconds / bucket
	chartHeight = 60
	// bucket is the number of seconds whose mean is one point of a chart, and after which charts are drawn anew.
	bucket = 5
)

// chart is the drawing of the series of one chart. Its texts are not escaped.
type chart struct {
	Title   string
	Summary string // says in words what the lines show
	Lines   []line
	Top     string // label of the upper edge
}

type line struct {
	Name, Now string
	Index     int // selects the color
	Limit     bool
	Points    string // of a polyline
	Area      string // of the polygon below it; empty for a limit
}

// charts draws every chart, in the order in which series name them first.
func (h *history) charts() []chart {
	var order []string
	members := map[string][]int{}
	for i, s := range h.series {
		if members[s.Chart] == nil {
			order = append(order, s.Chart)
		}
		members[s.Chart] = append(members[s.Chart], i)
	}
	charts := make([]chart, 0, len(order))
	for _, title := range order {
		charts = append(charts, h.chart(title, members[title]))
	}
	return charts
}

func (h *history) chart(title string, members []int) chart {
	c := chart{Title: title}
	unit := h.series[members[0]].Unit
	means := make([][]float64, len(members))
	most := 0.0
	for i, m := range members {
		means[i] = meansOf(h.values(m))
		for _, v := range means[i] {
			most = max(most, v)
		}
	}
	c.Top = unit.format(most)
	var said []string
	for i, m := range members {
		s := h.series[m]
		l := line{Name: s.Name, Now: s.Unit.format(lastOf(means[i])), Index: i, Limit: s.Limit}
		l.Points = points(means[i], most)
		if n := len(means[i]); n > 0 && !s.Limit {
			l.Area = fmt.Sprintf("%d,%d %s %d,%d", chartWidth-n, chartHeight, l.Points, chartWidth-1, chartHeight)
		}
		c.Lines = append(c.Lines, l)
		said = append(said, s.Name+" "+l.Now)
	}
	c.Summary = fmt.Sprintf("%s, the last %s: now %s; at most %s", title, formatDuration(seconds*time.Second), strings.Join(said, ", "), c.Top)
	return c
}

// meansOf returns the means of buckets; the newest may have fewer values.
func meansOf(values []float64) []float64 {
	means := make([]float64, 0, len(values)/bucket+1)
	for len(values) > 0 {
		n := min(bucket, len(values))
		sum := 0.0
		for _, v := range values[:n] {
			sum += v
		}
		means, values = append(means, sum/float64(n)), values[n:]
	}
	return means
}

func lastOf(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	return values[len(values)-1]
}

// points places values on the chart, the newest at its right edge; most is at the upper edge.
func points(values []float64, most float64) string {
	var b strings.Builder
	for i, v := range values {
		if i > 0 {
			b.WriteByte(' ')
		}
		y := float64(chartHeight - 1)
		if most > 0 {
			y -= v / most * (chartHeight - 2)
		}
		b.WriteString(strconv.Itoa(chartWidth - len(values) + i))
		b.WriteByte(',')
		b.WriteString(strconv.FormatFloat(y, 'f', 1, 64))
	}
	return b.String()
}
