// Pictures on canvases: the run's timeline and the map of what fits. They read the page's colours, so both schemes do.

const GIB = 1024 * MIB;

/** `13.16 GiB`: the largest unit that the size fills (predictor/report/units.py). */
function sizeText(bytes) {
  for (const [unit, scale] of [["GiB", GIB], ["MiB", MIB], ["KiB", KIB]])
    if (Math.abs(bytes) >= scale) return `${fixed(bytes / scale, 2)} ${unit}`;
  return `${fixed(bytes, 0)} B`;
}

const gib = bytes => (bytes > 0 && bytes * 200 < GIB ? "<0.01" : fixed(bytes / GIB, 2));

const FORMATS = [0, 1, 2].map(digits => new Intl.NumberFormat("en-US",
  {minimumFractionDigits: digits, maximumFractionDigits: digits}));
const fixed = (number, digits) => FORMATS[digits].format(number);

/** A canvas at the device's resolution, with the page's colours by name. */
function surface(canvas) {
  const {width, height} = canvas.getBoundingClientRect(), ratio = globalThis.devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const context = canvas.getContext("2d"), style = getComputedStyle(canvas);
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = `12px ${style.fontFamily}`;
  context.textAlign = "left";
  const known = {}; // asking the style is slow
  return {context, width, height, colour: name => known[name] ??= style.getPropertyValue(`--${name}`).trim()};
}

/** Whole shares of `width` in proportion to weights, none below `least`. */
function shareOut(weights, width, least) {
  least = Math.min(least, Math.floor(width / weights.length));
  const spare = width - least * weights.length, total = weights.reduce((a, b) => a + b, 0);
  const shares = weights.map(weight => least + Math.floor(spare * weight / total));
  for (let at = 0, left = width - shares.reduce((a, b) => a + b, 0); left > 0; at++, left--) shares[at] += 1;
  return shares;
}

/** The highest event of each column, its events' [begin, end], and which moment of which step the columns belong to. */
function timelineColumns(run, live, width, least) {
  const stretches = [];
  for (let at = 0; at < live.length; at++) {
    const last = stretches.at(-1);
    if (last && last.step === run.step[at] && last.moment === run.moment[at]) last.end = at + 1;
    else stretches.push({step: run.step[at], moment: run.moment[at], begin: at, end: at + 1});
  }
  const shares = shareOut(stretches.map(one => one.end - one.begin), width, least), highest = [], bounds = [];
  stretches.forEach((one, place) => {
    one.start = highest.length;
    for (let column = 0; column < shares[place]; column++) {
      const count = one.end - one.begin;
      let best = one.begin + Math.floor(count * column / shares[place]);
      const end = Math.max(best + 1, one.begin + Math.floor(count * (column + 1) / shares[place]));
      bounds.push([best, end]);
      for (let at = best + 1; at < end; at++) if (live[at] > live[best]) best = at;
      highest.push(best);
    }
    one.stop = highest.length;
  });
  return {stretches, highest, bounds};
}

/** Bytes by factor at given events, which rise; `[factor][column]`. */
function factorsAt(data, run, bytes, events) {
  const now = new Float64Array(data.factors.length), curves = data.factors.map(() => new Float64Array(events.length));
  let at = 0;
  events.forEach((event, column) => {
    for (; at <= event; at++) {
      const kind = run.kind[at];
      if (kind === 1 || kind === -1) now[run.factor[run.buffer[at]]] += kind * bytes[run.buffer[at]];
    }
    for (let factor = 0; factor < now.length; factor++) curves[factor][column] = now[factor];
  });
  return curves;
}

function drawTimeline(canvas, data, found) {
  const {run, bytes, live, top, gpu} = found, {context, width, height, colour} = surface(canvas);
  const left = 44, right = width - 8, bottom = height - 40, ceiling = 22, room = Math.floor(right - left);
  const {stretches, highest, bounds} = timelineColumns(run, live, room, Math.min(56, Math.floor(room / 14)));
  const curves = factorsAt(data, run, bytes, highest), capacity = gpu.capacity_bytes;
  const reserved = bounds.map(([begin, end]) => found.curves.reserved.subarray(begin, end).reduce((a, b) =>
    Math.max(a, b)));
  const rounding = curves[data.factors.findIndex(factor => factor.name === "allocator")];
  highest.forEach((event, column) => { rounding[column] += found.curves.allocated[event] - live[event]; });
  const most = Math.max(live[top], ...reserved), scale = 1.04 * (capacity <= 2 * most ? Math.max(most, capacity) : most);
  const y = size => bottom - (bottom - ceiling) * size / scale;
  context.fillStyle = colour("soft");
  context.fillText("GiB", 8, 12);
  const tick = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000].find(one => scale / GIB / one <= 8) || 2000;
  context.textAlign = "right";
  for (let number = 0; number * tick * GIB <= scale; number++) {
    const height = y(number * tick * GIB);
    context.fillStyle = colour("rule");
    context.fillRect(left, height, right - left, 1);
    context.fillStyle = colour("soft");
    context.fillText(`${+(number * tick).toFixed(1)}`, left - 6, height + 4);
  }
  let floor = new Float64Array(highest.length);
  for (const factor of data.stack) {
    if (!curves[factor].some(size => size)) continue;
    const roof = floor.map((low, column) => low + curves[factor][column]);
    context.fillStyle = factorColour(data.factors[factor], colour);
    context.beginPath();
    context.moveTo(left, y(floor[0]));
    for (let column = 0; column < roof.length; column++) {
      context.lineTo(left + column, y(roof[column]));
      context.lineTo(left + column + 1, y(roof[column]));
    }
    for (let column = roof.length - 1; column >= 0; column--) {
      context.lineTo(left + column + 1, y(floor[column]));
      context.lineTo(left + column, y(floor[column]));
    }
    context.fill();
    floor = roof;
  }
  labelStretches(context, data, stretches, left, bottom, ceiling, colour);
  drawReserved(context, reserved, left, y, colour);
  if (capacity <= scale) {
    context.strokeStyle = context.fillStyle = colour("bad");
    context.lineWidth = 1.5;
    context.setLineDash([6, 4]);
    context.strokeRect(left, y(capacity), right - left, 0);
    context.setLineDash([]);
    context.textAlign = "right";
    label(context, `${gpu.name} ${sizeText(capacity)}`, right, y(capacity) - 5, colour);
  }
  const column = highest.findIndex(event => event >= top && live[event] === live[top]);
  const x = left + column + 0.5, side = column < room / 2 ? 9 : -9;
  context.strokeStyle = colour("ink");
  context.lineWidth = 2;
  context.beginPath();
  context.arc(x, y(live[top]), 5, 0, 7);
  context.stroke();
  context.textAlign = side > 0 ? "left" : "right";
  context.fillStyle = colour("ink");
  context.font = `600 ${context.font}`;
  label(context, sizeText(live[top]), x + side, Math.max(y(live[top]) - 6, 12), colour);
}

/** The line of reserved bytes, a stair for each column. */
function drawReserved(context, reserved, left, y, colour) {
  context.strokeStyle = colour("ink");
  context.lineWidth = 2;
  context.beginPath();
  reserved.forEach((size, column) => {
    context.lineTo(left + column, y(size));
    context.lineTo(left + column + 1, y(size));
  });
  context.stroke();
}

/** Words that stay readable over any colour. */
function label(context, words, x, y, colour) {
  const width = context.measureText(words).width, ink = context.fillStyle;
  context.fillStyle = colour("ground");
  context.fillRect(x - 3 - (context.textAlign === "right" ? width : 0), y - 11, width + 6, 15);
  context.fillStyle = ink;
  context.fillText(words, x, y);
}

const factorColour = (factor, colour) => (factor.name === "allocator" ? colour("ink") : factor.colour);

function labelStretches(context, data, stretches, left, bottom, ceiling, colour) {
  const short = {optimizer_step: "step()"};
  let labelled = -1;
  context.textAlign = "left";
  for (const one of stretches) {
    const x = left + one.start, fresh = one.step !== labelled, name = data.moments[one.moment];
    const words = [short[name] || name, name.slice(0, 3)].find(text => context.measureText(text).width + 6
      <= one.stop - one.start);
    context.fillStyle = colour("soft");
    context.fillRect(x, ceiling, fresh ? 1 : 0.5, bottom - ceiling + (fresh ? 34 : 18));
    if (words) context.fillText(words, x + 4, bottom + 15);
    if (fresh) {
      const stop = stretches.filter(other => other.step === one.step).at(-1).stop;
      const text = [one.step ? `step ${one.step}` : "start-up", `${one.step}`].find(text =>
        context.measureText(text).width + 6 <= stop - one.start) || "";
      context.fillStyle = colour("ink");
      context.fillText(text, x + 4, bottom + 32);
      labelled = one.step;
    }
  }
}

/** Where the map's cells are; `box(column, row)` gives x, y, width, height. */
function mapLayout(canvas, map) {
  const {width, height} = canvas.getBoundingClientRect(), left = 50, top = 34;
  const wide = (width - left - 4) / map.batches.length, high = (height - top - 4) / map.sequences.length;
  return {left, top, wide, high, box: (column, row) => [left + column * wide, top + row * high, wide, high]};
}

/** The map with its cells, which are kept as a picture while only the chosen one changes. */
function drawMap(canvas, map, chosen) {
  const {context, colour} = surface(canvas), layout = mapLayout(canvas, map), ratio = globalThis.devicePixelRatio || 1;
  const name = [canvas.width, canvas.height, colour("ground"), map.version].join();
  if (map.picture && map.pictureOf === name) {
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.drawImage(map.picture, 0, 0);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
  } else {
    drawCells(context, layout, map, colour);
    map.picture = new OffscreenCanvas(canvas.width, canvas.height);
    map.picture.getContext("2d").drawImage(canvas, 0, 0);
    map.pictureOf = name;
  }
  const [x, y, wide, high] = layout.box(...chosen);
  context.lineWidth = 5;
  context.strokeStyle = colour("ground");
  context.strokeRect(x, y, wide, high);
  context.lineWidth = 3;
  context.strokeStyle = colour("ink");
  context.strokeRect(x, y, wide, high);
}

function drawCells(context, layout, map, colour) {
  context.fillStyle = colour("soft");
  context.fillText("per_device_train_batch_size →", layout.left, 12);
  context.fillText("tokens ↓", 0, 28);
  context.textAlign = "center";
  map.batches.forEach((batch, column) => {
    if (layout.wide >= 18 || column % 2 === 0)
      context.fillText(batch, layout.left + (column + 0.5) * layout.wide, 28);
  });
  context.textAlign = "right";
  map.sequences.forEach((sequence, row) => {
    if (layout.high >= 13 || row % 2 === 0)
      context.fillText(sequence || "–", layout.left - 6, layout.top + (row + 0.5) * layout.high + 4);
  });
  map.cells.forEach((cell, place) => drawCell(context, layout, map, place, colour));
}

function drawCell(context, layout, map, place, colour) {
  const cell = map.cells[place], column = place % map.batches.length, row = Math.floor(place / map.batches.length);
  const [x, y, wide, high] = layout.box(column, row);
  context.fillStyle = colour(cell.verdict || (cell.refused ? "zebra" : "ground"));
  context.fillRect(x + 0.5, y + 0.5, wide - 1, high - 1);
  if (!cell.verdict) {
    context.strokeStyle = colour("rule");
    context.lineWidth = 1;
    context.strokeRect(x + 1, y + 1, wide - 2, high - 2);
  }
  if (cell.refused || wide < 28 || high < 12) return;
  context.fillStyle = {fits: "#fff", uncertain: "#000", does_not_fit: "#fff"}[cell.verdict] || colour("soft");
  context.textAlign = "center";
  const size = cell.requested / GIB;
  context.fillText(size >= 99.5 ? Math.round(size) : size.toFixed(1), x + wide / 2, y + high / 2 + 4);
}
