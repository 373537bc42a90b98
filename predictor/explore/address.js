// The setting in the page's address, such as #batch=16&sequence=2048: written, and read against the page's own choices.

/** The lowest and the highest number that a control takes. */
function rangesOf({limits}) {
  const least = limits.room[1] + 1 + (limits.apart ? 1 : 0);
  return {batch: [1, limits.batches.at(-1) || 4096], sequence: [least, limits.positions || 131072], images: [1, limits.room.length - 1]};
}

/** Names of a setting's parts that this page has a control for. */
function partsOf({limits, first}) {
  const kept = {sequence: limits.tokens, images: limits.images, checkpointing: first.checkpointing};
  return ["batch", "sequence", "images", "engine", "degree", "gpu", "checkpointing"].filter(name => kept[name] ?? true);
}

const fragmentOf = (data, setting) => "#" + partsOf(data).map(name =>
  `${name}=${encodeURIComponent(setting[name])}`).join("&");

/** The first setting with the parts that an address gives, and a line for each part that cannot be taken. */
function settingOf(data, fragment) {
  const setting = {...data.first}, notices = [], parts = partsOf(data), given = new Map();
  for (const pair of fragment.replace(/^#/, "").slice(0, 2000).split("&").filter(Boolean)) {
    const [name, text] = pair.split("=", 2).map(readable);
    if (parts.includes(name)) given.set(name, text ?? "");
    else notices.push(`${shown(name)} is not a part of this page's settings`);
  }
  for (const name of parts) { // the engine comes before the degrees that it has
    if (!given.has(name)) continue;
    const allowed = choicesOf(data, name, setting), value = allowed.read(given.get(name));
    if (value === undefined) notices.push(`${name} ${shown(given.get(name))} is not ${allowed.words}`);
    else setting[name] = value;
  }
  const known = engineOf(data, setting).degrees;
  if (!known.includes(setting.degree)) setting.degree = nearestOf(known, setting.degree);
  return {setting, notices};
}

/** What a part of a setting may be: in words, and as a function that reads it (undefined: it may not be that). */
function choicesOf(data, name, setting) {
  const one = values => ({words: `one of ${values.join(", ")}`, read: text => values.find(value => `${value}` === text)});
  if (name === "engine") return one(data.engines.map(engine => engine.name));
  if (name === "gpu") return one(data.gpus.map(gpu => gpu.name));
  if (name === "batch" && data.limits.batches.length) return one(data.limits.batches);
  if (name === "degree") return one(engineOf(data, setting).degrees);
  if (name === "checkpointing") return one([true, false]);
  const [low, high] = rangesOf(data)[name];
  return {words: `a whole number from ${low} to ${high}`,
    read: text => (/^[0-9]{1,7}$/.test(text) && +text >= low && +text <= high ? +text : undefined)};
}

/** The highest of some numbers that is not above another, or the lowest of them. */
const nearestOf = (known, number) => known.filter(one => one <= number).at(-1) || known[0];

function readable(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

const shown = text => (text.length > 40 ? `${text.slice(0, 40)}…` : text || "(nothing)");
