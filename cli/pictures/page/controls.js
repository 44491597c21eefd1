// Zoom, theme, keys, the mouse, and printing.

const ZOOMS = [0.125, 0.25, 0.35, 0.5, 0.7, 1, 1.4, 2, 2.8, 4, 5.6, 8, 16, 32];

function zoomTo(zoom) {
  const anchor = view.current?.block.element ?? blocks.map((each) => each.element).find((each) => each.getBoundingClientRect().bottom > 80);
  const before = anchor?.getBoundingClientRect().top ?? 0;
  const operator = view.current?.operators[0];
  const hadFocus = document.activeElement === view.current?.element;
  view.zoom = zoom;
  byId("zoom").textContent = `${Math.round(100 * zoom)}%`;
  redraw();
  if (hadFocus) operator.box?.element.focus({ preventScroll: true });
  if (operator?.box) showInside(operator.box);
  window.scrollBy(0, (anchor?.getBoundingClientRect().top ?? 0) - before);
}

function showInside(box) {
  const host = box.block.body;
  host.scrollLeft = box.x + box.width / 2 - host.clientWidth / 2;
}

// Draws all open blocks again, as after a change of the zoom.
function redraw() {
  const pinned = view.pinned?.operators[0];
  for (const block of blocks) if (!block.isFolded) drawBody(block);
  keepCurrent();
  view.pinned = pinned?.box ?? null;
  markAll();
  present(view.pinned);
}

function zoomBy(step) {
  const place = ZOOMS.findIndex((each) => each >= view.zoom);
  zoomTo(ZOOMS[Math.min(Math.max((place < 0 ? ZOOMS.length : place) + step, 0), ZOOMS.length - 1)]);
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  byId("theme").value = theme;
}

function otherTheme() {
  const isDark = getComputedStyle(document.body).colorScheme === "dark"
    || (byId("theme").value === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
  setTheme(isDark ? "light" : "dark");
}

function foldAll() {
  const isFolding = blocks.some((block) => !block.isFolded);
  for (const block of blocks) setFolded(block, isFolding);
  markAll();
  byId("fold").textContent = isFolding ? "Unfold all" : "Fold all";
  byId("fold").setAttribute("aria-pressed", String(isFolding));
}

function toggleBefore() {
  view.showsBefore = byId("before").checked;
  redraw();
}

function boxAt(event) {
  const made = event.target.closest?.(".box");
  return made ? operators[Number(made.dataset.operator)].box : null;
}

function move(step) {
  const all = blocks.filter((block) => !block.isFolded).flatMap((block) => block.boxes);
  const place = all.indexOf(view.current);
  const next = all[place < 0 ? 0 : Math.min(Math.max(place + step, 0), all.length - 1)];
  if (next) go(next.operators[0]);
}

function moveSideways(step) {
  const { current } = view;
  if (!current) return move(1);
  const others = current.block.boxes.filter((box) => box.stage === current.stage && box.row === current.row + step);
  const near = others.sort((a, b) => Math.abs(a.x - current.x) - Math.abs(b.x - current.x))[0];
  return near && go(near.operators[0]);
}

// Along the time: to the next box of the same row, else to the nearest row of the next stage.
function moveAlong(step) {
  const { current } = view;
  if (!current) return move(step);
  const open = blocks.filter((block) => !block.isFolded).flatMap((block) => block.boxes);
  const row = open.filter((box) => box.stage === current.stage && box.row === current.row);
  const beside = row[row.indexOf(current) + step];
  if (beside) return go(beside.operators[0]);
  const shown = stages.filter((stage) => !stage.block.isFolded);
  const stage = shown[shown.indexOf(current.stage) + step];
  const there = open.filter((box) => box.stage === stage);
  const wanted = Math.min(current.row, Math.max(...there.map((box) => box.row)));
  const found = there.filter((box) => box.row === wanted);
  const next = step > 0 ? found[0] : found[found.length - 1];
  return next && go(next.operators[0]);
}

const ANYWHERE = {
  "/": () => byId("search").focus(),
  "+": () => zoomBy(1),
  "=": () => zoomBy(1),
  "-": () => zoomBy(-1),
  0: () => zoomTo(1),
  b: () => byId("before").click(),
  f: foldAll,
  d: otherTheme,
  "?": () => byId("keys").showModal(),
};

const IN_THE_PICTURE = {
  ArrowRight: () => moveAlong(1),
  ArrowLeft: () => moveAlong(-1),
  ArrowDown: () => moveSideways(1),
  ArrowUp: () => moveSideways(-1),
  Home: () => move(-Infinity),
  End: () => move(Infinity),
  Enter: pin,
  " ": pin,
};

function pin() {
  view.pinned = view.current;
  present(view.pinned);
}

function letGo() {
  view.pinned = null;
  present(null);
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || byId("keys").open) return;
  const { target } = event;
  if (target.matches("input[type=search], select")) return;
  if (event.key === "Escape") return letGo();
  const isInside = target.closest("#picture") && !target.closest(".head");
  const act = (isInside && IN_THE_PICTURE[event.key]) || ANYWHERE[event.key];
  if (!act) return;
  event.preventDefault();
  act();
}

function onSearchKey(event) {
  if (event.key === "Enter") {
    event.preventDefault();
    nextHit(event.shiftKey ? -1 : 1);
  } else if (event.key === "Escape") {
    byId("search").value = "";
    search("");
    byId("search").blur();
  }
}

function listen() {
  const picture = byId("picture");
  document.addEventListener("keydown", onKey);
  byId("search").addEventListener("input", () => search(byId("search").value));
  byId("search").addEventListener("keydown", onSearchKey);
  byId("in").addEventListener("click", () => zoomBy(1));
  byId("out").addEventListener("click", () => zoomBy(-1));
  byId("fit").addEventListener("click", () => zoomTo(1));
  byId("before").addEventListener("change", toggleBefore);
  byId("fold").addEventListener("click", foldAll);
  byId("help").addEventListener("click", () => byId("keys").showModal());
  byId("theme").addEventListener("change", () => setTheme(byId("theme").value));
  byId("by").addEventListener("change", () => {
    document.body.className = `by-${byId("by").value}`;
    drawLegend();
    markAll();
  });
  byId("table").addEventListener("toggle", drawTable);
  picture.addEventListener("pointerover", (event) => boxAt(event) && present(boxAt(event)));
  picture.addEventListener("pointerleave", () => present(view.pinned));
  picture.addEventListener("focusin", (event) => boxAt(event) && (setCurrent(boxAt(event)), present(boxAt(event))));
  picture.addEventListener("click", (event) => boxAt(event) && (setCurrent(boxAt(event)), boxAt(event).element.focus(), pin()));
  picture.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    zoomBy(event.deltaY < 0 ? 1 : -1);
  }, { passive: false });
  byId("strips").addEventListener("click", (event) => {
    const made = event.target.closest?.(".box");
    if (made) go(operators[Number(made.dataset.operator)]);
  });
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (width !== window.innerWidth) drawStrips();
    width = window.innerWidth;
  });
  listenToPrinting();
}

const PAPER = 1000; // pixels of a wide page

function listenToPrinting() {
  let kept = null;
  window.addEventListener("beforeprint", () => {
    kept = { zoom: view.zoom, folded: blocks.filter((block) => block.isFolded) };
    for (const block of kept.folded) fold(block, false);
    const widest = Math.max(...blocks.map((block) => block.body.firstChild.viewBox.baseVal.width));
    if (widest > PAPER) zoomTo((view.zoom * PAPER) / widest);
  });
  window.addEventListener("afterprint", () => {
    for (const block of kept?.folded ?? []) fold(block, true);
    if (kept) zoomTo(kept.zoom);
    kept = null;
  });
}

if (data.models.length > 1) {
  document.body.className = "by-model";
  byId("by").value = "model";
} else {
  byId("by-label").hidden = true;
}
drawHead();
drawBlocks();
drawStrips();
showDetails(null);
listen();
document.documentElement.dataset.ready = "yes";
