// Sizes at a shape (predictor/events/sizes.py), and which formula answers for one (predictor/events/regimes.py).

/** Bytes of each term at [batch, sequence, images] on a GPU. */
function termValues(terms, shape, gpu) {
  return terms.map(term => (typeof term[0] === "string"
    ? WORKSPACES[term[0]](gpu, ...term[1].map(parts => polynomial(parts, shape)))
    : monomial(term, shape)));
}

function monomial(exponents, shape) {
  let product = 1;
  for (let axis = 0; axis < 3; axis++) for (let power = exponents[axis]; power > 0; power--) product *= shape[axis];
  return product;
}

function polynomial(parts, shape) {
  let sum = 0;
  for (const [exponents, factor] of parts) sum += factor * monomial(exponents, shape);
  return sum;
}

/** Bytes of every row of a formula's sizes, from the values of its terms. */
function rowBytes(formula, values) {
  return formula.sizes.rows.map(row => row.reduce((sum, [term, factor]) => sum + factor * values[term], 0));
}

/** Bytes of every buffer of a run. */
function bufferBytes(run, rows) {
  const bytes = Float64Array.from(run.bytes);
  for (let at = 0; at < bytes.length; at++) if (run.size[at] >= 0) bytes[at] = rows[run.size[at]];
  return bytes;
}

const countName = number => (number === 0 ? "none" : number === 1 ? "1" : "many");

const exactName = number => `=${number}`; // in regimes of one number of samples and images

const engineOf = (data, setting) => data.engines.find(one => one.name === setting.engine);

/** A setting's formula. Its name: checkpointing, how the model is sharded, attention's kernel, regime. */
function formulaOf(data, setting, gpu) {
  const rows = data.rows[gpu.backend].filter(([from]) => setting.sequence >= from).at(-1);
  const names = [countName, exactName].map(name => [setting.checkpointing ? "on" : "off",
    engineOf(data, setting).traced, gpu.backend, name(setting.batch), name(setting.batch * setting.images),
    setting.sequence % 8 ? rows[2] : rows[1]].join(" "));
  return data.formulas.find(({key}) => names.includes(key));
}

/** Why a shape is not predicted; empty if it is (predictor/jobs/training_job.py, check_room). */
function refusal(data, setting) {
  const {room, apart, positions, tokens} = data.limits;
  if (!tokens) return "";
  const least = room[setting.images] + 1 + (apart ? setting.images : 0);
  if (setting.sequence < least)
    return `${setting.images} image(s) fill ${room[setting.images]} tokens: the sequence needs at least ${least}`;
  return positions !== null && setting.sequence > positions ? `the model knows ${positions} positions only` : "";
}
