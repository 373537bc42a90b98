// What would make a setting fit: the changes of predictor/answer/changes.py, in its order, each judged as any setting is.

/** The steps of a family, from the least change on: words, costs, how training differs, and the changed setting. */
function stepsOf(data, setting, family) {
  return (family.rule ? RULES[family.rule](data, setting, family) : family.steps)
    .map(step => ({costs: family.costs, differs: family.differs, ...step, setting: {...setting, ...step.set}}));
}

/** Families whose steps depend on where the controls are: they repeat the functions of changes.py. */
const RULES = {
  /** _batch: with more accumulation the global batch stays; without, it shrinks. */
  batch(data, {batch, accumulation = data.accumulation}, {differs}) {
    const total = batch * accumulation;
    return from(batch - 1, 1, 1).filter(size => (total % size === 0) === !differs).map(size => (differs
      ? {words: `micro batch ${batch} → ${size}`, set: {batch: size}}
      : {words: `micro batch ${batch} → ${size}, accumulation ${accumulation} → ${total / size}`,
        costs: `${total / size} micro-steps a step`, set: {batch: size, accumulation: total / size}}));
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

  /** _hardware: GPUs with more memory, whose capacity is measured if any is. */
  gpu({gpus}, {gpu}) {
    const here = gpus.find(one => one.name === gpu), larger = gpus.filter(one =>
      one.capacity_bytes > here.capacity_bytes).sort((a, b) => a.capacity_bytes - b.capacity_bytes);
    const measured = larger.filter(one => one.measured);
    return (measured.length ? measured : larger).map(one => ({words: `${gpu} → ${one.name}`, set: {gpu: one.name},
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
function remedyText({words, costs, differs, reserved_bytes}, sizeText) {
  const notes = [costs.startsWith("nothing") ? "" : `price: ${costs}`, differs && `changes training: ${differs}`];
  const note = notes.filter(Boolean).join("; ");
  return `Fits with ${words}: ${sizeText(reserved_bytes)} reserved${note && ` (${note})`}.`;
}

/** Judges a family's next step: the remedy if it surely fits; null if it does not, and the others may follow. */
function judgeNext(data, steps) {
  const step = steps.shift();
  if (!canFit(data, step.setting)) return null;
  const {verdict, reserved_bytes} = judged(data, step.setting);
  return verdict === "fits" ? {...step, reserved_bytes} : null;
}

/** Whether the closed form leaves room: where it does not, there is nothing to play. */
function canFit(data, setting) {
  const found = find(data, setting), [surely] = limitsOf(marginOf(data, setting, found.gpu), found.gpu.capacity_bytes);
  return stepsPeak(data, found, termValues(found.formula.sizes.terms, found.shape, found.gpu)) <= surely;
}
