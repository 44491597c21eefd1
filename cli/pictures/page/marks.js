// Which operators stand out: those searched for, those of a colour, the present one, and what it reads and is read by.

function isShown(operator) {
  if (view.family && !view.family(operator)) return false;
  return !view.words.length || isHit(operator);
}

function isHit(operator) {
  const model = operator.model < 0 ? "" : data.models[operator.model];
  const text = `${operator.name} ${operator.label} ${operator.type} ${model}`.toLowerCase();
  return view.words.every((word) => text.includes(word));
}

function markAll() {
  const shown = new Set(operators.filter(isShown).map((each) => each.index));
  for (const made of document.querySelectorAll(".box")) {
    const index = Number(made.dataset.operator);
    const members = made.tagName === "g" && operators[index].box?.element === made ? operators[index].box.operators : [operators[index]];
    const isOn = members.some((each) => shown.has(each.index));
    made.classList.toggle("dim", !isOn);
    made.classList.toggle("hit", isOn && view.words.length > 0);
  }
  for (const block of blocks) {
    const own = block.stages.some((stage) => stage.groups.flat().some((each) => shown.has(each.index)));
    block.element?.classList.toggle("has-hits", own && view.words.length > 0);
  }
}

// Shows a box, and marks all that belongs to it.
function present(box) {
  for (const made of document.querySelectorAll(".is-present, .is-source, .is-reader")) made.classList.remove("is-present", "is-source", "is-reader");
  for (const block of blocks) block.edges?.replaceChildren();
  showDetails(box);
  if (!box) return;
  for (const each of box.operators) {
    mark([each], "is-present");
    mark(each.reads, "is-source");
    mark(each.readers, "is-reader");
    for (const source of each.reads) drawEdge(source.box, box);
    for (const reader of each.readers) drawEdge(box, reader.box);
  }
}

function mark(list, name) {
  for (const each of list) {
    each.box?.element.classList.add(name);
    for (const made of document.querySelectorAll(`.box[data-operator="${each.index}"]`)) made.classList.add(name);
  }
}

function drawEdge(from, to) {
  if (!from || !to || from === to || from.block !== to.block || from.block.isFolded) return;
  const [x1, y1, x2, y2] = [from.x + from.width, from.y + from.height / 2, to.x, to.y + to.height / 2];
  const bend = Math.max((x2 - x1) / 2, 12);
  from.block.edges.append(drawn("path", { d: `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}` }));
}

// Goes to an operator: unfolds its block, brings it into sight, and gives it the focus if asked to.
function go(operator, takesFocus = true) {
  const { block } = operator.stage;
  if (block.isFolded) fold(block, false);
  const { element: made } = operator.box;
  setCurrent(operator.box);
  made.scrollIntoView({ block: "nearest", inline: "center" });
  if (takesFocus) made.focus({ preventScroll: true });
  else present(operator.box);
}

function setCurrent(box) {
  view.current?.element.setAttribute("tabindex", "-1");
  view.current = box;
  box?.element.setAttribute("tabindex", "0");
}

function search(text) {
  view.words = text.toLowerCase().split(/\s+/).filter(Boolean);
  view.hits = view.words.length ? operators.filter(isHit) : [];
  byId("hits").textContent = view.words.length ? `${view.hits.length} of ${operators.length}` : "";
  for (const block of blocks) {
    if (block.isFolded && view.hits.some((each) => each.stage.block === block)) fold(block, false);
  }
  markAll();
  if (view.hits.length) go(view.hits[0], false);
  view.hit = 0;
}

function nextHit(step) {
  if (!view.hits.length) return;
  view.hit = (view.hit + step + view.hits.length) % view.hits.length;
  byId("hits").textContent = `${view.hit + 1} of ${view.hits.length}`;
  go(view.hits[view.hit], false);
}
