"use strict";
(() => {
  const all = (selector, from = document) => [...from.querySelectorAll(selector)];
  const one = (selector, from = document) => from.querySelector(selector);
  const read = (element) => JSON.parse(element.textContent);
  function make(name, text = "", attributes = {}) {
    const element = document.createElement(name);
    element.textContent = text;
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    return element;
  }
  document.documentElement.classList.add("js");

  // State in the address: #sort=0.3d&find=gru&columns=…&s=221&theme=dark. An address without "=" is a section.
  const state = new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "");
  function keep(name, value) {
    if (value) state.set(name, value);
    else state.delete(name);
    history.replaceState(null, "", state.size ? `#${state}` : location.pathname + location.search);
  }

  // Theme: the system's until the button is pressed.
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement, button = one("#theme");
  const theme = () => root.dataset.theme || (dark.matches ? "dark" : "light");
  const label = () => { button.textContent = theme() === "dark" ? "Light theme" : "Dark theme"; };
  if (["light", "dark"].includes(state.get("theme"))) root.dataset.theme = state.get("theme");
  button.addEventListener("click", () => {
    root.dataset.theme = theme() === "dark" ? "light" : "dark";
    keep("theme", root.dataset.theme);
    label();
  });
  dark.addEventListener("change", label);
  label();

  // A link into a closed disclosure opens it.
  function reveal() {
    if (location.hash.length < 2 || location.hash.includes("=")) return;
    for (let at = document.getElementById(location.hash.slice(1)); at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
  }
  addEventListener("hashchange", reveal);
  reveal();

  // Leaderboard: a click on a head sorts, the first time best first; missing values are always last.
  function leaderboard(table, number) {
    const heads = all("thead th", table), body = one("tbody", table), controls = table.closest(".scroll").previousElementSibling;
    function sort(column, direction) {
      heads.forEach((head) => head.removeAttribute("aria-sort"));
      heads[column].setAttribute("aria-sort", direction);
      const sign = direction === "ascending" ? 1 : -1;
      const key = (row) => row.cells[column].dataset.value ?? "";
      const numbers = all("tr", body).every((row) => key(row) === "" || Number.isFinite(Number(key(row))));
      const rows = all("tr", body).sort((a, b) => {
        const [x, y] = [key(a), key(b)];
        if (x === "" || y === "") return (x === "") - (y === "");
        return sign * (numbers ? x - y : x.localeCompare(y, "en"));
      });
      body.append(...rows);
    }
    heads.forEach((head, column) => {
      const control = make("button", head.textContent.trim(), { type: "button" });
      head.replaceChildren(control);
      control.addEventListener("click", () => {
        const first = head.dataset.first ?? "ascending", other = first === "ascending" ? "descending" : "ascending";
        const direction = head.getAttribute("aria-sort") === first ? other : first;
        sort(column, direction);
        keep("sort", `${number}.${column}${direction[0]}`);
      });
    });
    const boxes = all(".chooser input", controls);
    function choose() {
      for (const box of boxes) for (const row of all("tr", table)) row.cells[Number(box.value)].hidden = !box.checked;
    }
    one(".chooser", controls).addEventListener("input", () => {
      choose();
      keep(`columns${number}`, boxes.filter((box) => box.checked).map((box) => box.value).join(" "));
    });
    const find = one(".find", controls);
    function filter() {
      const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
      const rows = all("tr", body);
      for (const row of rows) row.hidden = !words.every((word) => (row.dataset.text ?? row.textContent).toLowerCase().includes(word));
      one(".shown", controls).textContent = words.length ? `${rows.filter((row) => !row.hidden).length} of ${rows.length} rows shown` : "";
    }
    find.addEventListener("input", () => { filter(); keep(`find${number}`, find.value); });
    const [, board, column, direction] = /^(\d+)\.(\d+)([ad])$/.exec(state.get("sort") ?? "") ?? [];
    if (Number(board) === number && heads[column]) sort(column, direction === "a" ? "ascending" : "descending");
    if (state.has(`columns${number}`)) {
      const chosen = state.get(`columns${number}`).split(" ");
      boxes.forEach((box) => { box.checked = chosen.includes(box.value); });
    }
    find.value = state.get(`find${number}`) ?? "";
    choose();
    filter();
  }
  all("table.board").forEach(leaderboard);

  // Curves: the pointer or the arrow keys choose an epoch, whose values are in the legend.
  function readable(chart) {
    const { labels, panels } = read(one(".points", chart));
    const figure = chart.parentElement, svg = one("svg", chart), values = all(".legend output", figure);
    const cursors = panels.map((panel) => {
      const cursor = document.createElementNS("http://www.w3.org/2000/svg", "line");
      for (const [key, value] of Object.entries({ class: "cursor", y1: panel.top, y2: panel.bottom })) cursor.setAttribute(key, value);
      svg.append(cursor);
      return cursor;
    });
    let at = labels.length - 1;
    function show(next) {
      at = Math.max(0, Math.min(labels.length - 1, next));
      panels.forEach((panel, index) => {
        cursors[index].setAttribute("x1", panel.x[at]);
        cursors[index].setAttribute("x2", panel.x[at]);
        values[index].textContent = panel.texts[at];
      });
      one(".at", figure).textContent = labels[at];
      chart.setAttribute("aria-valuenow", at + 1);
      chart.setAttribute("aria-valuetext", `${labels[at]}: ${panels.map((panel) => `${panel.name} ${panel.texts[at]}`).join("; ")}`);
    }
    const attributes = { role: "slider", tabindex: 0, "aria-label": svg.getAttribute("aria-label"), "aria-valuemin": 1, "aria-valuemax": labels.length };
    for (const [key, value] of Object.entries(attributes)) chart.setAttribute(key, value);
    chart.addEventListener("keydown", (event) => {
      const steps = { ArrowRight: at + 1, ArrowUp: at + 1, ArrowLeft: at - 1, ArrowDown: at - 1, Home: 0, End: labels.length - 1 };
      if (!(event.key in steps)) return;
      event.preventDefault();
      show(steps[event.key]);
    });
    chart.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const scale = svg.viewBox.baseVal.width / box.width;
      const [x, y] = [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
      const panel = panels.find((each) => x >= each.left && x <= each.right && y >= each.top && y <= each.bottom);
      if (!panel) return;
      const gaps = panel.x.map((place) => Math.abs(place - x));
      show(gaps.indexOf(Math.min(...gaps)));
    });
    show(at);
  }
  all("figure.readable .chart").forEach(readable);

  // Series: the one under the pointer is highlighted; buttons of the legend switch series off and on.
  function switchable(figure) {
    const parts = all("[data-series]", figure), names = [...new Set(parts.map((part) => part.dataset.series))];
    if (names.length < (one(".legend", figure) ? 2 : 3)) return;
    function pick(name) {
      figure.classList.toggle("picking", name !== undefined);
      for (const part of parts) part.classList.toggle("picked", part.dataset.series === name);
    }
    const legend = one(".legend", figure) ?? make("ul", "", { class: "legend" });
    if (!legend.isConnected) {
      one("figcaption", figure).after(legend);
      for (const _ of names) legend.appendChild(make("li")).append(make("span"));
    }
    all("span", legend).forEach((span, index) => {
      const name = names[index], control = make("button", name, { type: "button", "aria-pressed": "true" });
      span.replaceWith(control);
      control.addEventListener("click", () => {
        const off = control.getAttribute("aria-pressed") === "true";
        control.setAttribute("aria-pressed", String(!off));
        for (const part of parts) if (part.dataset.series === name) part.classList.toggle("off", off);
      });
      for (const event of ["pointerenter", "focus"]) control.addEventListener(event, () => pick(name));
      for (const event of ["pointerleave", "blur"]) control.addEventListener(event, () => pick());
    });
    for (const svg of all("svg", figure)) {
      svg.addEventListener("pointerover", (event) => pick(event.target.closest("[data-series]")?.dataset.series));
      svg.addEventListener("pointerleave", () => pick());
    }
  }
  all("figure:has([data-series])").forEach(switchable);

  // Translations: JSON, compressed with gzip, as base64.
  const PAGE = 3;
  async function unpack(text) {
    const bytes = Uint8Array.from(atob(text.trim()), (letter) => letter.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
  }

  // A word includes the punctuation after it: "eats ." and "eats." are equal.
  function differences(before, after, folded) {
    const [a, b] = [before, after].map((text) => text.trim().replace(/\s+/g, " ").split(/ (?![.,!?;:]+(?: |$))/).filter(Boolean));
    const [x, y] = [a, b].map((words) => words.map((word) => (folded ? word.toLowerCase() : word).replaceAll(" ", "")));
    const length = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
    for (let i = a.length - 1; i >= 0; i--) {
      for (let j = b.length - 1; j >= 0; j--) length[i][j] = x[i] === y[j] ? length[i + 1][j + 1] + 1 : Math.max(length[i + 1][j], length[i][j + 1]);
    }
    const pieces = [];
    const add = (kind, word) => {
      if (pieces.length && pieces.at(-1).kind === kind) pieces.at(-1).words.push(word);
      else pieces.push({ kind, words: [word] });
    };
    let [i, j] = [0, 0];
    while (i < a.length || j < b.length) {
      if (i < a.length && j < b.length && x[i] === y[j]) { add("same", b[j++]); i++; }
      else if (j >= b.length || (i < a.length && length[i + 1][j] >= length[i][j + 1])) add("del", a[i++]);
      else add("ins", b[j++]);
    }
    return pieces;
  }

  // Words of a translation carry the number of the source word that they attend to.
  function marked(base, text, folded, aligned = []) {
    const place = make("dd");
    const pieces = base === null ? [{ kind: "same", words: text.split(" ") }] : differences(base, text, folded);
    let at = 0;
    pieces.forEach(({ kind, words }, number) => {
      if (number) place.append(" ");
      const part = kind === "same" ? place : place.appendChild(make(kind));
      if (kind === "del" || !aligned.length) part.append(words.join(" "));
      else words.join(" ").split(" ").forEach((word, index) => part.append(index ? " " : "", make("span", word, { "data-to": aligned[at++] })));
    });
    return place;
  }

  async function explore(part) {
    const data = await unpack(one(".packed", part).textContent);
    const control = (name) => one(`[data-control="${name}"]`, part);
    const list = one(".sentences", part);
    let page = 0;

    function entry(index, sides, base) {
      const number = data.numbers[index];
      const article = make("article", "", { class: "sentence" });
      const title = make("h4", `Sentence ${number}, disagreement ${data.disagreement[data.seeds.indexOf(Number(control("seed").value))][index]} of 100 `);
      title.append(make("a", "link", { href: `#s=${number}`, "aria-label": `Link to sentence ${number}` }));
      if (data.attended.includes(number)) title.append(" ", make("a", "attention", { href: `#a=${number}`, "aria-label": `Attention of sentence ${number}` }));
      article.append(title);
      const terms = make("dl");
      const row = (name, place) => terms.append(make("dt", name), place);
      const source = make("dd", "", { lang: data.languages[0] });
      if (data.source.length) row("source", source);
      data.source[index]?.split(/\s+/).forEach((word, at) => source.append(at ? " " : "", make("span", word, { "data-at": at })));
      if (data.reference.length) row("reference", make("dd", data.reference[index], { lang: data.languages[1] }));
      for (const side of sides) {
        if (side.text[index] === null) continue;
        const place = marked(base === null || base === side.text ? null : base[index], side.text[index], data.case === "lower", side.aligned[number]);
        place.setAttribute("lang", data.languages[1]);
        row(side.chrf.length ? `${side.label} (chrF ${side.chrf[index]})` : side.label, place);
      }
      article.append(terms);
      article.addEventListener("pointerover", ({ target }) => {
        for (const word of all("[data-at]", article)) word.classList.toggle("attended", word.dataset.at === target.dataset.to);
      });
      return article;
    }

    function show() {
      const seed = Number(control("seed").value);
      const chosen = new Set(all('[data-control="side"]', part).filter((box) => box.checked).map((box) => box.value));
      const having = data.sides.filter((side) => side.seed === seed);
      const sides = having.filter((side) => chosen.has(side.label));
      const against = control("against").value;
      const base = against === "reference" ? data.reference : against === "" ? null : (having.find((side) => side.label === against.slice(1)) || { text: null }).text;
      const wanted = control("search").value.toLowerCase().split(/\s+/).filter(Boolean);
      const kind = control("kind").value;
      const [least, most] = control("length").value ? control("length").value.split("-").map(Number) : [0, 0];
      const better = having.find((side) => side.label === control("worse")?.value);
      const worse = better && sides.find((side) => side !== better);
      const found = data.numbers.map((_, index) => index).filter((index) => {
        const texts = sides.map((side) => side.text[index]).filter((text) => text !== null);
        const differ = new Set(texts).size > 1;
        if (kind === "attended" ? !data.attended.includes(data.numbers[index]) : kind && differ !== (kind === "differ")) return false;
        const words = (data.reference[index] ?? texts[0] ?? "").split(" ").length;
        if (least && (words < least || (most && words > most))) return false;
        if (better && !(worse && worse.chrf[index] < better.chrf[index])) return false;
        if (!wanted.length) return true;
        const lines = [...texts, ...[data.source, data.reference].filter((own) => own.length).map((own) => own[index])];
        return lines.some((line) => wanted.every((word) => line.toLowerCase().includes(word))) || wanted.join(" ") === `#${data.numbers[index]}`;
      });
      const share = data.disagreement[data.seeds.indexOf(seed)];
      const rank = worse ? (index) => better.chrf[index] - worse.chrf[index] : (index) => share[index];
      if (control("order").value === "disagreement") found.sort((a, b) => rank(b) - rank(a) || a - b);
      const pages = Math.max(1, Math.ceil(found.length / PAGE));
      page = Math.max(0, Math.min(page, pages - 1));
      list.replaceChildren(...found.slice(page * PAGE, (page + 1) * PAGE).map((index) => entry(index, sides, base)));
      const from = found.length ? page * PAGE + 1 : 0;
      one(".count", part).textContent = `${from} to ${Math.min(found.length, (page + 1) * PAGE)} of ${found.length} sentences`;
      one('[data-turn="-1"]', part).disabled = page === 0;
      one('[data-turn="1"]', part).disabled = page >= pages - 1;
    }
    function linked() {
      const number = new URLSearchParams(location.hash.slice(1)).get("s");
      if (number === null) return;
      control("search").value = `#${number}`;
      for (let at = part; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
      show();
      part.scrollIntoView();
    }
    one(".controls", part).addEventListener("input", () => { page = 0; show(); });
    for (const turn of all("[data-turn]", part)) turn.addEventListener("click", () => { page += Number(turn.dataset.turn); show(); });
    addEventListener("hashchange", linked);
    show();
    linked();
    part.dataset.ready = "true";
  }
  all(".explorer").forEach(explore);

  // Attention: in each layer and head two digits a weight, row after row.
  async function attend(part) {
    const data = await unpack(one(".maps", part).textContent);
    const [run, sentence, layer, head] = ["run", "sentence", "layer", "head"].map((name) => one(`[data-control="${name}"]`, part));
    const fill = (control, options) => {
      const before = control.value;
      control.replaceChildren(...options.map(([value, text]) => make("option", text, { value })));
      if (options.some(([value]) => String(value) === before)) control.value = before;
    };
    function show() {
      const own = data[Number(run.value)];
      fill(sentence, own.sentences.map((each, place) => [place, `sentence ${each.number}`]));
      const chosen = own.sentences[Number(sentence.value)];
      fill(layer, chosen.layers.map((_, place) => [place, `layer ${place + 1}`]));
      const heads = chosen.layers[Number(layer.value)];
      fill(head, [["", "mean of heads"], ...(heads.length > 1 ? heads.map((_, place) => [place, `head ${place + 1}`]) : [])]);
      const shown = head.value === "" ? heads : [heads[Number(head.value)]];
      const table = one("table", part);
      const words = make("tr");
      words.append(make("td"), ...chosen.source.map((word) => make("th", word, { scope: "col" })));
      const rows = chosen.target.map((word, row) => {
        const line = make("tr");
        line.append(make("th", word, { scope: "row" }));
        chosen.source.forEach((_, column) => {
          const at = 2 * (row * chosen.source.length + column);
          const share = Math.round(shown.reduce((sum, packed) => sum + Number(packed.slice(at, at + 2)), 0) / shown.length);
          line.append(make("td", String(share), { class: `h${Math.round(share / 10)}` }));
        });
        return line;
      });
      one("thead", table).replaceChildren(words);
      one("tbody", table).replaceChildren(...rows);
      one("caption", table).textContent = `${own.label}, sentence ${chosen.number}, layer ${Number(layer.value) + 1}, ${head.selectedOptions[0].textContent}: weight in percent`;
    }
    function linked() {
      const number = new URLSearchParams(location.hash.slice(1)).get("a");
      const place = data[Number(run.value)].sentences.findIndex((each) => String(each.number) === number);
      if (place < 0) return;
      sentence.value = place;
      show();
      for (let at = part; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
      part.scrollIntoView();
    }
    fill(run, data.map((each, place) => [place, each.label]));
    one(".controls", part).addEventListener("input", show);
    addEventListener("hashchange", linked);
    show();
    linked();
    part.dataset.ready = "true";
  }
  all(".attention").forEach(attend);
})();
