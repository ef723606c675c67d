// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package pages

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/kubeflow/datacache/test/kit/deadline"
)

// browser is one Chromium, which all tests of this package share.
var browser struct {
	once sync.Once
	ctx  context.Context
	stop context.CancelFunc
	err  error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if browser.stop != nil {
		browser.stop()
	}
	os.Exit(code)
}

// tab is a tab of the browser, with cookies and console of its own.
type tab struct {
	t   *testing.T
	ctx context.Context

	mu       sync.Mutex
	messages []string // errors and warnings of the console
}

// open opens a tab, which is closed at the end of the test. The test fails then if the console has an error, unless it is expected.
func open(t *testing.T, expected ...string) *tab {
	t.Helper()
	program := os.Getenv("DATACACHE_CHROMIUM")
	if program == "" {
		t.Skip("DATACACHE_CHROMIUM names no Chromium: run by make, which installs one (hack/bootstrap browser)")
	}
	browser.once.Do(func() {
		options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program), chromedp.NoSandbox, chromedp.DisableGPU,
			chromedp.Flag("hide-scrollbars", true))
		allocator, stop := chromedp.NewExecAllocator(context.WithoutCancel(t.Context()), options...)
		browser.ctx, browser.stop = chromedp.NewContext(allocator)
		inner := browser.stop
		browser.stop = func() { inner(); stop() }
		browser.err = chromedp.Do(browser.ctx)
	})
	if browser.err != nil {
		t.Fatalf("%s: %v", program, browser.err)
	}
	ctx, cancel := chromedp.NewContext(browser.ctx, chromedp.WithNewBrowserContext())
	ctx, end := context.WithCancel(ctx)
	context.AfterFunc(deadline.Context(t), end)
	b := &tab{t: t, ctx: ctx}
	messages := chromedp.Console(ctx)
	read := make(chan struct{})
	go func() {
		defer close(read)
		for m, err := range messages {
			if err != nil {
				return
			}
			if m.Type == chromedp.ConsoleError || m.Type == chromedp.ConsoleWarning || m.IsException() {
				b.mu.Lock()
				b.messages = append(b.messages, m.String()+" "+m.URL)
				b.mu.Unlock()
			}
		}
	}()
	t.Cleanup(func() {
		end()
		cancel()
		<-read
		for _, m := range b.messages {
			if !containsAny(m, expected) {
				t.Errorf("the console says %s", m)
			}
		}
	})
	b.size(1200, 900)
	return b
}

func containsAny(text string, all []string) bool {
	for _, part := range all {
		if strings.Contains(text, part) {
			return true
		}
	}
	return false
}

func (b *tab) do(what string, steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	if err := chromedp.Do(b.ctx, steps...); err != nil {
		b.t.Fatalf("%s: %v", what, err)
	}
}

func (b *tab) goTo(url string) {
	b.t.Helper()
	b.do("open "+url, chromedp.Navigate(url))
}

func (b *tab) size(width, height int64) {
	b.t.Helper()
	b.do("resize", chromedp.EmulateViewport(width, height))
}

// colors sets which colors the user prefers, light or dark.
func (b *tab) colors(scheme string) {
	b.t.Helper()
	_, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
	})
	if err != nil {
		b.t.Fatal(err)
	}
}

// withoutScripts turns JavaScript off in pages that are opened from now on.
func (b *tab) withoutScripts() {
	b.t.Helper()
	if _, err := chromedp.Call(b.ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true}); err != nil {
		b.t.Fatal(err)
	}
}

// evaluate returns the value of a JavaScript expression.
func evaluate[T any](b *tab, expression string) T {
	b.t.Helper()
	value, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		b.t.Fatalf("%s: %v", expression, err)
	}
	return value
}

// text returns what a person reads in an element.
func (b *tab) text(selector string) string {
	b.t.Helper()
	return evaluate[string](b, fmt.Sprintf("(document.querySelector(%q) || {innerText: ''}).innerText", selector))
}

// await waits until an element's text contains all parts.
func (b *tab) await(selector string, parts ...string) {
	b.t.Helper()
	deadline.Eventually(b.t, func() error {
		text := b.text(selector)
		for _, part := range parts {
			if !strings.Contains(text, part) {
				return fmt.Errorf("%s has no %q, but:\n%s", selector, part, text)
			}
		}
		return nil
	})
}

// picture takes a picture of the upper part of the page, into the folder DATACACHE_PICTURES if that is set.
func (b *tab) picture(name string) {
	b.t.Helper()
	dir := os.Getenv("DATACACHE_PICTURES")
	if dir == "" {
		return
	}
	png, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

// axe is the script of axe-core, which checks whether people with disabilities can use a page.
var axe = sync.OnceValues(func() (string, error) {
	dir := os.Getenv("DATACACHE_AXE")
	if dir == "" {
		return "", fmt.Errorf("DATACACHE_AXE names no folder with axe-core: run by make, which makes one of hack/axe")
	}
	text, err := os.ReadFile(filepath.Join(dir, "node_modules/axe-core/axe.min.js"))
	return string(text), err
})

// accessible fails the test for every rule of axe-core that the page breaks.
func (b *tab) accessible(what string) {
	b.t.Helper()
	script, err := axe()
	if err != nil {
		b.t.Fatal(err)
	}
	b.do("load axe-core", func(ctx context.Context, t *chromedp.Target) (chromedp.Void, error) {
		_, err := chromedp.Evaluate[any](script+"; true")(ctx, t)
		return chromedp.Void{}, err
	})
	const run = `axe.run(document).then((r) => JSON.stringify({
		passes: r.passes.length,
		violations: r.violations.map((v) => v.id + ": " + v.help + ": " + v.nodes.map((n) => n.html).slice(0, 3).join(" | "))}))`
	answer, err := chromedp.Run(b.ctx, chromedp.Evaluate[string](run, chromedp.EvalAwaitPromise))
	if err != nil {
		b.t.Fatal(err)
	}
	var result struct {
		Passes     int
		Violations []string
	}
	if err := json.Unmarshal([]byte(answer), &result); err != nil {
		b.t.Fatal(err)
	}
	if result.Passes < 10 {
		b.t.Errorf("%s: axe-core found only %d rules to check", what, result.Passes)
	}
	for _, v := range result.Violations {
		b.t.Errorf("%s: %s", what, v)
	}
}
