// From a setting to its answer (predictor/jobs/, profile/corrections.py, answer/answer.py): the same numbers.

/** The runs that answer for a setting, or why there is none. */
function find(data, setting) {
  const gpu = data.gpus.find(one => one.name === setting.gpu);
  const refused = refusal(data, setting);
  if (refused) return {refused};
  const formula = formulaOf(data, setting, gpu);
  const packed = formula && formula.runs[runName(data, setting)];
  if (!packed) return {refused: "this combination is not in the page (see: left out)"};
  const shape = [setting.batch, setting.sequence, setting.batch * setting.images];
  return {gpu, formula, packed, shape, starts: packed.starts[setting.expandable ? 1 : 0],
    expandable: data.expandable || setting.expandable ? gpu.capacity_bytes : null};
}

const MICRO_STEPS = 3; // the most of a step that are composed (predictor/engine/setup.py)

/** The name of a setting's runs: those of more accumulation than the page's workload has are named by their steps. */
function runName(data, {engine, degree, accumulation = data.accumulation}) {
  const [steps, usual] = [accumulation, data.accumulation].map(number => Math.min(number, MICRO_STEPS));
  return `${engine} ${degree}${steps === usual ? "" : ` x${steps}`}`;
}

/** Calls `tell(rank, bytes)` for each sum of the steps that can be the highest. */
function eachSum(data, found, values, tell) {
  const {rank, ends, terms, factors} = found.packed.sparse ||= sparse(data, found.packed.candidates);
  for (let row = 0, at = 0; row < rank.length; row++) {
    let sum = 0;
    for (; at < ends[row]; at++) sum += factors[at] * values[terms[at]];
    tell(rank[row], sum);
  }
}

/** The sums without their zeros. */
function sparse(data, candidates) {
  const rank = data.column(candidates.rank), sums = data.column(candidates.sums), width = sums.length / rank.length;
  const ends = [], terms = [], factors = [];
  sums.forEach((factor, at) => {
    if (factor) {
      terms.push(at % width);
      factors.push(factor);
    }
    if (at % width === width - 1) ends.push(terms.length);
  });
  return {rank, ends: Int32Array.from(ends), terms: Int32Array.from(terms), factors: Float64Array.from(factors)};
}

/** Peak requested bytes of the worst rank's steps, by the closed form; `values` are those of the formula's terms. */
function stepsPeak(data, found, values) {
  let highest = 0;
  eachSum(data, found, values, (_, sum) => {
    if (sum > highest) highest = sum;
  });
  return highest;
}

/** The start-up where PyTorch can have so many bytes (null: any): [from which limit on, columns, highest bytes]. */
function startAt({starts}, limit) {
  if (limit === null) return starts.at(-1);
  return starts.slice(0, -1).filter(([from]) => from <= limit).at(-1) || starts[0];
}

/** A cell of the map: peak requested bytes, and whether the steps alone want more than there can be. */
function cellAt(data, setting) {
  const found = find(data, setting);
  if (found.refused) return {refused: true};
  const most = limitsOf(marginOf(data, setting, found.gpu), found.gpu.capacity_bytes)[1];
  const steps = stepsPeak(data, found, termValues(found.formula.sizes.terms, found.shape, found.gpu));
  return {requested: Math.max(startAt(found, most)[2], steps),
    verdict: most !== null && steps > most ? "does_not_fit" : undefined};
}

/** Ranks that decide whether it survives: the one that requests the most, and those that are always simulated. */
function decidingRanks(data, found, setting, values) {
  if (found.packed.judged.length === 1) return found.packed.judged;
  let worst = 0, highest = -1;
  eachSum(data, found, values, (rank, sum) => {
    if (sum > highest || (sum === highest && rank < worst)) [worst, highest] = [rank, sum];
  });
  return [...new Set([worst, ...found.packed.judged])];
}

// How far off it may be ---------------------------------------------------------------------------------------------

/** Quantities of a setting that are far from what a GPU's profile covered. */
function farFrom(data, setting, {calibrated}) {
  const quantities = {tokens: setting.batch * setting.sequence, sequence_length: setting.sequence,
    images: setting.batch * setting.images, data_parallel_size: setting.degree};
  return Object.entries(quantities).filter(([key, value]) => key in calibrated
    && !(calibrated[key][0] / data.far <= value && value <= calibrated[key][1] * data.far));
}

/** The name of a setting's traits. */
const nameOf = setting => `${setting.engine} ${setting.checkpointing ? "on" : "off"}${
  setting.accumulation > 1 ? " several" : ""}${setting.expandable ? " expandable" : ""}`;
const kindsOf = (setting, {kinds}) => kinds[nameOf(setting)];
const versionsOf = (setting, {versions}) => versions[nameOf(setting)];

function widened(data, [low, high], times) {
  for (; times > 0; times--) {
    low = Math.min(low, 0);
    high = Math.max(high, 0);
    const side = Math.max(data.extrapolation, (high - low) / 2);
    low -= side;
    high += side;
  }
  return [Math.max(low, -1), high];
}

/** Runtime and relative bounds of a setting. */
function marginOf(data, setting, gpu) {
  const [runtimeLow, runtimeHigh] = gpu.runtime[setting.engine][setting.degree];
  const expected = Math.floor((runtimeLow + runtimeHigh) / 2);
  if (!gpu.profile) return {runtimeLow, runtimeHigh, expected, relative: {}};
  const times = versionsOf(setting, gpu.profile).length + farFrom(data, setting, gpu.profile).length;
  const moves = counter => kindsOf(setting, gpu.profile).filter(kind => (gpu.profile.limited[nameOf(setting)][kind] || [counter])
    .includes(counter));
  const relative = Object.fromEntries(Object.entries(gpu.profile.residuals).map(([counter, bounds]) =>
    [counter, widened(data, bounds, times + moves(counter).length)]));
  return {runtimeLow, runtimeHigh, expected, relative};
}

/** How much a run may be predicted to reserve: if it is to fit surely, and at best (null: any). */
function limitsOf(margin, capacity) {
  let [low, high] = margin.relative.reserved || [0, 0];
  low = Math.min(low, 0);
  high = Math.max(high, 0);
  const surely = Math.max(0, capacity - margin.runtimeHigh) / (1 + high);
  const room = Math.max(0, capacity - margin.runtimeLow);
  return [Math.floor(surely), low > -1 ? Math.floor(room / (1 + low)) : room ? null : 0];
}

function bound(bytes, relative, low = null, high = null) {
  if (!relative) return {bytes, low, high};
  return {bytes, low: Math.floor((low ?? bytes) * (1 + relative[0])), high: Math.ceil((high ?? bytes) * (1 + relative[1]))};
}

// Whether it survives -----------------------------------------------------------------------------------------------

const MOST_RUNS = 60; // kept put together, about a MiB each

/** Plays runs of a setting at limits; what was played once is kept, and so is a run that a limit does not touch. */
class Player {
  /** `curves`: whether simulations keep what is allocated and reserved after each event. */
  constructor(data, found, curves = false) {
    this.data = data;
    this.curves = curves;
    this.found = found;
    this.values = termValues(found.formula.sizes.terms, found.shape, found.gpu);
    this.rows = rowBytes(found.formula, this.values);
    this.stepsPeak = stepsPeak(data, found, this.values);
    this.played = new Map();
    this.peaks = new Map();
  }

  run(rank, limit) {
    const start = startAt(this.found, limit)[1], steps = this.found.packed.ranks[rank];
    const key = `${this.found.formula.key} ${start} ${steps}`, cache = this.data.composed;
    if (!cache.has(key)) {
      const run = compose(this.data, this.found.formula, start, steps, this.found.packed.instances);
      run.shared = run.kind.some(kind => kind >= 16);
      if (cache.size === MOST_RUNS) cache.delete(cache.keys().next().value); // the oldest
      cache.set(key, run);
    }
    return cache.get(key);
  }

  bytes(run) {
    if (!this.played.has(run)) {
      const bytes = bufferBytes(run, this.rows);
      this.peaks.set(run, runningSum(run, bytes).reduce((best, sum) => (sum > best ? sum : best), 0));
      this.played.set(run, {bytes, untouched: new Map(), touched: new Map()});
    }
    return this.played.get(run).bytes;
  }

  /** At both ends of when events complete, where that matters. A limit that is never reached changes nothing. */
  ends(run, limit) {
    const bytes = this.bytes(run), {untouched, touched} = this.played.get(run);
    return (run.shared ? [false, true] : [false]).map(waits => {
      const key = `${waits} ${limit}`, free = untouched.get(waits);
      if (free && (limit === null || free.peakReserved <= limit)) return free;
      if (touched.has(key)) return touched.get(key);
      const length = this.curves ? run.kind.length : 0;
      const end = simulate(run, bytes, limit, waits,
        length ? {allocated: new Float64Array(length), reserved: new Float64Array(length)} : null, this.found.expandable);
      if (end.retried) touched.set(key, end);
      else untouched.set(waits, end);
      return end;
    });
  }

  outcome(rank, composedAt, limit) {
    const run = this.run(rank, composedAt), ends = this.ends(run, limit);
    const reserved = ends.map(end => end.peakReserved), both = ends.length > 1;
    const failed = ends.find(end => end.failedAt !== null);
    return {rank, run, requested: this.peaks.get(run), simulation: ends[0],
      failure: failed ? {rank, run, simulation: failed} : null,
      reserved: {rank, bytes: reserved[0], low: both ? Math.min(...reserved) : null,
        high: both ? Math.max(...reserved) : null}};
  }

  /** Runs as composed for one limit, played at another; of ranks alike the first counts, so one that fails ends it. */
  worst(ranks, composedAt, limit) {
    const outcomes = [];
    for (const rank of ranks) {
      outcomes.push(this.outcome(rank, composedAt, limit));
      if (outcomes.at(-1).simulation.failedAt !== null) return outcomes.at(-1);
    }
    const highest = (rows, value) => rows.reduce((best, one) => (value(one) > value(best) ? one : best));
    const first = highest(outcomes, one => one.requested), allocated = one => one.simulation.peakAllocated;
    const failed = outcomes.find(one => one.failure !== null);
    return {...first, failure: failed ? failed.failure : null, allocated: highest([first, ...outcomes], allocated),
      reserved: most([first, ...outcomes].map(one => one.reserved))};
  }
}

/** The most that any of the ranks reserves, at either end of when events complete too. */
function most(each) {
  const found = each.reduce((best, one) => (one.bytes > best.bytes ? one : best));
  if (each.every(one => one.low === null)) return found;
  return {...found, low: Math.max(...each.map(one => one.low ?? one.bytes)),
    high: Math.max(...each.map(one => one.high ?? one.bytes))};
}

/** survival.judge. The worst rank does not depend on the limit: start-up is the same on every rank. */
function judge(player, ranks, capacity, margin) {
  const [surely, atBest] = limitsOf(margin, capacity);
  const hopeless = atBest !== null && player.stepsPeak > atBest; // then less is not worth a try
  const certain = hopeless ? null : player.worst(ranks, surely, surely);
  if (certain && certain.failure === null) return {...certain, verdict: "fits"};
  const possible = player.worst(ranks, atBest, atBest);
  if (possible.simulation.failedAt === null)
    return {...possible, verdict: "uncertain", failure: possible.failure || certain.failure};
  const failingFirst = [possible.rank, ...ranks.filter(rank => rank !== possible.rank)];
  return {...player.worst(failingFirst, atBest, null), verdict: "does_not_fit", failure: possible.failure};
}

/** The verdict alone, with the reserved peak; `refused` where there is none. */
function judged(data, setting) {
  const found = find(data, setting);
  if (found.refused) return found;
  const player = new Player(data, found), {verdict, reserved} = judge(player, decidingRanks(data, found, setting,
    player.values), found.gpu.capacity_bytes, marginOf(data, setting, found.gpu));
  return {verdict, reserved_bytes: reserved.bytes};
}

// The answer --------------------------------------------------------------------------------------------------------

/** Bytes by factor of what is alive after an event. */
function aliveByFactor(data, run, bytes, last) {
  const factors = new Float64Array(data.factors.length);
  for (let at = 0; at <= last; at++) {
    const kind = run.kind[at];
    if (kind === 1 || kind === -1) factors[run.factor[run.buffer[at]]] += kind * bytes[run.buffer[at]];
  }
  return factors;
}

/** Live requested bytes after each event. */
function runningSum(run, bytes) {
  const live = new Float64Array(run.kind.length);
  let sum = 0;
  for (let at = 0; at < live.length; at++) {
    const kind = run.kind[at];
    if (kind === 1) sum += bytes[run.buffer[at]];
    else if (kind === -1) sum -= bytes[run.buffer[at]];
    live[at] = sum;
  }
  return live;
}

/** Module, operator, moment and step of an event. */
function tagOf(data, run, index) {
  const buffer = run.buffer[index];
  return {moment: data.moments[run.moment[index]], module: data.names[run.module[buffer]],
    operator: data.names[run.operator[buffer]], step: run.step[index]};
}

/** For each moment that occurs, its highest point. */
function highestPoints(data, run, live) {
  const best = new Array(data.moments.length).fill(-1);
  for (let at = 0; at < live.length; at++) {
    const moment = run.moment[at];
    if (best[moment] < 0 || live[at] > live[best[moment]]) best[moment] = at;
  }
  return Object.fromEntries(best.map((at, moment) => [data.moments[moment], at]).filter(pair => pair[1] >= 0)
    .map(([moment, at]) => {
      const {module, operator, step} = tagOf(data, run, at);
      return [moment, {requested_bytes: live[at], module, operator, step}];
    }));
}

/** The answer for a setting, with the keys of `peakcast predict --json`; `refused` where there is none. */
function predict(data, setting) {
  const found = find(data, setting);
  if (found.refused) return found;
  const {gpu} = found, capacity = gpu.capacity_bytes, margin = marginOf(data, setting, gpu);
  const player = new Player(data, found, true), ranks = decidingRanks(data, found, setting, player.values);
  if (Math.max(...player.rows) > data.largest_buffer_bytes)
    return {refused: "one buffer alone would take more than 64 TiB"};
  const outcome = judge(player, ranks, capacity, margin);
  const {run, reserved, failure, allocated} = outcome, bytes = player.bytes(run), live = runningSum(run, bytes);
  const {simulation} = allocated;
  let top = 0;
  for (let at = 1; at < live.length; at++) if (live[at] > live[top]) top = at;
  const factors = aliveByFactor(data, allocated.run, player.bytes(allocated.run), simulation.peakAt);
  factors[data.factors.findIndex(factor => factor.name === "allocator")] +=
    simulation.peakAllocated - factors.reduce((a, b) => a + b, 0);
  const tag = tagOf(data, run, top);
  const answer = {
    capacity_bytes: capacity, headroom_bytes: capacity - reserved.bytes, verdict: outcome.verdict,
    fragmentation_bytes: simulation.reservedAtPeak - simulation.peakAllocated,
    peak: {moment: tag.moment, module: tag.module, operator: tag.operator, rank: outcome.rank,
      reserved_rank: reserved.rank, allocated_rank: allocated.rank, step: tag.step},
    factors: Object.fromEntries(data.factors.map((factor, at) => [factor.name, factors[at]])),
    moments: highestPoints(data, run, live), out_of_memory: null,
    not_modelled: notModelled(data, setting, gpu),
  };
  const peaks = {requested: bound(live[top], margin.relative.requested),
    allocated: bound(simulation.peakAllocated, margin.relative.allocated),
    reserved: bound(reserved.bytes, margin.relative.reserved, reserved.low, reserved.high)};
  peaks.device = deviceBound(peaks.reserved, margin);
  for (const [name, one] of Object.entries(peaks)) {
    answer[`peak_${name}_bytes`] = one.bytes;
    answer[`peak_${name}_bytes_low`] = one.low;
    answer[`peak_${name}_bytes_high`] = one.high;
  }
  if (failure) {
    const {error, failedAt} = failure.simulation;
    answer.out_of_memory = {...tagOf(data, failure.run, failedAt), rank: failure.rank,
      requested_bytes: error.requested, allocated_bytes: error.allocated, reserved_bytes: error.reserved};
  }
  return {answer, run, bytes, live, top, margin, gpu, curves: outcome.simulation.curves};
}

function deviceBound({bytes, low, high}, margin) {
  return {bytes: bytes + margin.expected, low: (low ?? bytes) + margin.runtimeLow,
    high: (high ?? bytes) + margin.runtimeHigh};
}

function notModelled(data, setting, gpu) {
  const {profile} = gpu, number = value => value.toLocaleString("en-US", {maximumFractionDigits: 0});
  const extrapolates = profile ? [...versionsOf(setting, profile), ...farFrom(data, setting, profile).map(([key, value]) =>
    `${key.replaceAll("_", " ")} ${number(value)} (calibrated from ${profile.calibrated[key].map(number).join(" to ")})`),
    ...kindsOf(setting, profile)] : [];
  const notes = extrapolates.length ? profile.not_modelled.map(note => note.replace("…", extrapolates.join(", ")))
    : gpu.not_modelled;
  return [...notes, ...engineOf(data, setting).notes[setting.degree]];
}
