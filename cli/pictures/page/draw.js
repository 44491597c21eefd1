// Draws blocks: a head that folds them, and below it their stages to scale, above the same operators one after another.

function drawBlocks() {
  byId("picture").replaceChildren(...blocks.map(drawBlock));
  markAll();
}

function drawBlock(block) {
  const body = element("div", { class: "scroll", id: `body-${block.index}` });
  const size = block.stages.reduce((sum, stage) => sum + stage.groups.flat().length, 0);
  const name = element("strong", {}, `block ${block.index}`);
  const remark = element("span", { class: "remark" }, countText(size, "operator"));
  const head = element("button", { type: "button", class: "head", "aria-controls": body.id }, name,
    element("span", { class: "time" }, sumText(block.stages)), remark);
  if (block.stages.length > 1) remark.append(` in ${countText(block.stages.length, "stage")}`);
  if (!block.optimal) remark.append(element("abbr", { title: "not proven to be the best schedule of this block" }, " *"));
  head.addEventListener("click", () => fold(block, !block.isFolded));
  block.element = element("section", { class: "block", "aria-label": `block ${block.index}` }, head, body);
  block.body = body;
  block.head = head;
  setFolded(block, block.isFolded);
  return block.element;
}

function fold(block, isFolded) {
  setFolded(block, isFolded);
  markAll();
}

function setFolded(block, isFolded) {
  block.isFolded = isFolded;
  block.element.classList.toggle("folded", isFolded);
  block.head.setAttribute("aria-expanded", String(!isFolded));
  if (isFolded) block.body.replaceChildren();
  else drawBody(block);
  keepCurrent();
}

// One box is reached by the Tab key, whatever is folded or redrawn: the present one, else the first that is there.
function keepCurrent() {
  const { current } = view;
  if (current && !current.block.isFolded) setCurrent(current.operators[0].box);
  else setCurrent(blocks.find((block) => !block.isFolded && block.boxes.length)?.boxes[0] ?? null);
}

function drawBody(block) {
  const rows = Math.max(...block.stages.map((stage) => (stage.is_one ? stage.groups.length : stage.rows.length)));
  const after = columns(block.stages);
  const before = view.showsBefore ? columns(block.before) : [];
  const end = (list) => (list.length ? list[list.length - 1].x + list[list.length - 1].width : 0);
  const top = HEAD + rows * ROW + FOOT;
  const title = before.length ? `one after another: ${sumText(block.before)}` : "";
  const width = Math.ceil(Math.max(end(after), end(before), measure(title, `11.5px ${FONT}`))) + 2;
  const height = top + (before.length ? BEFORE_ROW + 22 : 0);
  const svg = drawn("svg", { width, height, viewBox: `-1 0 ${width} ${height}`, role: "group" });
  svg.setAttribute("aria-label", `stages of block ${block.index}`);
  block.boxes = [];
  for (const column of after) svg.append(drawStage(column, block));
  if (before.length) svg.append(...drawBefore(title, before, top + 16));
  block.edges = drawn("g", { class: "edges", "aria-hidden": "true" });
  svg.append(block.edges);
  block.body.replaceChildren(svg);
}

function drawStage({ x, width, of: stage }, block) {
  const rows = stage.is_one ? stage.groups.length : stage.rows.length;
  const way = stage.strategy === "concurrent" ? "" : ` ${stage.is_one ? "merged" : stage.strategy}`;
  const group = drawn("g", { class: `stage${way}${stage.us === null ? " unknown" : ""}` });
  const inner = Math.max(width - GAP, 1);
  group.append(drawn("rect", { class: "ground", x, y: 0, width: inner, height: 2 * HEAD + rows * ROW, rx: Math.min(5, inner / 3) }));
  const edge = inner > 16 ? 3 : 0;
  stage.rows.forEach((row, place) => {
    for (const { operators: own, x: left, width: wide } of boxesOf(row, x + edge, inner - 2 * edge)) {
      const height = (own.length > 1 ? rows : 1) * ROW;
      group.append(drawBox(own, left, HEAD + place * ROW, wide, height, stage, place, block));
    }
  });
  group.append(...drawFoot(stage, x, inner, 2 * HEAD + rows * ROW));
  return group;
}

function drawBox(own, x, y, width, height, stage, row, block) {
  const first = own[0];
  const inner = Math.max(width - (width > 8 ? 2 : width > 4 ? 1 : 0), 1);
  const made = drawn("g", { class: `box ${classesOf(first)}`, role: "button", tabindex: "-1" });
  made.setAttribute("aria-label", boxText(own));
  made.append(drawn("rect", { x, y: y + 1, width: inner, height: height - 2, rx: Math.min(4, inner / 3) }));
  const box = { operators: own, stage, row, element: made, block, x, y, width: inner, height };
  box.index = block.boxes.length;
  block.boxes.push(box);
  for (const each of own) each.box = box;
  made.dataset.operator = first.index;
  made.append(...drawWords(own, x + inner / 2, y, inner - 6, height));
  return made;
}

function drawWords(own, middle, y, room, height) {
  if (room < 12) return [];
  const [first] = own;
  const label = own.length > 1 ? `${own.length} \u00d7 ${first.label}` : first.label;
  const short = own.length > 1 ? `${own.length} \u00d7 ${first.type}` : first.type;
  const lines = [[fitting([own.length > 1 ? `${label}, merged` : label, label, short, ...(own.length > 1 ? [`${own.length} \u00d7`] : [])], room, 11, 600), "what"]];
  if (!lines[0][0]) return [];
  const names = first.type && (!isLarge || own.length > 1) ? own : [];
  const most = Math.floor((height - 20) / 13);
  if (names.length && most >= 1) {
    const shown = names.length > most ? names.slice(0, most - 1) : names;
    lines.push(...shown.map((each) => [fitting([each.name, shortName(each)], room, 9.5), "name"]));
    if (shown.length < names.length) lines.push([fitting([`and ${names.length - shown.length} more`], room, 9.5), "name"]);
  }
  const top = y + height / 2 - (lines.length - 1) * 6.5 + 4;
  return lines.filter(([words]) => words).map(([words, kind], place) =>
    drawn("text", { class: kind, x: middle, y: top + place * 13 }, words));
}

function drawFoot(stage, x, width, y) {
  const parts = [];
  if (width > 6 && stage.busy !== null) {
    const filled = Math.max(width * Math.min(stage.busy, 1), 1);
    parts.push(drawn("rect", { class: "gauge", x, y: y + 4, width, height: 4, rx: 2 }), drawn("rect", { class: "busy", x, y: y + 4, width: filled, height: 4, rx: 2 }));
  }
  const time = stage.us === null ? ["latency unknown", "?"] : [latencyText(stage.us)];
  const words = stage.strategy === "concurrent" ? time : [`${stage.strategy} ${time[0]}`, ...time];
  const shown = fitting(words, width + GAP - 2, 10.5);
  if (shown && !shown.endsWith("\u2026")) parts.push(drawn("text", { class: "foot", x: x + width / 2, y: y + 22 }, shown));
  return parts;
}

function drawBefore(title, list, y) {
  const all = drawn("g", { class: "before", "aria-hidden": "true" });
  all.append(drawn("text", { class: "foot start", x: 0, y: y - 2 }, title));
  for (const { x, width, of: each } of list) {
    const inner = Math.max(width - (width > 5 ? 1.5 : 0.5), 1);
    const box = drawn("g", { class: `box ${classesOf(each.operators[0])}${each.us === null ? " unknown" : ""}` });
    box.dataset.operator = each.operators[0].index;
    box.append(drawn("rect", { x, y: y + 4, width: inner, height: BEFORE_ROW - 2, rx: Math.min(3, inner / 3) }));
    const words = inner > 18 ? fitting([each.operators[0].label, each.operators[0].type], inner - 4, 9.5) : "";
    if (words) box.append(drawn("text", { class: "name", x: x + inner / 2, y: y + BEFORE_ROW / 2 + 6.5 }, words));
    all.append(box);
  }
  return [all];
}

function classesOf(operator) {
  const model = operator.model < 0 ? "" : ` m-${operator.model % 7}`;
  return `f-${data.families[operator.family][0]}${model}`;
}

function boxText(own) {
  const { stage, group } = own[0];
  const what = own.map((each) => `${each.type ? `${each.label} ` : ""}${each.name}`).join(", ");
  const where = `block ${stage.block.index}, stage ${stage.number + 1} of ${stage.block.stages.length}`;
  const beside = own.length > 1 ? "merged into one" : `group ${group + 1} of ${stage.groups.length}`;
  return `${what}; ${where}, ${beside}; stage latency: ${latencyText(stage.us)}`;
}
