// What is known of the operators in a box, of their stage, and what they read and are read by.

function showDetails(box) {
  const panel = byId("details");
  panel.replaceChildren();
  if (!box) {
    panel.append(element("p", { class: "hint" }, "Point at an operator, or select it with the arrow keys, to see its details."));
    return;
  }
  const { operators: own, stage } = box;
  const name = element("h2", {}, own.length === 1 ? own[0].name : `${own.length} operators as one`);
  panel.append(name, ...own.map((each) => operatorFacts(each, own.length > 1)), element("h3", {}, placeText(stage)), stageFacts(stage));
  for (const [title, key] of [["reads", "reads"], ["read by", "readers"]]) {
    const found = [...new Set(own.flatMap((each) => each[key]))];
    if (found.length) panel.append(element("h3", {}, title), element("ul", { class: "jumps" }, ...found.map(jump)));
  }
}

function placeText(stage) {
  return `block ${stage.block.index}, stage ${stage.number + 1} of ${stage.block.stages.length}`;
}

function jump(operator) {
  const button = element("button", { type: "button" }, operator.name);
  button.addEventListener("click", () => go(operator));
  return element("li", {}, button);
}

function listOf(rows) {
  const list = element("dl", {});
  for (const [name, value] of rows) if (value) list.append(element("dt", {}, name), element("dd", {}, value));
  return list;
}

function operatorFacts(operator, isOneOfMany) {
  return listOf([
    ["operator", isOneOfMany ? operator.name : ""],
    ["type", operator.type ? `${operator.label} (${data.families[operator.family][1]})` : "unknown without the model"],
    ["model", operator.model < 0 ? "" : data.models[operator.model]],
    ["output", operator.shape],
    ["computes", operator.flops === null ? "" : flopsText(operator.flops)],
    ["latency alone", operator.aloneUs === null ? "" : latencyText(operator.aloneUs)],
    ["group", isOneOfMany ? "" : groupText(operator)],
  ]);
}

function groupText({ stage, group }) {
  const lanes = stage.lanes ? `, on ${stage.lanes[group].length === 1 ? "lane" : "lanes"} ${stage.lanes[group].join(", ")}` : "";
  return `${group + 1} of ${stage.groups.length}${lanes}`;
}

const HOW = {
  concurrent: "groups in parallel",
  merge: "operators merged into one",
  session: "one session on all cores, operators one after another",
  lanes: "lanes that wait for each other's results",
};

function stageFacts(stage) {
  return listOf([
    ["runs as", stage.groups.length === 1 && stage.strategy === "concurrent" ? "one group" : HOW[stage.strategy] || stage.strategy],
    ["predicted", latencyText(stage.predicted_us)],
    ["measured", measuredText(stage)],
    ["computes", stage.computes || ""],
    ["share of peak", percent(stage.share_of_peak)],
    ["utilization", percent(stage.busy)],
  ]);
}

function measuredText(stage) {
  if (!stage.spread) return latencyText(stage.measured_us);
  const [low, high, count] = stage.spread;
  return `${latencyText(stage.measured_us)} (${countText(count, "sample")}, 10 % below ${latencyText(low)}, 10 % above ${latencyText(high)})`;
}

function flopsText(flops) {
  if (flops < 1000) return `${flops} FLOP`;
  const [size, unit] = [[1e12, "TFLOP"], [1e9, "GFLOP"], [1e6, "MFLOP"], [1e3, "kFLOP"]].find(([each]) => flops >= each);
  return `${(flops / size).toPrecision(3)} ${unit}`;
}

function drawTable() {
  const heads = ["block", "stage", "runs as", "groups", "operators", "predicted", "measured", "share of peak", "utilization", "computes"];
  const body = element("tbody", {});
  for (const stage of stages) {
    const own = stage.groups.flat();
    const names = own.slice(0, 3).map((each) => each.name).join(", ");
    const cells = [stage.block.index, stage.number + 1, stage.strategy, stage.groups.length,
      own.length > 3 ? `${names} and ${own.length - 3} more` : names, latencyText(stage.predicted_us), latencyText(stage.measured_us),
      percent(stage.share_of_peak), percent(stage.busy), stage.computes || "unknown"];
    body.append(element("tr", {}, ...cells.map((cell) => element("td", {}, String(cell)))));
  }
  const row = element("tr", {}, ...heads.map((head) => element("th", { scope: "col" }, head)));
  byId("table").querySelector(".scroll").replaceChildren(element("table", {}, element("thead", {}, row), body));
}
