"use strict";
(() => {
  const PAUSE = 2000;
  const element = (id) => document.getElementById(id);
  const opened = new Map(); // cards, by the name of their run

  const make = (tag, properties = {}, ...children) => {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  };
  const draw = (tag, attributes, text = "") => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.textContent = text;
    return made;
  };
  const percent = (value) => (value === null ? "–" : (100 * value).toFixed(1) + "\u00a0%");
  const gigabytes = (bytes) => (bytes / 2 ** 30).toFixed(1);
  const duration = (seconds) => {
    const all = Math.round(seconds);
    const [hours, minutes, rest] = [Math.floor(all / 3600), Math.floor(all / 60) % 60, all % 60];
    const two = (number) => String(number).padStart(2, "0");
    return hours ? `${hours}:${two(minutes)}:${two(rest)}` : `${minutes}:${two(rest)}`;
  };
  const number = (value) => value.toLocaleString("en");
  const compact = (value) => {
    if (Math.abs(value) >= 1e6) return `${+(value / 1e6).toPrecision(3)}M`;
    if (Math.abs(value) >= 1e3) return `${+(value / 1e3).toPrecision(3)}k`;
    return String(+value.toPrecision(3));
  };
  const address = (path, name, value) => `${path}?${new URLSearchParams({ [name]: value })}`;
  const ask = async (path) => {
    const response = await fetch(path);
    const body = await response.json();
    if (!response.ok) throw new Error(body.error);
    return body;
  };

  const aboutMachine = ({ cores, cpu, memory, memory_total: total, gpus }) => {
    const parts = [`${cores} CPU core${cores === 1 ? "" : "s"}${cpu === null ? "" : `, ${Math.round(100 * cpu)} % busy`}`];
    if (memory !== null) parts.push(`${gigabytes(memory)} of ${gigabytes(total)} GB of memory`);
    gpus.forEach((gpu, at) => {
      const busy = gpu.used === null ? "" : `, ${Math.round(100 * gpu.used)} % busy`;
      const held = gpu.memory === null || gpu.memory_total === null ? "" : `, ${gigabytes(gpu.memory)} of ${gigabytes(gpu.memory_total)} GB`;
      parts.push(`GPU ${at} ${gpu.name}${busy}${held}`);
    });
    return parts.join(" · ");
  };

  const chart = (name, lines) => {
    const [width, height, left, right, top, bottom] = [360, 200, 44, 10, 10, 26];
    const points = Object.values(lines).flat();
    const spread = (values) => {
      const [low, high] = [Math.min(...values), Math.max(...values)];
      const margin = (high - low || Math.abs(high) || 1) * 0.06;
      return [low - margin, high + margin];
    };
    const [lowest, highest] = spread(points.map((point) => point[1]));
    const most = Math.max(1, ...points.map((point) => point[0]));
    const x = (value) => left + (value / most) * (width - left - right);
    const y = (value) => height - bottom - ((value - lowest) / (highest - lowest)) * (height - top - bottom);
    const text = name === "accuracy" ? percent : compact;
    const lasts = Object.entries(lines).map(([kind, each]) => `${kind === "val" ? "validation" : "training"} ${text(each[each.length - 1][1])}`);
    const label = `${name}: ${lasts.join(", ")}`;
    const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
    const unit = name === "accuracy" ? 100 : 1;
    // As many digits as tell the lines apart.
    const digits = Math.max(0, Math.ceil(-Math.log10(0.4 * unit * (highest - lowest))));
    const tick = (value) => (name === "accuracy" ? `${(100 * value).toFixed(digits)} %` : digits ? value.toFixed(digits) : compact(value));
    for (const share of [0.1, 0.5, 0.9]) {
      const value = lowest + share * (highest - lowest);
      svg.append(draw("line", { x1: left, x2: width - right, y1: y(value), y2: y(value) }));
      svg.append(draw("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, tick(value)));
    }
    svg.append(draw("text", { x: left, y: height - 8 }, "0"));
    svg.append(draw("text", { x: width - right, y: height - 8, "text-anchor": "end" }, `${compact(most)} images seen`));
    for (const [kind, each] of Object.entries(lines)) {
      svg.append(draw("polyline", { class: kind, points: each.map((point) => `${x(point[0]).toFixed(1)},${y(point[1]).toFixed(1)}`).join(" ") }));
      if (each.length === 1) svg.append(draw("circle", { class: kind, cx: x(each[0][0]), cy: y(each[0][1]), r: 3 }));
    }
    return make("figure", {}, svg, make("figcaption", { textContent: label }));
  };

  const card = (run) => {
    const parts = {
      title: make("bdi"),
      state: make("span"),
      about: make("p", { className: "quiet small" }),
      fill: make("div", { className: "fill" }),
      charts: make("div", { className: "charts" }),
    };
    const heading = make("h3", {}, parts.title);
    const whole = make("article", { className: "card" }, make("div", { className: "top" }, heading, parts.state), make("div", { className: "track" }, parts.fill), parts.about, parts.charts);
    whole.dataset.run = run.name;
    element("now").append(whole);
    return { whole, parts, changed: null, asked: false };
  };

  const fillCard = (each, run) => {
    const { parts } = each;
    const share = run.steps ? Math.min(run.step / run.steps, 1) : 0;
    parts.title.textContent = run.name;
    const left = run.left === null ? "" : run.left < 1 ? ", a moment left" : `, about ${duration(run.left)} left`;
    parts.state.textContent = `${run.state}${left}`;
    parts.fill.style.width = `${100 * share}%`;
    const speed = run.images_per_second === null ? "" : ` · ${number(Math.round(run.images_per_second))} images/s`;
    parts.about.textContent = `${run.model} on ${run.data} · step ${number(run.step)} of ${number(run.steps)}${speed}`;
  };

  const fetchCurves = async (each, run) => {
    if (each.changed === run.changed || each.asked) return;
    each.asked = true;
    try {
      const curves = await ask(address("curves", "run", run.name));
      each.parts.charts.replaceChildren(...Object.entries(curves).map(([name, lines]) => chart(name, lines)));
      each.changed = run.changed;
    } finally {
      each.asked = false;
    }
  };

  const row = (run) => {
    const name = make("td", {}, make("bdi", { textContent: run.name }));
    if (run.problem) name.append(make("p", { className: "bad small", textContent: run.problem }));
    const look = make("td");
    if (run.step) {
      const button = make("button", { type: "button", textContent: opened.has(run.name) ? "hide curves" : "curves" });
      button.dataset.run = run.name;
      look.append(button);
    }
    if (run.report) look.append(make("a", { href: address("report", "run", run.name), textContent: "report", target: "_blank", rel: "noopener" }));
    const cells = [percent(run.accuracy), percent(run.val), run.steps ? `${number(run.step)} of ${number(run.steps)}` : "–", duration(run.seconds)];
    return make("tr", {}, name, make("td", { textContent: run.state }), ...cells.map((text) => make("td", { className: "number", textContent: text })), look);
  };

  const setLine = (each) => {
    const item = make("li", {}, make("bdi", { textContent: each.name }), ` (${each.kind || "damaged"}): ${each.finished} of ${each.members} finished `);
    if (each.page) item.append(make("a", { href: address("page", "set", each.name), textContent: "page", target: "_blank", rel: "noopener" }));
    return item;
  };

  const closed = new Set(); // running ones that the reader has hidden
  let last = null;

  const show = (state) => {
    last = state;
    element("machine").textContent = aboutMachine(state.machine);
    const running = state.runs.filter((run) => run.state === "running");
    element("status").className = "";
    element("status").textContent = state.runs.length ? `${running.length} of ${state.runs.length + state.left_out} runs are training.` : "There is no run here yet.";
    const known = new Map(state.runs.map((run) => [run.name, run]));
    for (const run of running) if (!opened.has(run.name) && !closed.has(run.name)) opened.set(run.name, card(run));
    for (const [name, each] of opened) {
      const run = known.get(name);
      if (!run) {
        each.whole.remove();
        opened.delete(name);
        continue;
      }
      fillCard(each, run);
      fetchCurves(each, run).catch(() => {});
    }
    const focused = document.activeElement && document.activeElement.dataset.run;
    element("rows").replaceChildren(...state.runs.map(row));
    if (focused) for (const button of document.querySelectorAll("#rows button")) if (button.dataset.run === focused) button.focus();
    element("all").hidden = !state.runs.length;
    element("sets").hidden = !state.sets.length;
    element("set-list").replaceChildren(...state.sets.map(setLine));
    element("left-out").textContent = state.left_out ? `${number(state.left_out)} older runs are not listed.` : "";
  };

  element("rows").addEventListener("click", ({ target }) => {
    const name = target.dataset.run;
    if (name === undefined || !last) return;
    if (opened.has(name)) {
      opened.get(name).whole.remove();
      opened.delete(name);
      closed.add(name);
    } else {
      closed.delete(name);
      opened.set(name, card(last.runs.find((run) => run.name === name)));
    }
    show(last);
  });

  const turn = async () => {
    if (!document.hidden) {
      try {
        show(await ask("runs"));
      } catch (error) {
        element("status").className = "bad";
        element("status").textContent = "The server does not answer: it ends with the training that began it, or was stopped. This is what it said last.";
      }
    }
    setTimeout(turn, PAUSE);
  };
  turn();
})();
