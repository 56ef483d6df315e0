"use strict";
// Everything a page does in the browser: live parts, plots, times, keys, copying. Pages work without it, but stand still.

const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

function remember(key, value) {
  try {
    if (value === undefined) return localStorage.getItem(key) || "";
    localStorage.setItem(key, value);
  } catch (_) { /* storage is switched off: nothing is remembered */ }
  return "";
}

// --- times: in the reader's time zone or in UTC, as chosen; the other when pointed at -------------------------------
let utc = remember("holdfast-zone") === "utc";
const clockOf = (timeZone) => new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium", timeZone });
const clocks = { local: clockOf(undefined), utc: clockOf("UTC") };
const timeOf = (at, inUtc) => inUtc ? clocks.utc.format(at) + " UTC" : clocks.local.format(at);
function localTimes(root) {
  for (const time of $$("time[datetime]", root)) {
    const at = new Date(time.dateTime);
    if (isNaN(at)) continue;
    time.title = timeOf(at, !utc);
    time.textContent = timeOf(at, utc);
  }
  for (const place of $$("[data-zone-switch]", root)) place.firstChild.textContent = utc ? "UTC" : "Local";
}

// --- live parts ----------------------------------------------------------------------------------------------------
let source = null;
function offline(text) {
  const note = $("#offline");
  note.hidden = !text;
  note.textContent = text;
}
function goLive() {
  const place = $("[data-live]");
  if (!place || source || document.hidden) return;
  source = new EventSource(place.dataset.live);
  source.addEventListener("open", () => offline(""));
  source.addEventListener("parts", (event) => {
    document.documentElement.dataset.updated = "1";
    for (const [id, html] of Object.entries(JSON.parse(event.data))) {
      const part = document.getElementById(id);
      if (!part || part.contains(document.activeElement) && document.activeElement.matches("input, select, textarea")) continue;
      replace(part, html);
      localTimes(part);
      if (window.htmx) htmx.process(part);
    }
    offline("");
  });
  source.addEventListener("sample", () => drawPlots());
  source.addEventListener("problem", (event) => offline(JSON.parse(event.data)));
  source.addEventListener("end", () => { stopLive(); offline("Not live any more. Reload the page."); });
  source.addEventListener("error", () => {
    offline(source && source.readyState === EventSource.CLOSED ? "Not live any more. Reload the page." : "The server does not answer. Trying again …");
  });
}
// The new content, with the focus, scroll positions and what was unfolded as they were.
function replace(part, html) {
  const focusable = "a[href], button, summary, [tabindex]";
  const focused = $$(focusable, part).indexOf(document.activeElement);
  const scrolled = $$(".scroll", part).map((place) => place.scrollLeft);
  const unfolded = $$("details", part).map((place) => place.open);
  part.innerHTML = html;
  $$(".scroll", part).forEach((place, index) => { place.scrollLeft = scrolled[index] || 0; });
  $$("details", part).forEach((place, index) => { place.open = unfolded[index] || place.open; });
  if (focused >= 0) ($$(focusable, part)[focused] || part).focus({ preventScroll: true });
}
function stopLive() {
  if (source) source.close();
  source = null;
}

// --- plots ---------------------------------------------------------------------------------------------------------
const NAMES = { depth: "stored", enqueued: "in", acked: "out", failed: "failed", dead: "dead", wait: "wait", work: "processing" };
const drawn = new Map();
const token = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
function short(value, unit) {
  if (value === null || value === undefined) return "–";
  const abs = Math.abs(value);
  const text = abs >= 1e6 ? (value / 1e6).toPrecision(3) + "M" : abs >= 1e4 ? (value / 1e3).toPrecision(3) + "k"
    : abs >= 100 || Number.isInteger(value) ? String(Math.round(value)) : value.toFixed(abs < 0.1 ? 3 : 1);
  return text + (unit === "/s" ? "/s" : unit ? " " + unit : "");
}
async function drawPlots() {
  for (const section of $$("[data-plots]")) {
    if (typeof uPlot === "undefined") return;
    const range = $("[data-range][aria-current]", section).dataset.range;
    let data;
    try {
      const answer = await fetch(section.dataset.plots + "?range=" + encodeURIComponent(range), { headers: { Accept: "application/json" } });
      if (!answer.ok) continue;
      data = await answer.json();
    } catch (_) { continue; } // the live connection says that the server does not answer
    for (const place of $$("[data-plot]", section)) drawPlot(place, data, range);
  }
}
function axisTime(at, range) {
  const options = range === "7d" ? { day: "numeric", month: "short" } : { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
  if (utc) options.timeZone = "UTC";
  return new Intl.DateTimeFormat(undefined, options).format(new Date(at * 1000));
}
function drawPlot(place, data, range) {
  const fields = place.dataset.plot.split(",");
  const unit = place.dataset.unit;
  const rows = [data.at, ...fields.map((field) => data[field])];
  const old = drawn.get(place);
  if (old && old.range === range && old.theme === token("--ground")) { old.plot.setData(rows); return; }
  if (old) old.plot.destroy();
  const axis = { stroke: token("--ink-soft"), grid: { stroke: token("--border"), width: 1 }, ticks: { stroke: token("--border"), width: 1 }, font: "12px system-ui, sans-serif" };
  const plot = new uPlot({
    width: place.clientWidth, height: 180,
    padding: [8, 8, 0, 0],
    cursor: { y: false, drag: { x: false, y: false } },
    legend: { live: true },
    scales: { y: { range: (_, low, high) => [0, Math.max(high || 0, unit ? 1 : 10) * 1.05] } },
    axes: [{ ...axis, space: 70, values: (_, ticks) => ticks.map((at) => axisTime(at, range)) }, { ...axis, size: 56, values: (_, ticks) => ticks.map((tick) => short(tick, "")) }],
    series: [
      { value: (_, at) => at === null ? "–" : timeOf(new Date(at * 1000), utc), label: "at" },
      ...fields.map((field, index) => ({
        label: NAMES[field], stroke: token("--plot-" + (index + 1)), width: 1.75, points: { show: false }, spanGaps: false,
        fill: fields.length === 1 ? token("--plot-1") + "22" : undefined, value: (_, value) => short(value, unit),
      })),
    ],
  }, rows, place);
  drawn.set(place, { plot, range, theme: token("--ground") });
}
new ResizeObserver(() => {
  for (const [place, { plot }] of drawn) if (place.clientWidth !== plot.width) plot.setSize({ width: place.clientWidth, height: 180 });
}).observe(document.documentElement);

// --- keys ----------------------------------------------------------------------------------------------------------
const PLACES = { o: "/", q: "/queues", d: "/dead-letters", c: "/consumers", m: "/mqtt-sessions", s: "/schedules", l: "/lake", a: "/audit" };
let prefix = 0;
function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  if (event.key === "Escape" && document.activeElement && document.activeElement.matches("input[type=search]")) document.activeElement.blur();
  if (event.target.closest("input, select, textarea, [contenteditable]")) return;
  if (event.key === "/") { const find = $("#find"); if (find) { event.preventDefault(); find.focus(); find.select(); } return; }
  if (event.key === "?") { event.preventDefault(); showHelp(); return; }
  if (event.key === "g") { prefix = Date.now(); return; }
  if (Date.now() - prefix < 1500 && PLACES[event.key]) location.assign(PLACES[event.key]);
  prefix = 0;
}
async function showHelp() {
  if ($("#help")) { $("#help").showModal(); return; }
  const dialog = document.createElement("dialog");
  dialog.id = "help";
  const answer = await fetch("/help");
  const keys = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("#keys");
  if (!keys) return;
  keys.removeAttribute("class");
  const close = document.createElement("button");
  close.textContent = "Close";
  close.addEventListener("click", () => dialog.close());
  dialog.append(document.adoptNode(keys), close);
  document.body.append(dialog);
  dialog.showModal();
}

// --- filters that the reader has saved, in this browser -------------------------------------------------------------
function savedFilters() {
  const place = $("[data-saved]");
  if (!place) return;
  const key = "holdfast-filters-" + place.dataset.saved;
  let saved;
  try { saved = JSON.parse(remember(key) || "[]"); } catch (_) { saved = []; }
  place.replaceChildren();
  saved.forEach((one, index) => {
    const chip = document.createElement("span");
    chip.className = "chip";
    const go = document.createElement("a");
    go.href = location.pathname + one.query;
    go.textContent = one.name;
    const drop = document.createElement("button");
    drop.type = "button"; drop.className = "quiet"; drop.textContent = "×";
    drop.setAttribute("aria-label", "Forget the filter " + one.name);
    drop.addEventListener("click", () => { saved.splice(index, 1); remember(key, JSON.stringify(saved)); savedFilters(); });
    chip.append(go, drop);
    place.append(chip);
  });
  const save = document.createElement("button");
  save.type = "button"; save.className = "quiet"; save.textContent = "Save this filter";
  save.addEventListener("click", () => {
    const query = location.search;
    const name = new URLSearchParams(query).get("find") || query.slice(1) || "all";
    if (!saved.some((one) => one.query === query)) saved.push({ name, query });
    remember(key, JSON.stringify(saved.slice(-20)));
    savedFilters();
  });
  place.append(save);
}

// --- the rest ------------------------------------------------------------------------------------------------------
document.addEventListener("click", async (event) => {
  const range = event.target.closest("[data-range]");
  if (range) {
    for (const other of $$("[data-range]", range.parentElement)) other.removeAttribute("aria-current");
    range.setAttribute("aria-current", "true");
    drawPlots();
  }
  if (event.target.closest("[data-theme-switch]")) {
    const dark = getComputedStyle(document.documentElement).colorScheme.includes("dark");
    document.documentElement.dataset.theme = dark ? "light" : "dark";
    remember("holdfast-theme", document.documentElement.dataset.theme);
    drawPlots();
  }
  if (event.target.closest("[data-zone-switch]")) {
    utc = !utc;
    remember("holdfast-zone", utc ? "utc" : "local");
    localTimes(document);
    for (const { plot } of drawn.values()) plot.redraw(false, true);
  }
  if (event.target.closest("[data-help]")) { event.preventDefault(); showHelp(); }
  const copy = event.target.closest("[data-copy]");
  if (copy) {
    const text = document.getElementById(copy.dataset.copy).textContent;
    try { await navigator.clipboard.writeText(text); copy.textContent = "Copied"; } catch (_) { copy.textContent = "Select and copy"; }
    setTimeout(() => { copy.textContent = "Copy"; }, 2000);
  }
});
document.addEventListener("input", (event) => {
  const field = event.target.closest("[data-must-be]");
  if (field) $("button", field.form).disabled = field.value !== field.dataset.mustBe;
});
document.addEventListener("keydown", onKey);
document.addEventListener("visibilitychange", () => { if (document.hidden) stopLive(); else { goLive(); drawPlots(); } });
document.addEventListener("htmx:afterSwap", (event) => {
  localTimes(event.target);
  if ($("[data-live]", event.target) || event.target.id === "list") { stopLive(); goLive(); } // of what is shown now
});
document.addEventListener("htmx:responseError", (event) => offline("The server answered " + event.detail.xhr.status + ". Reload the page."));
document.addEventListener("htmx:sendError", () => offline("The server does not answer."));
window.addEventListener("pagehide", stopLive);

for (const field of $$("[data-must-be]")) $("button", field.form).disabled = true;
const current = $(".nav [aria-current]");
if (current) current.scrollIntoView({ block: "nearest", inline: "center" });
localTimes(document);
savedFilters();
goLive();
drawPlots();
