// What would make a setting fit: the changes of predictor/answer/changes.py, in its order, each judged as any setting is.

/** The steps of a family, from the least change on: words, costs, how training differs, and the changed setting. */
function stepsOf(data, setting, family) {
  return (family.rule ? RULES[family.rule](data, setting, family) : family.steps)
    .map(step => ({costs: family.costs, differs: family.differs, hardware: family.hardware,
      own: ownWords(family.own, step), ...step, setting: {...setting, ...step.set}}));
}

/** The user's own words for a step whose numbers depend on the controls; undefined if there are none. */
const ownWords = (template, {set}) => template && template.replace(/\{(\w+)\}/g, (_, part) => set[part]);

/** Families whose steps depend on where the controls are: they repeat the functions of changes.py. */
const RULES = {
  /** _batch: with more accumulation the global batch stays; without, it shrinks. */
  batch(data, {batch, accumulation = data.accumulation}, {differs}) {
    const total = batch * accumulation, now = accumulation > 1 ? ` in place of ${accumulation}` : "";
    return from(batch - 1, 1, 1).filter(size => differs || total % size === 0).map(size => (differs
      ? {words: `micro batch ${batch} → ${size}`, set: {batch: size}}
      : {words: `micro batch ${batch} → ${size}, accumulation ${accumulation} → ${total / size}`,
        costs: `${total / size} micro-steps a step${now}`, set: {batch: size, accumulation: total / size}}));
  },

  /** _samples: shorter sequences. */
  sequence({changes: {constants}}, {sequence}) {
    const step = constants.length_step, half = Math.floor(sequence / 2);
    const further = Math.max(1, Math.ceil(Math.floor(sequence / constants.further) / step)) * step;
    return [...from(Math.floor((sequence - 1) / step) * step, half, step),
      ...from(Math.floor((half - 1) / further) * further, Math.floor(sequence / constants.shortest), further)]
      .filter(length => length > 0).map(length => ({words: `sequence_length ${sequence} → ${length}`,
        set: {sequence: length}}));
  },

  /** _hardware: GPUs with more memory, the smallest first. */
  gpu({gpus}, {gpu}) {
    const here = gpus.find(one => one.name === gpu), larger = gpus.filter(one =>
      one.capacity_bytes - here.capacity_bytes > Math.floor(here.capacity_bytes / 100)).sort((a, b) => a.capacity_bytes - b.capacity_bytes);
    return larger.map(one => ({words: `${gpu} → ${one.name}`, set: {gpu: one.name},
      costs: `a larger GPU${one.measured ? "" : ", of an assumed capacity"}`}));
  },
};

/** Numbers from `high` down to `low`. */
function from(high, low, step) {
  const found = [];
  for (let number = high; number >= low; number -= step) found.push(number);
  return found;
}

const familiesOf = ({changes}, {engine, degree, checkpointing}) =>
  changes.of[`${engine} ${degree} ${checkpointing ? "on" : "off"}`] || [];

/** What there is to judge of a setting's changes, and in words what the page cannot evaluate. */
function changesOf(data, setting) {
  const open = [], unknown = [];
  for (const family of familiesOf(data, setting)) {
    const steps = family.words ? [] : stepsOf(data, setting, family);
    const judged = steps.filter(step => !find(data, step.setting).refused);
    if (judged.length) open.push(judged);
    else if (family.words || steps.length)
      unknown.push(`${family.words || steps[0].words}${family.differs ? " (changes training)" : ""}`);
  }
  return {open, unknown};
}

/** A remedy as a sentence (predictor/report/remedies.py, remedy_text). */
function remedyText({made, reserved_bytes}, sizeText) {
  const costs = made.map(step => step.costs).filter(cost => !cost.startsWith("nothing"));
  const differs = made.map(step => step.differs).filter(Boolean);
  const notes = [costs.length && `price: ${costs.join(" and ")}`, differs.length && `changes training: ${differs.join(", ")}`];
  const note = notes.filter(Boolean).join("; ");
  return `Fits with ${madeText(made)}: ${sizeText(reserved_bytes)} reserved${note && ` (${note})`}.`;
}

const madeText = made => made.map(({own, words}) => own || words).join(" and ");

/** The search of predictor/answer/remedies.py, which `advance` takes further by one setting. */
function searchFrom(data, setting) {
  const {open, unknown} = changesOf(data, setting), peak = cellAt(data, setting).requested;
  return {made: [], peak, open: sized(open), unknown, rows: [], fit: [], tried: 0, bases: [], best: {made: [], peak}, found: []};
}

const sized = open => open.map(steps => steps.map(step => ({...step, hasSizes: steps.length > 1})));

/** Judges one more setting, or begins the next round. A search ends where nothing is open. */
function advance(data, search) {
  const {made, open, rows, fit, found} = search, [steps] = open, step = judgeNext(data, steps);
  if (step.fits && !made.length && !isOutdone(step, fit)) fit.push({...step, made: [step]});
  else if (step.fits && found.every(one => !isSame(keysOf(one.made), keysOf([...made, step]))))
    found.push({...step, made: [...made, step]});
  if (step.fits || !steps.length) {
    open.shift();
    search.tried += made.length ? 0 : 1;
    if (!step.fits && made.length === search.best.made.length && made.every((one, at) => one === search.best.made[at])) rows.push(step);
  }
  if (!made.length && fit.length === data.changes.constants.enough) search.open = [];
  else if (step.fits && made.length) nextBase(data, search);
  else if (!open.length) (search.bases.length || made.length ? nextBase : nextRound)(data, search);
}

/** Whether it shrinks the global batch, though as large a micro batch fits with more accumulation. */
const isOutdone = ({set, differs}, fit) => set.batch && differs && fit.some(one => !one.differs && one.set.batch >= set.batch);

const keysOf = made => new Set(made.flatMap(step => Object.keys(step.set)));

const isSame = (one, other) => one.size === other.size && [...one].every(name => other.has(name));

/** Continues with the next of the changes to which one more is added. */
function nextBase(data, search) {
  search.open = [];
  while (search.bases.length && !search.open.length) {
    const base = search.bases.shift();
    Object.assign(search, {made: base.made, open: sized(changesOf(data, base.setting).open)
      .map(steps => lesser(steps, search.fit)).filter(steps => steps.length)});
  }
  if (search.open.length) return;
  search.fit.push(...search.found);
  if (!search.found.length) nextRound(data, search);
}

/** _together: one more change to each of the first few, until something fits. */
function nextRound(data, search) {
  const {rows, fit, best} = search, {enough, most_together, most_bases} = data.changes.constants;
  const keeps = step => !step.differs && !step.hardware;
  search.open = [];
  if (fit.filter(({made: [step]}) => keeps(step)).length >= enough || best.made.length === most_together - 1) return;
  const may = rows.filter(step => !step.hardware && (keeps(step) || !fit.length))
    .map(step => ({...step, peak: cellAt(data, step.setting).requested, made: [...best.made, step]}))
    .filter(step => step.peak <= best.peak);
  const bases = [...may].sort((one, other) => Number(!!one.differs) - Number(!!other.differs)
    || Number(one.hasSizes) - Number(other.hasSizes) || one.peak - other.peak);
  const lower = may.filter(step => step.peak < best.peak);
  if (!lower.length) return;
  const lowest = lower.reduce((one, other) => (Number(!!other.differs) - Number(!!one.differs) || other.peak - one.peak) < 0
    ? other : one);
  const chosen = bases.slice(0, most_bases);
  Object.assign(search, {best: lowest, rows: [],
    bases: chosen.includes(lowest) ? chosen : [...chosen.slice(0, most_bases - 1), lowest]});
  nextBase(data, search);
}

/** The changes of a family before the first that fits alone. */
function lesser(steps, fit) {
  const end = steps.findIndex(({words}) => fit.some(({made: [alone]}) => alone.words === words));
  return end < 0 ? steps : steps.slice(0, end);
}

/** Judges a family's next step, with whether it surely fits. */
function judgeNext(data, steps) {
  const step = steps.shift();
  if (!canFit(data, step.setting)) return {...step, fits: false};
  const {verdict, reserved_bytes} = judged(data, step.setting);
  return {...step, fits: verdict === "fits", reserved_bytes};
}

/** Whether the closed form leaves room: where it does not, there is nothing to play. */
function canFit(data, setting) {
  const found = find(data, setting), [surely] = limitsOf(marginOf(data, setting, found.gpu), found.gpu.capacity_bytes);
  return stepsPeak(data, found, termValues(found.formula.sizes.terms, found.shape, found.gpu)) <= surely;
}
