// The schedule as the page holds it: operators, blocks, their stages, and what is known of them.

const data = JSON.parse(document.getElementById("data").textContent);

const operators = data.operators.map(([name, label, type, family, model, shape, flops], index) => (
  { index, name, label, type, family, model, shape, flops, reads: [], readers: [], aloneUs: null, box: null }
));

const blocks = data.blocks.map((block) => ({ ...block, isFolded: false, boxes: [] }));

const stages = blocks.flatMap((block) => block.stages);

if (data.reads) {
  data.reads.forEach((sources, index) => {
    operators[index].reads = sources.map((source) => operators[source]);
    for (const source of sources) operators[source].readers.push(operators[index]);
  });
}

for (const block of blocks) {
  block.before = block.before.map(([members, us]) => ({ operators: members.map((each) => operators[each]), us }));
  for (const each of block.before) if (each.operators.length === 1) each.operators[0].aloneUs = each.us;
  block.stages.forEach((stage, number) => {
    Object.assign(stage, { block, number, groups: stage.groups.map((group) => group.map((each) => operators[each])) });
    stage.groups.forEach((group, place) => group.forEach((each) => Object.assign(each, { stage, group: place })));
    stage.rows = rowsOf(stage);
  });
}

// What stands one above the other in a stage: lists of boxes, each of which is a list of operators.
function rowsOf(stage) {
  if (stage.is_one && stage.groups.length > 1) return [[stage.groups.flat()]];
  if (stage.is_in_order) return [stage.groups.flat().map((each) => [each])];
  return stage.groups.map((group) => group.map((each) => [each]));
}

// The sum of latencies, and how many are not known.
function sumUs(list) {
  const known = list.filter((each) => each.us !== null);
  return { us: known.reduce((total, each) => total + each.us, 0), unknown: list.length - known.length };
}

function latencyText(us) {
  if (us === null || us === undefined) return "unknown";
  return us < 1000 ? `${us.toFixed(1)} \u00b5s` : `${(us / 1000).toFixed(2)} ms`;
}

function sumText(list) {
  const { us, unknown } = sumUs(list);
  if (!unknown) return latencyText(us);
  if (unknown === list.length) return "latency unknown";
  return `${latencyText(us)}, and ${countText(unknown, "stage")} of unknown latency`;
}

function countText(count, word) {
  return count === 1 ? `1 ${word}` : `${count.toLocaleString("en")} ${word}s`;
}

function percent(share) {
  return share === null || share === undefined ? "unknown" : `${Math.round(100 * share)} %`;
}

// An element of the page, with attributes and with children; words are only ever put in as text.
function element(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

function drawn(tag, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function filled(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

const byId = (id) => document.getElementById(id);
