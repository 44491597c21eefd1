// Where everything stands in a block: x is time, each row of a stage is a group.

const LEAST = 3;         // width of the narrowest column
const UNKNOWN = 56;      // width of a stage whose latency is not known, at a zoom of 1
const TYPICAL = 92;      // width of the median stage at a zoom of 1
const LONGEST = 420;     // and of the longest one at most
const GAP = 2;
const isLarge = operators.length > 150;
const ROW = isLarge ? 24 : 34;
const BEFORE_ROW = isLarge ? 16 : 20;
const HEAD = 4;
const FOOT = 32;         // the utilization and the latency below a stage

const view = { zoom: 1, showsBefore: true, pinned: null, current: null, words: [], hits: [], family: null };

const pixelsPerUs = (() => {
  const known = stages.map((stage) => stage.us).filter((us) => us > 0).sort((a, b) => a - b);
  if (!known.length) return TYPICAL / 50;
  return Math.min(TYPICAL / known[Math.floor(known.length / 2)], LONGEST / known[known.length - 1]);
})();

function widthOf(us) {
  return us === null ? UNKNOWN * view.zoom : Math.max(LEAST, us * pixelsPerUs * view.zoom);
}

// Columns one after another: each with its x and its width.
function columns(list) {
  let x = 0;
  return list.map((each) => {
    const width = widthOf(each.us);
    const column = { x, width, of: each };
    x += width;
    return column;
  });
}

// The boxes of a row inside a column: as wide as their operators take alone, or alike where that is not known.
function boxesOf(row, x, width) {
  const alone = row.map((box) => box.reduce((sum, each) => (each.aloneUs === null ? NaN : sum + each.aloneUs), 0));
  const mean = alone.reduce((sum, us) => sum + us, 0) / alone.length;
  const weights = mean > 0 ? alone.map((us) => Math.max(us, mean / 5)) : row.map(() => 1);
  const all = weights.reduce((sum, each) => sum + each, 0);
  let left = x;
  return row.map((box, place) => {
    const found = { operators: box, x: left, width: (width * weights[place]) / all };
    left += found.width;
    return found;
  });
}

const measure = (() => {
  const context = document.createElement("canvas").getContext("2d");
  const known = new Map();
  return (words, font) => {
    const key = font + words;
    if (!known.has(key)) {
      context.font = font;
      known.set(key, context.measureText(words).width);
    }
    return known.get(key);
  };
})();

const FONT = "system-ui, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif";

// The first of some words that fits, or the last one cut off; nothing where less than three letters would fit.
function fitting(choices, width, size, weight = 400) {
  const font = `${weight} ${size}px ${FONT}`;
  const fits = choices.find((words) => measure(words, font) <= width);
  if (fits !== undefined) return fits;
  const words = [...choices[choices.length - 1]];
  let length = Math.min(words.length, Math.floor((width / size) * 2.5));
  while (length > 2 && measure(`${words.slice(0, length).join("")}\u2026`, font) > width) length -= 1;
  return length > 2 ? `${words.slice(0, length).join("")}\u2026` : "";
}

const shortName = (operator) => operator.name.slice(operator.name.lastIndexOf("/") + 1);
