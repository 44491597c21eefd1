// The head of the page: facts, latencies of the whole model, the run at a glance, and the legend.

function drawHead() {
  byId("lead").textContent = "";
  byId("notes").replaceChildren(...data.notes.map((note) => element("li", { class: "note" }, note)));
  byId("facts").replaceChildren(...data.facts.filter(([, value]) => value).flatMap(([name, value]) =>
    [element("dt", {}, name), element("dd", {}, value)]));
  byId("unknown").textContent = Object.keys(data.unknown).length ? `Not known: ${Object.values(data.unknown).join("; ")}.` : "";
  drawWholes();
  drawLegend();
}

function drawWholes() {
  const most = Math.max(...data.wholes.map(([, us]) => us));
  const rows = data.wholes.map(([name, us]) => {
    const bar = drawn("svg", { width: 160, height: 10, viewBox: "0 0 160 10", preserveAspectRatio: "none", "aria-hidden": "true" },
      drawn("rect", { class: "track", width: 160, height: 10, rx: 3 }), drawn("rect", { width: (160 * us) / most, height: 10, rx: 3 }));
    return element("tr", {}, element("th", { scope: "row" }, name), element("td", {}, bar), element("td", { class: "number" }, latencyText(us)));
  });
  if (rows.length) byId("wholes").replaceChildren(element("table", {}, element("caption", {}, "Latency of the whole model"), element("tbody", {}, ...rows)));
}

const STRIP = 26;

function drawStrips() {
  const host = byId("strips");
  const width = Math.max(host.clientWidth, 200);
  const lists = [
    ["by the schedule", stages],
    ["one operator after another", blocks.flatMap((block) => block.before)],
  ];
  const known = lists.map(([, list]) => sumUs(list)).filter(({ unknown }) => !unknown).map(({ us }) => us);
  const longest = Math.max(...known, 0);
  const svg = drawn("svg", { width, height: 2 * (STRIP + 24) + 18, role: "img" });
  svg.setAttribute("aria-label", lists.map(([name, list]) => `${name}: ${sumText(list)}`).join("; "));
  lists.forEach(([name, list], place) => {
    const y = place * (STRIP + 24);
    svg.append(drawn("text", { class: "foot start", x: 0, y: y + 13 }, `${name}: ${sumText(list)}${sumUs(list).unknown ? ", not to scale" : ""}`));
    svg.append(drawStrip(list, y + 18, stripWidths(list, longest, width)));
  });
  if (longest > 0) svg.append(...ticks(longest, width, 2 * (STRIP + 24)));
  host.replaceChildren(svg);
  markAll();
}

function stripWidths(list, longest, width) {
  const { us, unknown } = sumUs(list);
  if (!unknown) return list.map((each) => (each.us / (longest || 1)) * width);
  const share = us > 0 ? Math.min(unknown / list.length, 0.5) : 1;
  return list.map((each) => (each.us === null ? (share * width) / unknown : (each.us / us) * (1 - share) * width));
}

function drawStrip(list, y, widths) {
  const strip = drawn("g", { class: "strip" });
  let x = 0;
  list.forEach((each, place) => {
    const rows = each.rows ? (each.is_one ? [each.groups.flat().map((own) => [own])] : each.rows) : [[each.operators]];
    const height = STRIP / rows.length;
    rows.forEach((row, number) => {
      for (const { operators: own, x: left, width } of boxesOf(row, x, widths[place])) {
        const first = own[0];
        const box = drawn("rect", { class: `box ${classesOf(first)}${each.us === null ? " unknown" : ""}`, x: left, y: y + number * height,
          width: Math.max(width > 2 ? width - 0.5 : width, 0.3), height: height - (rows.length > 1 ? 0.5 : 0) });
        box.dataset.operator = first.index;
        strip.append(box);
      }
    });
    x += widths[place];
  });
  return strip;
}

function ticks(longest, width, y) {
  const rough = longest / Math.max(width / 110, 1);
  const unit = 10 ** Math.floor(Math.log10(rough || 1));
  const step = [1, 2, 5, 10].map((each) => each * unit).find((each) => each >= rough);
  const found = [];
  for (let us = 0; us <= longest && step > 0; us += step) {
    const x = (us / longest) * width;
    const anchor = x < 20 ? "foot start" : x > width - 24 ? "foot end" : "foot";
    const words = longest < 1000 ? `${+us.toPrecision(6)} \u00b5s` : `${+(us / 1000).toPrecision(6)} ms`;
    found.push(drawn("path", { class: "tick", d: `M${Math.min(x + 0.5, width - 0.5)} ${y - 6}v5` }), drawn("text", { class: anchor, x, y: y + 11 }, words));
  }
  return found;
}

function drawLegend() {
  const byModel = document.body.classList.contains("by-model");
  const kinds = byModel ? data.models.map((name, place) => [`m-${place % 7}`, name, (each) => each.model === place])
    : data.families.map(([key, name], place) => [`f-${key}`, name, (each) => each.family === place]);
  const shown = kinds.map(([key, name, isOf]) => [key, name, isOf, operators.filter(isOf).length]).filter(([, , , count]) => count);
  byId("legend").replaceChildren(...shown.map(([key, name, isOf, count]) => {
    const button = element("button", { type: "button", class: key, "aria-pressed": "false" }, element("span", { class: "swatch" }), `${name} `,
      element("span", { class: "remark" }, String(count)));
    button.addEventListener("click", () => {
      const isOn = button.getAttribute("aria-pressed") === "true";
      for (const other of byId("legend").children) other.setAttribute("aria-pressed", "false");
      button.setAttribute("aria-pressed", String(!isOn));
      view.family = isOn ? null : isOf;
      markAll();
    });
    return button;
  }));
  view.family = null;
}
