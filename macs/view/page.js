() => {
  // What happens without Python: selection marks, map mode, theme, keyboard. Regions are replaced whole at each update,
  // so every listener sits on the document and marks are put back after each change.
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const send = (name, detail) => document.dispatchEvent(new CustomEvent(`macs-${name}`, { detail }));

  // ---- theme: gradio puts "dark" on the body; a choice made here is kept for the next visit
  const kept = localStorage.getItem("macs-theme");
  if (kept && !new URLSearchParams(location.search).has("__theme")) document.body.classList.toggle("dark", kept === "dark");

  // ---- marks: what is selected, outlined in every view
  const marked = ["sel", "hit", "gone", "touch", "hot"];
  function unmark() {
    for (const name of marked) all(`.${name}`).forEach((element) => element.classList.remove(name));
    all(".dot, .ring").forEach((element) => element.remove());
    document.getElementById("page")?.classList.remove("picking");
  }
  function mark() {
    unmark();
    const marks = JSON.parse(document.querySelector(".strip")?.dataset.marks || "{}");
    const add = (selector, name) => all(selector).forEach((element) => element.classList.add(name));
    if (marks.token !== undefined) {
      add(`.pc[data-token="${marks.token}"], .tok [data-token="${marks.token}"]`, "sel");
      const cell = document.querySelector(`.pc[data-token="${marks.token}"]`);
      const place = cell && cell.closest(".map");
      if (place) all(`.fate:nth-of-type(1) .cells`).forEach((cells) => ring(cells, cell, [...place.parentElement.children].filter((e) => e.matches(".map")).indexOf(place)));
    }
    for (const [expert, panel, height] of marks.dots || []) {
      const column = document.querySelector(`.ex[data-expert="${expert}"]`);
      if (!column) continue;
      column.classList.add("touch");
      const dot = document.createElement("i");
      dot.className = "dot";
      dot.style.setProperty("--y", height);
      column.querySelector(`.plot.${panel}`).append(dot);
    }
    for (const flow of marks.arcs || []) add(`[data-flow="${flow}"]`, "hot");
    if (marks.expert !== undefined) add(`.ex[data-expert="${marks.expert}"]`, "sel");
    if (marks.rank !== undefined) add(`.rank[data-rank="${marks.rank}"]`, "sel");
    if (marks.tokens) {
      document.getElementById("page").classList.add("picking");
      for (const token of marks.turned) add(`[data-token="${token}"]`, "gone");
      for (const token of marks.tokens) add(`[data-token="${token}"]`, "hit");
    }
  }
  function ring(cells, cell, picture) {
    const map = cells.closest(".map");
    const index = [...map.parentElement.children].filter((e) => e.matches(".map")).indexOf(map);
    if (index !== picture) return;
    const outline = document.createElement("i");
    outline.className = "ring";
    outline.style.cssText = cell.style.cssText;
    cells.append(outline);
  }

  // ---- clicks
  document.addEventListener("click", (event) => {
    const at = (selector) => event.target.closest?.(selector);
    const found = { theme: at("[data-theme-switch]"), map: at("[data-set=map]"), opens: at("[data-opens]"), sends: at("[data-send]") };
    if (found.theme) {
      const dark = document.body.classList.toggle("dark");
      localStorage.setItem("macs-theme", dark ? "dark" : "light");
    } else if (found.map) {
      document.getElementById("page").dataset.map = found.map.dataset.value;
      pressed();
    } else if (found.opens) {
      const panel = document.getElementById(found.opens.dataset.opens);
      if (panel.classList.toggle("open")) panel.scrollIntoView({ block: "nearest" });
      pressed();
    } else if (found.sends) send(found.sends.dataset.send, { value: found.sends.dataset.value });
    else select(at);
  });
  function select(at) {
    const focus = at("[data-focus]"), token = at("[data-token]"), expert = at(".ex"), cell = at("[data-cell-expert]"), row = at("[data-cell-layer]");
    if (focus) send("focus", { kind: focus.dataset.focus, value: focus.dataset.value ?? "0" });
    else if (token) send("focus", { kind: "token", value: token.dataset.token });
    else if (expert) send("focus", { kind: "expert", value: expert.dataset.expert });
    else if (cell) send("cell", { layer: row.dataset.cellLayer, value: cell.dataset.cellExpert });
    else if (row) send("layer", { value: row.dataset.cellLayer });
  }
  function pressed() {
    const mode = document.getElementById("page")?.dataset.map;
    if (mode) all("[data-set=map]").forEach((b) => b.setAttribute("aria-pressed", String(b.dataset.value === mode)));
    all("[data-opens]").forEach((b) => b.setAttribute("aria-expanded", String(document.getElementById(b.dataset.opens).classList.contains("open"))));
  }

  // ---- keyboard: one tab stop per group, arrows move inside it, Escape clears
  const stops = "button, [tabindex]";
  function rove() {
    for (const group of all("[data-rove]")) {
      const items = all(stops, group);
      if (items.length && !items.some((item) => item.tabIndex === 0)) items[0].tabIndex = 0;
    }
  }
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && document.querySelector(".strip:not(.none)") && !event.target.closest?.("input, textarea")) send("focus", { kind: "none", value: "0" });
    const group = event.target.closest?.("[data-rove]");
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!group || !step) return;
    event.preventDefault();
    const next = nearest(all(stops, group), event.target.closest(stops), step);
    if (!next) return;
    all(stops, group).forEach((item) => (item.tabIndex = -1));
    next.tabIndex = 0;
    next.focus();
  });
  function nearest(items, from, [dx, dy]) {
    const here = from.getBoundingClientRect();
    const middle = (box) => [box.left + box.width / 2, box.top + box.height / 2];
    const [x, y] = middle(here);
    let best = null, least = Infinity;
    for (const item of items) {
      if (item === from) continue;
      const [u, v] = middle(item.getBoundingClientRect());
      const along = (u - x) * dx + (v - y) * dy, aside = Math.abs((u - x) * dy) + Math.abs((v - y) * dx);
      const cost = along + 3 * aside;
      if (along > 1 && cost < least) [best, least] = [item, cost];
    }
    return best;
  }

  // ---- after each update: language, pressed buttons, marks
  let due = false;
  const observer = new MutationObserver(() => {
    if (due) return;
    due = true;
    requestAnimationFrame(refresh);
  });
  function refresh() {
    due = false;
    observer.disconnect();
    const lang = document.querySelector("header[data-lang]")?.dataset.lang;
    if (lang) document.documentElement.lang = lang === "zh" ? "zh-Hans" : lang;
    mark();
    pressed();
    rove();
    observer.observe(document.body, { childList: true, subtree: true });
  }
  refresh();
}
