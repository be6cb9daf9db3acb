() => {
  // What happens without Python: selection marks, map mode, theme, keyboard. Regions are replaced whole at each update,
  // so every listener sits on the document and marks are put back after each change.
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const send = (name, detail) => document.dispatchEvent(new CustomEvent(`macs-${name}`, { detail }));

  // ---- theme: gradio puts "dark" on the body; a choice made here is kept for the next visit
  const kept = localStorage.getItem("macs-theme");
  if (kept && !new URLSearchParams(location.search).has("__theme")) document.body.classList.toggle("dark", kept === "dark");

  let frame = 0, followed; // the picture or frame that the maps show, and the token to which they last turned
  let chosenMap = ""; // windows or colour, once somebody chose; until then what the number of patches calls for

  // ---- marks: what is selected, outlined in every view
  const marked = ["sel", "hit", "gone", "touch", "hot"];
  function unmark() {
    for (const name of marked) all(`.${name}`).forEach((element) => element.classList.remove(name));
    all(".dot, .ring, .through.veil, .many .through.pat-d").forEach((element) => element.remove());
    document.getElementById("page")?.classList.remove("picking");
  }
  function mark() {
    unmark();
    const marks = JSON.parse(document.querySelector(".strip")?.dataset.marks || "{}");
    const add = (selector, name) => all(selector).forEach((element) => element.classList.add(name));
    if (marks.token !== undefined) {
      add(`.pc[data-token="${marks.token}"], .tok [data-token="${marks.token}"]`, "sel");
      if (marks.box) all(`.fate[data-image="${marks.box[0]}"] .cells, .many[data-image="${marks.box[0]}"] .cells`).forEach((cells) => ring(cells, marks.box.slice(1)));
      if (marks.box && marks.token !== followed) showFrame(marks.box[0]);
    }
    followed = marks.token;
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
      marks.veils.forEach((masks, image) => {
        const cells = document.querySelector(`.many[data-image="${image}"] .cells`);
        masks.forEach((uri, i) => cells?.append(layer(`through ${["veil", "pat-d"][i]}`, { mask: `url(${uri})` })));
      });
    }
  }
  function layer(name, properties) {
    const element = document.createElement("i");
    element.className = name;
    for (const [key, value] of Object.entries(properties)) element.style.setProperty(`--${key}`, value);
    return element;
  }
  function ring(cells, [x0, y0, x1, y1]) {
    cells.append(layer("ring", { x: x0, y: y0, cw: x1 - x0, ch: y1 - y0 }));
    const places = cells.querySelector(".places");
    if (places && places !== document.activeElement) Object.assign(places.dataset, { x: (x0 + x1) / 2, y: (y0 + y1) / 2 });
  }

  // ---- pictures and frames: with a slider the maps show one at a time
  function showFrame(number) {
    const slider = document.querySelector("[data-frames]");
    const count = Number(slider?.dataset.frames || 0);
    frame = Math.max(0, Math.min(number, count - 1));
    all(".map[data-image]").forEach((map) => (map.hidden = count > 0 && Number(map.dataset.image) !== frame));
    if (!slider) return;
    slider.value = String(frame + 1);
    const [text, output] = [`${frame + 1} / ${count}`, slider.parentElement.querySelector("output")];
    if (output.textContent !== text) output.textContent = text;
  }
  document.addEventListener("input", (event) => event.target.matches?.("[data-frames]") && showFrame(event.target.value - 1));

  // ---- clicks
  document.addEventListener("click", (event) => {
    const at = (selector) => event.target.closest?.(selector);
    const found = { theme: at("[data-theme-switch]"), map: at("[data-set=map]"), opens: at("[data-opens]"), sends: at("[data-send]") };
    if (found.theme) {
      const dark = document.body.classList.toggle("dark");
      localStorage.setItem("macs-theme", dark ? "dark" : "light");
    } else if (found.map) {
      chosenMap = found.map.dataset.value;
      pressed();
    } else if (found.opens) {
      const panel = document.getElementById(found.opens.dataset.opens);
      if (panel.classList.toggle("open")) panel.scrollIntoView({ block: "nearest" });
      pressed();
    } else if (found.sends) send(found.sends.dataset.send, { value: found.sends.dataset.value });
    else if (at("[data-place]")) place(at("[data-place]"), event);
    else select(at, [event.clientX, event.clientY]);
  });
  function select(at, point) {
    const focus = at("[data-focus]"), token = at("[data-token]"), expert = at(".ex"), cell = at("[data-cell-expert], [data-cell-rank]"), row = at("[data-cell-layer]");
    const take = at("[data-take]"), grid = at("[data-cell-rows]");
    if (focus) send("focus", { kind: focus.dataset.focus, value: focus.dataset.value ?? "0" });
    else if (token) send("focus", { kind: "token", value: token.dataset.token });
    else if (expert) send("focus", { kind: "expert", value: expert.dataset.expert });
    else if (take) carry(take);
    else if (grid) send("cell", inGrid(grid, point));
    else if (cell) send("cell", { layer: row.dataset.cellLayer, ...inCell(cell.dataset) });
    else if (row) send("layer", { value: row.dataset.cellLayer });
  }
  function place(picture, event) {
    const box = picture.getBoundingClientRect(), { x = 0.5, y = 0.5 } = picture.dataset;
    const byKey = event.detail === 0; // Enter or Space: where the arrow keys have gone
    go(picture, byKey ? Number(x) : (event.clientX - box.left) / box.width, byKey ? Number(y) : (event.clientY - box.top) / box.height);
  }
  function go(picture, x, y) {
    const within = (value) => Math.min(0.99999, Math.max(0, value));
    Object.assign(picture.dataset, { x: within(x), y: within(y) });
    send("place", { image: picture.dataset.place, x: within(x), y: within(y) });
  }
  function pressed() {
    const mode = chosenMap || document.querySelector(".wmap")?.dataset.mode || "windows";
    document.getElementById("page").dataset.map = mode;
    all("[data-set=map]").forEach((b) => b.setAttribute("aria-pressed", String(b.dataset.value === mode)));
    all("[data-opens]").forEach((b) => b.setAttribute("aria-expanded", String(document.getElementById(b.dataset.opens).classList.contains("open"))));
  }

  const inCell = ({ cellExpert, cellRank }) => (cellRank === undefined ? { kind: "expert", value: cellExpert } : { kind: "rank", value: cellRank });
  function inGrid(grid, [x, y]) {
    const box = grid.getBoundingClientRect(), { cellRows: rows, cellColumns: columns } = grid.dataset;
    const index = (at, low, size, count) => String(Math.min(count - 1, Math.max(0, Math.floor(((at - low) / size) * count))));
    return { layer: index(y, box.top, box.height, rows), value: index(x, box.left, box.width, columns), kind: grid.dataset.cellKind };
  }

  // ---- take along: figures as they look now, and a link to this view
  async function carry(button) {
    if (button.dataset.take === "link") {
      const query = new URLSearchParams(button.dataset.link);
      query.set("lang", document.querySelector("header[data-lang]").dataset.lang);
      await navigator.clipboard.writeText(`${location.origin}${location.pathname}?${query}`);
      const text = button.textContent;
      button.textContent = button.dataset.done;
      setTimeout(() => (button.textContent = text), 1500);
      return;
    }
    for (const figure of all("#figures .fig")) {
      const name = `macs-${figure.closest("[id]:not([id^=html-])").id}-${all(".fig", figure.closest("[id]:not([id^=html-])")).indexOf(figure) + 1}`;
      const drawing = new Blob([standalone(figure)], { type: "image/svg+xml" });
      save(button.dataset.take === "svg" ? drawing : await bitmap(drawing, figure), `${name}.${button.dataset.take}`);
    }
  }
  const inherited = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font-size", "font-weight", "font-family", "paint-order", "stroke-linejoin"];
  function standalone(figure) {
    const copy = figure.cloneNode(true), box = figure.viewBox.baseVal;
    const from = [figure, ...all("*", figure)], to = [copy, ...all("*", copy)];
    from.forEach((element, i) => {
      const style = getComputedStyle(element);
      for (const name of inherited) to[i].style.setProperty(name, style.getPropertyValue(name));
    });
    const hatch = document.getElementById("hatch").cloneNode(true), pen = getComputedStyle(document.querySelector("#hatch .hatch-line"));
    hatch.firstElementChild.setAttribute("style", `stroke:${pen.stroke};opacity:${pen.opacity}`);
    copy.prepend(hatch);
    copy.setAttribute("width", box.width);
    copy.setAttribute("height", box.height);
    copy.style.background = getComputedStyle(document.body).backgroundColor;
    return new XMLSerializer().serializeToString(copy);
  }
  async function bitmap(drawing, figure) {
    const scale = 2, box = figure.viewBox.baseVal, image = new Image(), canvas = document.createElement("canvas");
    image.src = URL.createObjectURL(drawing);
    await image.decode();
    [canvas.width, canvas.height] = [box.width * scale, box.height * scale];
    const brush = canvas.getContext("2d");
    brush.fillStyle = getComputedStyle(document.body).backgroundColor;
    brush.fillRect(0, 0, canvas.width, canvas.height);
    brush.drawImage(image, 0, 0, canvas.width, canvas.height);
    return new Promise((done) => canvas.toBlob(done, "image/png"));
  }
  function save(blob, name) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = name;
    link.click();
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
    const picture = step && event.target.closest?.("[data-place]");
    if (picture) {
      event.preventDefault();
      const { x = 0.5, y = 0.5, across, down } = picture.dataset;
      return go(picture, Number(x) + step[0] * across, Number(y) + step[1] * down);
    }
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

  // ---- an error stands at the field that caused it
  const homes = { upload: "input", prompt: "input", "open-trace": "downloads" }; // where the sentence goes, if not into the field itself
  function fault() {
    const said = document.querySelector(".status[data-field]"), old = document.getElementById("field-error");
    const field = said && document.getElementById(said.dataset.field);
    if (old && old.textContent === said?.dataset.text && old.dataset.of === said.dataset.field) return;
    old?.remove();
    all(".faulty").forEach((element) => element.classList.remove("faulty"));
    all("[aria-describedby=field-error]").forEach((element) => ["aria-invalid", "aria-describedby"].forEach((name) => element.removeAttribute(name)));
    if (!field) return;
    const note = document.createElement("p");
    Object.assign(note, { id: "field-error", className: "field-error", textContent: said.dataset.text });
    note.setAttribute("role", "alert");
    note.dataset.of = said.dataset.field;
    (document.getElementById(homes[field.id]) || field).append(note);
    field.classList.add("faulty");
    const parts = all("textarea, input:not([type=file]), button", field);
    for (const input of field.matches("button") ? [field] : parts) {
      input.setAttribute("aria-describedby", note.id);
      if (!input.matches("button, [type=range], [type=radio]")) input.setAttribute("aria-invalid", "true");
    }
    field.closest("#settings")?.classList.add("open");
    note.scrollIntoView({ block: "nearest" });
  }

  // ---- answers of overlapping events may come in another order than they were given; then the page asks for everything
  const newest = new Map();
  function inOrder() {
    let late = false;
    for (const mark of all("[data-answer]")) {
      const region = mark.parentElement.closest("[id]:not([id^=html-])").id, number = Number(mark.dataset.answer);
      late ||= number < (newest.get(region) || 0);
      newest.set(region, number);
    }
    if (late) send("resync", {});
  }

  // ---- after each update: language, pressed buttons, marks
  let due = false;
  const observer = new MutationObserver(() => {
    inOrder();
    if (due) return;
    due = true;
    requestAnimationFrame(refresh);
  });
  function refresh() {
    due = false;
    observer.disconnect();
    const lang = document.querySelector("header[data-lang]")?.dataset.lang;
    if (lang) document.documentElement.lang = lang === "zh" ? "zh-Hans" : lang;
    showFrame(frame);
    mark();
    fault();
    pressed();
    rove();
    observer.observe(document.body, { childList: true, subtree: true });
  }
  refresh();
}
