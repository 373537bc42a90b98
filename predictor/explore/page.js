// The page: controls, what they ask for, and redrawing all of it at once.

const element = id => document.getElementById(id);
const state = {data: null, setting: null, map: null, found: null, remedies: null, frame: 0, waits: false};

async function unpack() {
  const packed = Uint8Array.from(atob(element("content").textContent.trim()), character => character.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  const length = new DataView(bytes.buffer).getUint32(0, true);
  return open(JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length))), bytes.subarray(4 + length));
}

// Controls ----------------------------------------------------------------------------------------------------------

function prepareControls(data) {
  const option = (value, words) => Object.assign(document.createElement("option"), {value, textContent: words});
  element("engine").append(...data.engines.map(engine => option(engine.name, engine.label)));
  element("gpu").append(...data.gpus.map(gpu =>
    option(gpu.name, `${gpu.name} (${sizeText(gpu.capacity_bytes)}${gpu.measured || gpu.given ? "" : ", assumed"})`)));
  const {limits} = data, longest = Math.min(limits.positions || Infinity, 8192), ranges = rangesOf(data);
  for (const [name, [low, high]] of Object.entries(ranges))
    for (const id of [name, `${name}-range`]) [element(id).min, element(id).max] = [low, high];
  element("batch-range").max = limits.batches.at(-1) || 64;
  element("sequence-range").max = Math.max(longest, 2 * ranges.sequence[0]);
  element("sequence-control").hidden = !limits.tokens;
  element("images-control").hidden = !limits.images;
  element("checkpointing").closest(".control").hidden = !data.first.checkpointing;
  for (const name of ["batch", "sequence", "images"]) {
    element(name).addEventListener("input", event => choose({[name]: whole(event.target)}));
    element(`${name}-range`).addEventListener("input", event => choose({[name]: whole(event.target)}));
    element(name).addEventListener("change", () => show(state.setting));
  }
  element("degree").addEventListener("input", event => choose({degree: degrees()[event.target.value]}));
  element("engine").addEventListener("input", event => choose({engine: event.target.value}));
  element("gpu").addEventListener("input", event => choose({gpu: event.target.value}));
  element("checkpointing").addEventListener("input", event => choose({checkpointing: event.target.checked}));
  element("controls").addEventListener("submit", event => event.preventDefault());
}

/** The number of a control; null while it is none that may be. */
function whole(input) {
  const value = Number(input.value);
  return Number.isInteger(value) && value >= +input.min && value <= +input.max ? value : null;
}

const degrees = (engine = state.setting.engine) => engineOf(state.data, {engine}).degrees;

/** Changes the setting and draws it. */
function choose(changes) {
  if (Object.values(changes).includes(null)) return;
  const setting = {...state.setting, ...changes}, known = degrees(setting.engine);
  if (!known.includes(setting.degree)) setting.degree = nearestOf(known, setting.degree);
  const {batches} = state.data.limits;
  if (batches.length && !batches.includes(setting.batch)) setting.batch = nearestOf(batches, setting.batch);
  state.setting = setting;
  tell([]);
  show(setting);
  drawSoon();
  clearTimeout(state.address); // browsers refuse an address that changes with every step of a slider
  state.address = setTimeout(() => history.replaceState(null, "", fragmentOf(state.data, state.setting)), 250);
}

/** Takes the setting of the page's address. */
function readAddress() {
  const {setting, notices} = settingOf(state.data, location.hash);
  choose(setting);
  tell(notices);
}

/** What of the address was left out. */
function tell(notices) {
  element("notice").hidden = !notices.length;
  element("notice").textContent = notices.length ? `Left out of the address: ${notices.join("; ")}.` : "";
}

/** At once, but no more than once a frame. */
function drawSoon() {
  if (state.frame) state.waits = true;
  else {
    state.frame = requestAnimationFrame(() => {
      state.frame = 0;
      if (state.waits) drawSoon();
    });
    state.waits = false;
    redraw();
  }
}

/** The setting in the controls, but for the one that is being typed into. */
function show(setting) {
  for (const name of ["batch", "sequence", "images"])
    for (const id of [name, `${name}-range`])
      if (element(id) !== document.activeElement || whole(element(id)) !== null) element(id).value = setting[name];
  const known = degrees();
  element("degree").max = known.length - 1;
  element("degree").disabled = known.length < 2;
  element("degree").value = known.indexOf(setting.degree);
  element("degree").setAttribute("aria-valuetext", `${setting.degree} GPUs`);
  element("degree-value").textContent = setting.degree;
  element("engine").value = setting.engine;
  element("gpu").value = setting.gpu;
  element("checkpointing").checked = setting.checkpointing;
}

// Drawing -----------------------------------------------------------------------------------------------------------

function redraw() {
  const {data, setting} = state, found = predict(data, setting);
  state.found = found;
  element("assumed").hidden = !data.assumed || setting.degree !== data.first.degree;
  element("assumed").textContent = data.assumed;
  element("command").innerHTML = commandOf(data, setting).map(part => `<span>${escaped(part)}</span>`).join(" ");
  for (const name of ["h-peak", "h-run"]) element(name).parentElement.hidden = Boolean(found.refused);
  if (found.refused) element("verdict").textContent = `Not predicted: ${found.refused}.`;
  else {
    writeAnswer(data, setting, found);
    drawTimeline(element("timeline"), data, found);
  }
  prepareRemedies(data, setting, found);
  prepareMap(data, setting);
  drawMap(element("map"), state.map, chosenCell());
}

// What would fit ----------------------------------------------------------------------------------------------------

/** The changes to judge while the page is idle, where a setting does not surely fit. */
function prepareRemedies(data, setting, found) {
  const wanted = !found.refused && found.answer.verdict !== "fits";
  state.remedies = wanted ? searchFrom(data, setting) : null;
  showRemedies();
}

function showRemedies() {
  const {remedies} = state;
  element("remedies").parentElement.hidden = !remedies;
  if (!remedies) return;
  const {open, fit, tried, made, unknown} = remedies;
  list("remedies", fit.map(one => remedyText(one, sizeText)));
  const together = made.length ? `, together with ${madeText(made)}` : "";
  element("remedies-progress").textContent = open.length ? `${open.length} changes still to judge${together} …`
    : fit.length ? `The first that fit, of ${tried} judged; those that keep training the same come first.`
      : `Nothing that this page can evaluate fits${made.length ? `, not even ${madeText(made)} with one change more` : ""}.`;
  element("remedies-unknown").textContent = `peakcast predict, with the command above, also judges what this page cannot `
    + `evaluate: ${unknown.join("; ")}.`;
  element("remedies-unknown").hidden = Boolean(open.length) || !unknown.length;
}

function rows(table, head, body, last = false) {
  const cell = (tag, words, text) => `<${tag}${text ? ' class="text"' : ""}>${words}</${tag}>`;
  const line = (cells, tag, place) => `<tr${last && place === body.length - 1 ? ' class="last"' : ""}>`
    + cells.map((words, at) => cell(tag || (at ? "td" : "th"), words, at === 0 || words.text)).join("") + "</tr>";
  element(table).innerHTML = (head ? `<thead>${line(head, "th")}</thead>` : "")
    + `<tbody>${body.map((cells, place) => line(cells, "", place)).join("")}</tbody>`;
}

const escaped = words => words.replace(/[&<>"]/g, character => `&#${character.charCodeAt(0)};`);
const words = text => Object.assign(new String(escaped(text)), {text: true}); // a cell aligned as text

function writeAnswer(data, setting, found) {
  const {answer, margin, gpu} = found, total = answer.peak_allocated_bytes;
  element("verdict").textContent = verdictText(answer, gpu, margin);
  element("verdict").className = `lead ${{fits: "good", does_not_fit: "bad"}[answer.verdict] || "fair"}`;
  element("where").textContent = whereText(answer);
  const meanings = {requested: "what tensors asked for (requested_bytes.all.peak)",
    allocated: "in whole blocks (torch.cuda.max_memory_allocated)",
    reserved: "held by PyTorch (torch.cuda.max_memory_reserved)",
    device: `what nvidia-smi shows, ${gpu.outside_pytorch}`};
  for (const name of ["allocated", "reserved"])
    if (answer.peak[`${name}_rank`] !== answer.peak.rank) meanings[name] += ` on rank ${answer.peak[`${name}_rank`]}`;
  rows("peaks", null, Object.entries(meanings).map(([name, meaning]) => [name, boundText(answer, name),
    answer[`peak_${name}_bytes`] === null ? "" : `${fixed(answer[`peak_${name}_bytes`], 0)} B`, words(meaning)]));
  const seen = data.factors.filter(factor => answer.factors[factor.name]);
  const share = bytes => fixed(100 * bytes / total, 1);
  const swatch = factor => `<span class="swatch" style="--state:${factor.name === "allocator" ? "var(--ink)"
    : factor.colour}"></span>${factor.name}`;
  rows("factors", ["at the peak", "GiB", "%", "bytes"], [...seen.map(factor => [swatch(factor),
    gib(answer.factors[factor.name]), share(answer.factors[factor.name]), fixed(answer.factors[factor.name], 0)]),
    ["total", gib(total), share(total), fixed(total, 0)]], true);
  const whole = Math.max(total, answer.capacity_bytes);
  element("bar").innerHTML = data.stack.map(at => data.factors[at]).filter(factor => answer.factors[factor.name] > 0)
    .map(factor => `<i style="width:${100 * answer.factors[factor.name] / whole}%;background:${
      factor.name === "allocator" ? "var(--ink)" : factor.colour}" title="${factor.name}"></i>`).join("")
    + `<b style="left:${100 * answer.capacity_bytes / whole}%" title="${gpu.name}"></b>`;
  element("bar").setAttribute("aria-label", `${seen.map(factor =>
    `${factor.name} ${sizeText(answer.factors[factor.name])}`).join(", ")}; the GPU has ${sizeText(answer.capacity_bytes)}`);
  element("timeline").setAttribute("aria-label", `Timeline of live bytes. ${whereText(answer)} `
    + `Highest: ${sizeText(answer.peak_requested_bytes)}.`);
  rows("moments", ["moment", "highest (GiB)", "step", words("operator"), words("module")],
    Object.entries(answer.moments).map(([moment, point]) => [moment, gib(point.requested_bytes), `${point.step}`,
      words(point.operator), words(point.module)]));
  list("not-modelled", answer.not_modelled);
  list("provenance", provenance(data, gpu));
}

function list(id, lines) {
  element(id).innerHTML = lines.map(line => `<li>${escaped(line)}</li>`).join("");
}

/** As `peakcast predict` says it (predictor/report/verdict.py). */
function verdictText(answer, gpu, margin) {
  const reserved = answer.peak_reserved_bytes, capacity = sizeText(answer.capacity_bytes);
  const name = gpu.given ? "the given capacity" : gpu.name;
  const note = gpu.measured || gpu.given ? "" : " (an assumed capacity)";
  const peak = `${sizeText(answer.peak_allocated_bytes)} allocated, ${sizeText(reserved)} reserved`;
  if (answer.verdict === "fits")
    return `Fits ${name}: peak ${peak} of ${capacity}${note}; ${sizeText(answer.headroom_bytes)} stay free.`;
  const error = answer.out_of_memory;
  const when = error.step ? `${error.moment} of step ${error.step}` : "start-up";
  const where = [error.operator, error.module].filter(Boolean).join(" in ") || "an allocation";
  const failure = ` in ${when} on rank ${error.rank}, where ${where} wants ${sizeText(error.requested_bytes)}`;
  if (answer.verdict === "does_not_fit")
    return `Does not fit ${name} (${capacity}${note}): out of memory${failure}. It would peak at ${peak}.`;
  const high = answer.peak_reserved_bytes_high;
  const most = high === null || sizeText(high) === sizeText(reserved) ? ""
    : ` and PyTorch reserves ${sizeText(high)}, the upper end of its interval`;
  const low = answer.peak_reserved_bytes_low;
  const least = low === null || reserved <= answer.capacity_bytes ? "" : ` At the lower end, ${sizeText(low)}, it fits.`;
  return `Uncertain on ${name}: peak ${peak} of ${capacity}${note}. It runs out of memory${failure} if CUDA context, `
    + `NCCL and libraries take ${sizeText(margin.runtimeHigh)}${most}.${least}`;
}

function whereText({peak}) {
  return `The peak is in ${peak.moment} of ${peak.step ? `step ${peak.step}` : "start-up"} on rank ${peak.rank}: `
    + `${peak.operator || "an allocation"}${peak.module ? ` in ${peak.module}` : ""}.`;
}

function boundText(answer, name) {
  const [size, low, high] = ["", "_low", "_high"].map(end => answer[`peak_${name}_bytes${end}`]);
  if (size === null) return "not predicted";
  if (low === null || high === null || new Set([size, low, high].map(sizeText)).size === 1) return sizeText(size);
  return `${sizeText(size)} (${sizeText(low)} to ${sizeText(high)})`;
}

/** Options with their values: lines break between them. */
function commandOf(data, setting) {
  const engine = engineOf(data, setting), gpu = data.gpus.find(one =>
    one.name === setting.gpu);
  return ["peakcast predict", ...data.command, "--per-device-train-batch-size", setting.batch,
    ...(data.limits.tokens ? ["--sequence-length", setting.sequence] : []),
    ...(data.limits.images ? ["--images-per-sample", setting.images] : []), ...engine.option,
    "--data-parallel-size", setting.degree, "--gpu", gpu.name, ...(gpu.profile_left_out ? ["--profile", "emulated"] : []),
    ...(setting.checkpointing ? [] : ["--no-gradient-checkpointing"]), ...data.training].join(" ")
    .split(/ (?=--)/);
}

function provenance(data, gpu) {
  const {versions, recipe, formulas, fingerprint} = data.provenance, {profile} = gpu;
  const measured = {device: "measured on a real GPU", emulated: "measured on an emulated GPU", assumed: "assumed"};
  return [`peakcast ${data.version}; model ${data.model} (configuration ${fingerprint}), recipe ${recipe}`,
    `versions: ${Object.entries(versions).map(pair => pair.join(" ")).join(", ")}`,
    `formula: ${formulas.join(", ")}; kernels of ${gpu.name}`,
    profile ? `profile: ${profile.name}, ${measured[profile.measured_on]}` : `profile: none for ${gpu.name}`,
    `workload: ${Object.entries(data.workload).filter(([name]) => !OWN.has(name)).map(([name, value]) =>
      `${name} ${typeof value === "object" ? JSON.stringify(value) : value}`).join(", ")}`];
}

const OWN = new Set(["model", "recipe", "versions", "per_device_train_batch_size", "sequence_length",
  "images_per_sample", "gradient_checkpointing", "engine", "zero_stage", "data_parallel_size", "tensor_parallel_size",
  "gpu"]);

// The map -----------------------------------------------------------------------------------------------------------

const steps = pairs => pairs.flatMap(([from, to, by]) =>
  Array.from({length: Math.floor((to - from) / by) + 1}, (_, at) => from + at * by));
const BATCHES = [...steps([[1, 8, 1]]), 10, 12, 16, 20, 24, 32, 48, 64];

function mapSequences(data) {
  if (!data.limits.tokens) return [0];
  const {min, max} = element("sequence-range");
  return steps([[128, 1024, 128], [1280, 2048, 256], [2560, 8192, 512], [10240, 131072, 2048]])
    .filter(tokens => tokens >= +min && tokens <= +max);
}

/** Cells by the closed form; the allocator follows when the page is idle. Kept while only batch or sequence change. */
function prepareMap(data, setting) {
  const {batch, sequence, ...others} = setting, name = JSON.stringify(others);
  clearTimeout(state.idle);
  element("progress").textContent = "";
  if (!state.map || state.map.name !== name) {
    const batches = data.limits.batches.length ? data.limits.batches : BATCHES, sequences = mapSequences(data);
    const cells = sequences.flatMap(tokens => batches.map(samples =>
      cellAt(data, {...setting, batch: samples, sequence: tokens})));
    state.map = {name, batches, sequences, cells, version: 0};
  }
  state.idle = setTimeout(playNext, 200);
  const engine = engineOf(data, setting);
  element("map-of").textContent = `Each cell is one job: ${engine.label} on ${setting.degree * engine.tensor} GPU(s) of `
    + `${setting.gpu}${data.first.checkpointing ? `, ${setting.checkpointing ? "with" : "without"} checkpointing` : ""}, `
    + `with the cell's own per_device_train_batch_size (across)${data.limits.tokens ? " and sequence_length (down)" : ""}.`;
}

/** Plays the cell nearest to the chosen one that is still open. */
function playNext() {
  const {data} = state;
  if (state.remedies?.open.length) {
    advance(data, state.remedies);
    showRemedies();
    state.idle = setTimeout(playNext, 0);
    return;
  }
  const {map, setting} = state, [column, row] = chosenCell() || [0, 0], width = map.batches.length;
  let best = -1, nearest = Infinity;
  map.cells.forEach((cell, place) => {
    const far = Math.hypot(place % width - column, Math.floor(place / width) - row);
    if (!cell.refused && !cell.verdict && far < nearest) [best, nearest] = [place, far];
  });
  const open = map.cells.filter(cell => !cell.refused && !cell.verdict).length;
  element("progress").textContent = open ? `(${open} to go)` : "";
  if (best < 0) return;
  const one = {...setting, batch: map.batches[best % width], sequence: map.sequences[Math.floor(best / width)]};
  map.cells[best].verdict = judged(data, one).verdict;
  map.version += 1;
  drawMap(element("map"), map, chosenCell());
  state.idle = setTimeout(playNext, 0);
}

/** Column and row of the cell nearest to the setting. */
function chosenCell() {
  const {map, setting} = state, near = (values, value) => values.reduce((best, one, place) =>
    (Math.abs(one - value) < Math.abs(values[best] - value) ? place : best), 0);
  return [near(map.batches, setting.batch), near(map.sequences, setting.sequence)];
}

function chooseCell(column, row) {
  const {map} = state;
  if (column < 0 || row < 0 || column >= map.batches.length || row >= map.sequences.length) return;
  if (!map.cells[row * map.batches.length + column].refused)
    choose({batch: map.batches[column], ...(state.data.limits.tokens ? {sequence: map.sequences[row]} : {})});
}

function prepareMapInput() {
  element("map").addEventListener("click", event => {
    const {left, top, wide, high} = mapLayout(event.target, state.map);
    chooseCell(Math.floor((event.offsetX - left) / wide), Math.floor((event.offsetY - top) / high));
  });
  const moves = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]};
  element("map").addEventListener("keydown", event => {
    if (!moves[event.key]) return;
    event.preventDefault();
    const [column, row] = chosenCell();
    chooseCell(column + moves[event.key][0], row + moves[event.key][1]);
  });
}

/** Draws each engine, unseen: its runs are put together, and the browser compiles what the sliders will run. */
function warmUp() {
  const first = state.setting;
  for (const {name, degrees} of state.data.engines) {
    state.setting = {...first, engine: name, degree: nearestOf(degrees, first.degree)};
    redraw();
  }
  state.setting = first;
}

async function begin() {
  state.data = await unpack();
  state.setting = {...state.data.first};
  prepareControls(state.data);
  prepareMapInput();
  list("left-out", state.data.left_out);
  document.querySelector("main").hidden = false;
  element("map").setAttribute("aria-label", "Map of what fits, batch by sequence length");
  warmUp();
  readAddress();
  addEventListener("hashchange", readAddress);
  new ResizeObserver(drawSoon).observe(element("map"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawSoon);
}

begin();
