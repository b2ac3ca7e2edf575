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
{% include "theme.js" %}


  // Leaderboard: every column sorts; missing values go last either way.
  function sortable(table) {
    const heads = all("thead th", table), body = one("tbody", table);
    heads.forEach((head, column) => {
      const control = make("button", head.textContent.trim(), { type: "button" });
      head.textContent = "";
      head.append(control);
      control.addEventListener("click", () => {
        const direction = head.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", direction);
        const sign = direction === "ascending" ? 1 : -1;
        const key = (row) => row.cells[column].dataset.value ?? "";
        const numbers = all("tr", body).every((row) => key(row) === "" || Number.isFinite(Number(key(row))));
        const rows = all("tr", body).sort((a, b) => {
          const [x, y] = [key(a), key(b)];
          if (x === "" || y === "") return (x === "") - (y === "");
          return sign * (numbers ? x - y : x.localeCompare(y, "en"));
        });
        body.append(...rows);
      });
    });
  }
  all("table.board").forEach(sortable);

  const board = one("#leaderboard .controls");
  function filterBoard() {
    const words = one("#find").value.toLowerCase().split(/\s+/).filter(Boolean);
    const wanted = { budget: one("#budget").value, framework: one("#framework").value };
    let shown = 0;
    const rows = all("table.board tbody tr");
    for (const row of rows) {
      const text = row.dataset.text.toLowerCase();
      row.hidden = !(words.every((word) => text.includes(word)) &&
        Object.entries(wanted).every(([key, value]) => !value || row.dataset[key] === value));
      shown += !row.hidden;
    }
    for (const part of all("#leaderboard .group")) {
      const own = all("table.board tbody tr", part);
      part.hidden = own.length ? own.every((row) => row.hidden) : Boolean(words.length || wanted.framework || (wanted.budget && wanted.budget !== part.dataset.budget));
    }
    one("#shown").textContent = `${shown} of ${rows.length} rows shown`;
  }
  if (board) { board.addEventListener("input", filterBoard); filterBoard(); }

  // Curves: the pointer, or the arrow keys, choose an epoch; its values stand in the legend.
  function readable(figure) {
    const { top, bottom, epochs, names } = read(one(".points", figure));
    const chart = one(".chart", figure), svg = one("svg", chart), values = all(".legend output", figure);
    const cursor = document.createElementNS("http://www.w3.org/2000/svg", "line");
    cursor.setAttribute("class", "cursor");
    svg.append(cursor);
    let place = epochs.length - 1;
    function show(next) {
      place = Math.max(0, Math.min(epochs.length - 1, next));
      const epoch = epochs[place];
      for (const [key, value] of Object.entries({ x1: epoch.x, x2: epoch.x, y1: top, y2: bottom })) cursor.setAttribute(key, value);
      epoch.values.forEach((value, row) => { values[row].textContent = value; });
      one(".at", figure).textContent = epoch.label;
      chart.setAttribute("aria-valuenow", place + 1);
      chart.setAttribute("aria-valuetext", `${epoch.label}: ${names.map((name, row) => `${name} ${epoch.values[row]}`).join("; ")}`);
    }
    for (const [key, value] of Object.entries({ role: "slider", "aria-valuemin": 1, "aria-valuemax": epochs.length })) chart.setAttribute(key, value);
    chart.addEventListener("keydown", (event) => {
      const steps = { ArrowRight: place + 1, ArrowUp: place + 1, ArrowLeft: place - 1, ArrowDown: place - 1, Home: 0, End: epochs.length - 1 };
      if (!(event.key in steps)) return;
      event.preventDefault();
      show(steps[event.key]);
    });
    chart.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const x = (event.clientX - box.left) * svg.viewBox.baseVal.width / box.width;
      const gaps = epochs.map((epoch) => Math.abs(epoch.x - x));
      show(gaps.indexOf(Math.min(...gaps)));
    });
    show(place);
  }
  all("figure.panel").forEach(readable);

  // Translations: each is a string of word numbers; the first letter of a number says how long it is.
  const PAGE = 10;
  function unpack(data) {
    const starts = [];
    let first = 0, least = 0;
    data.leads.forEach((own, tail) => {
      starts.push({ first, least, tail });
      first += own;
      least += own * data.alphabet.length ** tail;
    });
    const digit = new Map([...data.alphabet].map((letter, place) => [letter, place]));
    return (packed) => {
      const words = [];
      for (let at = 0; at < packed.length;) {
        let number = digit.get(packed[at++]);
        const kind = starts.findLast((start) => number >= start.first);
        number -= kind.first;
        for (let left = kind.tail; left > 0; left--) number = number * data.alphabet.length + digit.get(packed[at++]);
        words.push(data.words[number + kind.least]);
      }
      return words.join(" ");
    };
  }

  function differences(before, after, folded) {
    const [a, b] = [before.split(/\s+/).filter(Boolean), after.split(/\s+/).filter(Boolean)];
    const [x, y] = [a, b].map((words) => (folded ? words.map((word) => word.toLowerCase()) : words));
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

  function marked(base, text, folded) {
    const place = make("dd");
    if (base === null) { place.textContent = text; return place; }
    differences(base, text, folded).forEach(({ kind, words }, number) => {
      if (number) place.append(" ");
      place.append(kind === "same" ? words.join(" ") : make(kind, words.join(" ")));
    });
    return place;
  }

  function explore(part) {
    const data = read(one(".data", part));
    const text = unpack(data);
    const control = (name) => one(`[data-control="${name}"]`, part);
    const list = one(".sentences", part);
    const cache = new Map();
    let page = 0;
    const words = (packed) => {
      if (!cache.has(packed)) cache.set(packed, text(packed));
      return cache.get(packed);
    };

    function entry(index, sides, base) {
      const number = data.numbers[index];
      const article = make("article", "", { class: "sentence" });
      article.append(make("h4", `Sentence ${number}, disagreement ${data.disagreement[data.seeds.indexOf(Number(control("seed").value))][index]} of 100`));
      const terms = make("dl");
      const row = (name, place) => terms.append(make("dt", name), place);
      if (data.source.length) row("source", make("dd", words(data.source[index]), { lang: data.languages[0] }));
      if (data.reference.length) row("reference", make("dd", words(data.reference[index]), { lang: data.languages[1] }));
      for (const side of sides) {
        if (side.text[index] === "" ) continue;
        const place = marked(base === null || base === side.text ? null : words(base[index]), words(side.text[index]), data.case === "lower");
        place.setAttribute("lang", data.languages[1]);
        row(side.label, place);
      }
      article.append(terms);
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
      const found = data.numbers.map((_, index) => index).filter((index) => {
        const packed = sides.map((side) => side.text[index]).filter(Boolean);
        const differ = new Set(packed).size > 1;
        if (kind && differ !== (kind === "differ")) return false;
        if (!wanted.length) return true;
        const lines = [...packed, ...[data.source, data.reference].filter((own) => own.length).map((own) => own[index])];
        return lines.some((line) => wanted.every((word) => words(line).toLowerCase().includes(word))) || wanted.join(" ") === `#${data.numbers[index]}`;
      });
      if (control("order").value === "disagreement") {
        const share = data.disagreement[data.seeds.indexOf(seed)];
        found.sort((a, b) => share[b] - share[a] || a - b);
      }
      const pages = Math.max(1, Math.ceil(found.length / PAGE));
      page = Math.max(0, Math.min(page, pages - 1));
      list.replaceChildren(...found.slice(page * PAGE, (page + 1) * PAGE).map((index) => entry(index, sides, base)));
      const from = found.length ? page * PAGE + 1 : 0;
      one(".count", part).textContent = `${from} to ${Math.min(found.length, (page + 1) * PAGE)} of ${found.length} sentences`;
      one('[data-turn="-1"]', part).disabled = page === 0;
      one('[data-turn="1"]', part).disabled = page >= pages - 1;
    }
    one(".controls", part).addEventListener("input", () => { page = 0; show(); });
    for (const turn of all("[data-turn]", part)) turn.addEventListener("click", () => { page += Number(turn.dataset.turn); show(); });
    show();
  }
  all(".explorer").forEach(explore);

  // Attention: two digits a weight, row after row.
  function attend(part) {
    const data = read(one(".data", part));
    const [run, sentence, layer] = ["run", "sentence", "layer"].map((name) => one(`[data-control="${name}"]`, part));
    const fill = (control, options) => {
      const before = control.value;
      control.replaceChildren(...options.map(([value, text]) => make("option", text, { value })));
      if (options.some(([value]) => String(value) === before)) control.value = before;
    };
    function show() {
      const own = data[Number(run.value)];
      fill(sentence, own.sentences.map((one, place) => [place, `sentence ${one.number}`]));
      const chosen = own.sentences[Number(sentence.value)];
      fill(layer, chosen.layers.map((_, place) => [place, `layer ${place + 1}`]));
      const packed = chosen.layers[Number(layer.value)];
      const table = one("table", part);
      const head = make("tr");
      head.append(make("td"), ...chosen.source.map((word) => make("th", word, { scope: "col" })));
      const rows = chosen.target.map((word, row) => {
        const line = make("tr");
        line.append(make("th", word, { scope: "row" }));
        chosen.source.forEach((_, column) => {
          const at = 2 * (row * chosen.source.length + column);
          const share = Number(packed.slice(at, at + 2));
          line.append(make("td", String(share), { class: `h${Math.round(share / 10)}` }));
        });
        return line;
      });
      one("thead", table).replaceChildren(head);
      one("tbody", table).replaceChildren(...rows);
      one("caption", table).textContent = `${own.label}, sentence ${chosen.number}, layer ${Number(layer.value) + 1}: weight in percent`;
    }
    fill(run, data.map((one, place) => [place, one.label]));
    one(".controls", part).addEventListener("input", show);
    show();
  }
  all(".attention").forEach(attend);
})();
