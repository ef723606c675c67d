// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Keeps the page current: /events sends the HTML of sections that changed. Where it is refused, or the page says that it has none by the
// attribute data-poll of #live, the page is fetched anew every 5 s.
"use strict";

const note = document.getElementById("live");
const say = (text) => {
  if (note.textContent !== text) note.textContent = text;
};

const put = (sections) => {
  for (const [name, html] of Object.entries(sections)) {
    const element = document.getElementById(name);
    // The server has escaped every text in it. What did not change stays, and with it the focus.
    if (element && element.innerHTML !== html) element.innerHTML = html;
  }
  const state = document.querySelector("#state [data-title]");
  if (state) document.title = state.dataset.title;
};

const poll = async () => {
  try {
    const response = await fetch(location.href, { cache: "no-store" });
    if (!response.ok) throw new Error(response.statusText);
    const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
    const sections = {};
    for (const element of fresh.querySelectorAll("main > section")) sections[element.id] = element.innerHTML;
    put(sections);
    say("every 5 s");
  } catch {
    say("no answer, trying again");
  }
  setTimeout(poll, 5000);
};

const listen = () => {
  const source = new EventSource("events");
  source.onopen = () => say("live");
  source.onmessage = (message) => {
    put(JSON.parse(message.data));
    say("live");
  };
  source.onerror = () => {
    if (source.readyState === EventSource.CLOSED) poll();
    else say("no answer, trying again");
  };
};

if ("poll" in note.dataset) {
  say("every 5 s");
  setTimeout(poll, 5000);
} else listen();
