// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/common"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/stat"
	"github.com/grafana/grafana-foundation-sdk/go/table"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
)

// board is a dashboard. Its file and its UID follow from its name.
type board struct {
	name, title, description string
	variables                []variable
	rows                     []row
}

// variable is what a user of the dashboard chooses: one of label_values(series, label).
type variable struct {
	name, label, series string
	many                bool // it may be several of them: expressions compare it by =~
}

// row is a headline and the panels under it.
type row struct {
	title  string
	panels []panel
}

// panel answers a question.
type panel struct {
	title, question string
	look            look
	unit            string // of Grafana: bytes, Bps, reqps, rowsps, ops, s, percentunit, short
	queries         []query
}

// query is an expression of PromQL, and the names of its series, in which {{label}} is the label's value.
type query struct{ expr, legend string }

// look is how a panel shows its series.
type look int

const (
	graph  look = iota // over time
	stack              // over time, the series upon each other
	full               // over time, from 0 to 1; what is above nearlyFull is red
	number             // the last value of each series
	word               // the name of the series
	list               // a table with a line for each value of the labels that all queries have, for now
)

// nearlyFull is the part of the memory limit at which the alert DatacacheMemoryShort begins.
const nearlyFull = 0.95

const (
	wide, half, quarter = 24, 12, 6 // of the 24 columns of the grid
	low, high           = 4, 8      // heights of panels in units of Grafana's grid, of 30 pixels each
)

func (b board) file() string { return b.name + ".json" }

func (b board) uid() string { return "datacache-" + b.name }

// source is the Prometheus that the dashboard's user has chosen.
func source() common.DataSourceRef {
	return common.DataSourceRef{Type: new("prometheus"), Uid: new("${datasource}")}
}

// build returns the dashboard in Grafana's classic form: its newer one is not read by releases before 12.
func (b board) build() (dashboard.Dashboard, error) {
	others := dashboard.NewDashboardLinkBuilder("Datacache").Type(dashboard.DashboardLinkTypeDashboards).
		Tags([]string{"datacache"}).AsDropdown(true).KeepTime(true)
	d := dashboard.NewDashboardBuilder(b.title).Uid(b.uid()).Description(b.description).Tags([]string{"datacache"}).
		Time("now-1h", "now").Refresh("30s").Tooltip(dashboard.DashboardCursorSyncCrosshair).Link(others).
		WithVariable(dashboard.NewDatasourceVariableBuilder("datasource").Label("Prometheus").Type("prometheus"))
	for _, v := range b.variables {
		d.WithVariable(v.build())
	}
	id := uint32(0)
	for _, r := range b.rows {
		id++
		d.WithRow(dashboard.NewRowBuilder(r.title).Id(id))
		for _, p := range r.panels {
			id++
			d.WithPanel(p.build(id))
		}
	}
	return d.Build()
}

func (v variable) build() cog.Builder[dashboard.VariableModel] {
	values := "label_values(" + v.series + ", " + v.label + ")"
	built := dashboard.NewQueryVariableBuilder(v.name).Datasource(source()).Query(dashboard.StringOrMap{String: &values}).
		Refresh(dashboard.VariableRefreshOnTimeRangeChanged).Sort(dashboard.VariableSortAlphabeticalAsc)
	if v.many {
		built.IncludeAll(true).Multi(true).AllValue(".*").
			Current(dashboard.VariableOption{Selected: new(true), Text: text("All"), Value: text("$__all")})
	}
	return built
}

func text(s string) dashboard.StringOrArrayOfString {
	return dashboard.StringOrArrayOfString{String: &s}
}

func (p panel) build(id uint32) cog.Builder[dashboard.Panel] {
	switch p.look {
	case number, word:
		return p.stat(id)
	case list:
		return p.table(id)
	default:
		return p.timeseries(id)
	}
}

func (q query) build() *prometheus.DataqueryBuilder {
	return prometheus.NewDataqueryBuilder().Expr(q.expr).LegendFormat(q.legend).Datasource(source())
}

// ref is the name of the i-th query in a panel, by which Grafana tells its columns from those of others.
func ref(i int) string { return string(rune('A' + i)) }

func (p panel) timeseries(id uint32) cog.Builder[dashboard.Panel] {
	built := timeseries.NewPanelBuilder().Id(id).Title(p.title).Description(p.question).Unit(p.unit).Datasource(source()).
		Span(half).Height(high).Min(0).FillOpacity(10).ShowPoints(common.VisibilityModeNever).
		Legend(common.NewVizLegendOptionsBuilder().ShowLegend(true).DisplayMode(common.LegendDisplayModeList).
			Placement(common.LegendPlacementBottom)).
		Tooltip(common.NewVizTooltipOptionsBuilder().Mode(common.TooltipDisplayModeMulti).Sort(common.SortOrderDescending))
	if p.look == stack {
		built.FillOpacity(40).Stacking(common.NewStackingConfigBuilder().Mode(common.StackingModeNormal))
	}
	if p.look == full {
		built.Max(1).ThresholdsStyle(common.NewGraphThresholdsStyleConfigBuilder().Mode(common.GraphThresholdsStyleModeDashed)).
			Thresholds(dashboard.NewThresholdsConfigBuilder().Mode(dashboard.ThresholdsModeAbsolute).
				Steps([]dashboard.Threshold{{Color: "green"}, {Value: new(nearlyFull), Color: "red"}}))
	}
	for i, q := range p.queries {
		built.WithTarget(q.build().RefId(ref(i)).Range())
	}
	return built
}

func (p panel) stat(id uint32) cog.Builder[dashboard.Panel] {
	mode := common.BigValueTextModeAuto
	if p.look == word {
		mode = common.BigValueTextModeName
	}
	built := stat.NewPanelBuilder().Id(id).Title(p.title).Description(p.question).Unit(p.unit).Datasource(source()).
		Span(quarter).Height(low).TextMode(mode).ColorMode(common.BigValueColorModeNone).GraphMode(common.BigValueGraphModeNone).
		ReduceOptions(common.NewReduceDataOptionsBuilder().Calcs([]string{"lastNotNull"}))
	for i, q := range p.queries {
		built.WithTarget(q.build().RefId(ref(i)).Instant())
	}
	return built
}

// table has a column for each query, under the query's legend; one without a legend has only labels. The name links to the cache's own
// dashboard.
func (p panel) table(id uint32) cog.Builder[dashboard.Panel] {
	const one = "/d/datacache-cache?var-namespace=${__data.fields.namespace}&var-cache=${__data.fields.name}&${datasource:queryparam}"
	hidden, names := map[string]any{"Time": true}, map[string]any{}
	built := table.NewPanelBuilder().Id(id).Title(p.title).Description(p.question).Datasource(source()).Span(wide).Height(high)
	for i, q := range p.queries {
		built.WithTarget(q.build().RefId(ref(i)).Instant().Format(prometheus.PromQueryFormatTable))
		column := "Value #" + ref(i) // Grafana's name for it
		if q.legend == "" {
			hidden[column] = true
		} else {
			names[column] = q.legend
		}
	}
	return built.WithTransformation(dashboard.DataTransformerConfig{Id: "merge", Options: map[string]any{}}).
		WithTransformation(dashboard.DataTransformerConfig{
			Id: "organize", Options: map[string]any{"excludeByName": hidden, "renameByName": names},
		}).
		Footer(common.NewTableFooterOptionsBuilder()). // its default is not what Grafana's types require
		OverrideByName("Loaded", property("unit", "percentunit")).
		OverrideByName("In memory", property("unit", "bytes")).
		OverrideByName("name", property("links", []any{map[string]any{"title": "This cache", "url": one}}))
}

func property(id string, value any) []dashboard.DynamicConfigValue {
	return []dashboard.DynamicConfigValue{{Id: id, Value: value}}
}
