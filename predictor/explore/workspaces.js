// Bytes that only CUDA allocates, by kernel: predictor/events/workspaces.py, function by function, in the same order.
// Sources are named there. Every number stays below 2^53, where a double is exact; no bit operations, which have 32.

const KIB = 1024, MIB = 1024 * KIB, FP32 = 4, INT64 = 8;
const FEW_INDICES = 3072, ROWS_PER_THREAD = 10, CUB_ALIGNMENT = 256, CUB_SLACK = 511, NEWEST_CUB = 1300;
const TRL_TOKENS = 4096, TRL_WORDS = 32768;
const SELECT_TILES = [[7.0, 640], [8.0, 2304], [8.6, 640], [9.0, 4224], [10.0, 3520]];
const UNIQUE_TILES = [[7.0, 320], [8.0, 1792], [8.6, 320], [9.0, 4480], [10.0, 3840]];
const SORT_TILES = [[7.0, 2816], [8.0, 3840], [9.0, 4608]];

const floorDiv = (a, b) => Math.floor(a / b);
const ceilDiv = (a, b) => Math.ceil(a / b);
const roundUp = (a, b) => ceilDiv(a, b) * b;
const flashWidth = (width) => roundUp(width, width <= 128 ? 32 : 64);

function lastPowerOfTwo(n) {
  let power = 1;
  while (2 * power <= n) power *= 2;
  return power;
}

const groupsProducts = gpu => (gpu.major === 9 || gpu.major === 10 ? 1 : 0);

function flashSplits(gpu, batch, heads, sequence, width, keyed) {
  const block = width <= 64 ? 256 : width <= 128 ? 128 : 64;
  const count = batch * heads * ceilDiv(sequence, 64), keys = ceilDiv(keyed, block);
  const slots = 2 * gpu.multiprocessors;
  if (count >= 0.8 * slots) return 1;
  const candidates = [];
  for (let n = 1; n <= Math.min(128, slots, keys); n++)
    if (n === 1 || ceilDiv(keys, n) !== ceilDiv(keys, n - 1))
      candidates.push([n, (count * n / slots) / ceilDiv(count * n, slots)]);
  const best = Math.max(...candidates.map(pair => pair[1]));
  return candidates.find(pair => pair[1] >= 0.85 * best)[0];
}

function efficientBlock(gpu, width, itemsize) {
  const roomy = gpu.shared_memory_block_bytes > 100 * KIB;
  if (width <= 64) return [64, 64];
  if (itemsize === FP32) return [roomy ? 128 : 64, 64];
  if (gpu.major < 8 || (width <= 96 && gpu.major === 8 && (gpu.minor === 6 || gpu.minor === 9))) return [128, 64];
  if (width <= 128) return roomy ? [128, 128] : [64, 64];
  return [128, 64];
}

/** Bytes of partial results and of semaphores. */
function reduction(gpu, outputs, inputs, accumulatorBytes, alongRows, allOfIt, inner = outputs) {
  const vector = alongRows ? 1 : inner % 4 === 0 ? 4 : inner % 2 === 0 ? 2 : 1;
  let first = alongRows ? (allOfIt === 1 && inputs > 128 ? floorDiv(inputs, 4) : inputs) : floorDiv(outputs, vector);
  let second = alongRows ? outputs : inputs;
  const most = floorDiv(512, vector);
  first = Math.min(lastPowerOfTwo(first), most);
  second = Math.min(lastPowerOfTwo(second), most);
  let width = Math.min(first, 32);
  const height = Math.min(second, floorDiv(most, width));
  width = Math.min(first, floorDiv(most, height));
  let stepInput = alongRows ? width : 1, stepOutput = alongRows ? 1 : width;
  const acrossWarps = ceilDiv(inputs, stepInput) >= Math.min(height * 16, 256);
  if (acrossWarps) stepInput *= height;
  else stepOutput *= height;
  const values = ceilDiv(inputs, stepInput), grid = ceilDiv(floorDiv(outputs, vector), stepOutput);
  const target = gpu.multiprocessors * floorDiv(gpu.threads_per_multiprocessor, width * height);
  const blocks = Math.max(Math.min(ceilDiv(target, grid), ceilDiv(values, 16)), ceilDiv(values, 256));
  if (!(acrossWarps && values >= 256 && grid <= target && blocks > 1)) return [0, 0];
  return [accumulatorBytes * outputs * blocks * (alongRows ? 1 : width * vector), 4 * grid];
}

const inParts = (gpu, rows, width) => rows > 64 * KIB && floorDiv(width, 32) < floorDiv(gpu.multiprocessors, 2);
const normParts = (rows, width) => Math.min(ceilDiv(rows, 32), floorDiv(32 * KIB, ceilDiv(width, 32)));

/** Columns and rows of blocks. */
function batchNormBlocks(rows, channels) {
  let width = Math.min(lastPowerOfTwo(channels), 32);
  const height = Math.min(lastPowerOfTwo(ceilDiv(rows, 16)), floorDiv(512, width));
  width = Math.min(lastPowerOfTwo(channels), floorDiv(512, height));
  const blocks = Math.min(ceilDiv(rows, 16 * height), 128);
  return [ceilDiv(channels, width), blocks < 8 ? 1 : blocks];
}

function tile(gpu, tiles, cub) {
  const known = cub >= 1204 ? Infinity : tiles === SORT_TILES ? 8.0 : 7.0;
  const capability = Math.min(gpu.major + gpu.minor / 10, known);
  return tiles.filter(([architecture]) => architecture <= capability).at(-1)[1];
}

const slack = cub => (cub >= 1300 ? CUB_SLACK : CUB_ALIGNMENT - 1);

function radixSort(gpu, items, passes, cub) {
  const pairs = passes > 1 ? 2 * roundUp(INT64 * items, CUB_ALIGNMENT) : 0;
  return pairs + 2048 * passes + CUB_SLACK + 1024 * ceilDiv(items, tile(gpu, SORT_TILES, cub));
}

function passes(rows) {
  let bits = 0;
  for (let left = Math.max(rows - 1, 1); left >= 1; left = floorDiv(left, 2)) bits += 1;
  return ceilDiv(bits, 8);
}

const many = (tokens, bytes) => (tokens > FEW_INDICES ? bytes() : 0);

// Whether bitsandbytes' own kernel multiplies by weights of 4 bits (predictor/events/gemm_4bit.py).
function isFused(gpu, rows, outputs, inputs, itemsize) {
  if (inputs % 64) return false;
  if (itemsize === FP32) return rows <= 7;
  const tiles = ceilDiv(outputs, 64), waves = tiles / gpu.multiprocessors, capability = 10 * gpu.major + gpu.minor;
  if (gpu.major === 10) return rows <= (waves >= 3 ? 32 : waves >= 1 && inputs < outputs ? 8 : 4);
  const layer = {capability, multiprocessors: gpu.multiprocessors, outputs, inputs, tiles, waves};
  if (outputs * inputs < 1 << 22) return rows <= ofSmallWeights(layer);
  const square = inputs === outputs, tall = inputs > outputs;
  const wanting = capability === 90 ? tiles >= 36 && waves < 0.75 && (tall || square && waves >= 0.6) :
    capability === 80 && tiles >= 48 && (tall && waves < 0.75 || square && waves < 0.6);
  return rows <= (MOST_ROWS[capability] ?? MOST_ROWS[89])(layer) && !(wanting && (rows === 6 || rows === 7));
}

function ofSmallWeights({capability, multiprocessors, outputs, inputs, tiles, waves}) {
  const a100 = capability === 80, fastMemory = a100 || capability === 90;
  if (2 * inputs < outputs) {
    if (fastMemory) return 3 * tiles < multiprocessors ? (a100 ? 1536 : 512) : a100 ? 512 : 320;
    return waves < 1 && tiles * inputs > 320 * multiprocessors ? 192 : 320;
  }
  if (waves > 0.25) return waves <= 0.5 ? 16 : 4;
  if (a100) return inputs < outputs ? 384 : waves <= 0.125 ? 32 : 128;
  return inputs < outputs || fastMemory ? 32 : 23;
}

const MOST_ROWS = {
  80({multiprocessors, outputs, inputs, tiles, waves}) {
    if (waves >= 1) return waves >= 3 ? 128 : inputs < outputs ? 64 : 32;
    if (inputs >= 3 * outputs && waves > 0.25 || inputs === outputs && tiles >= 48 && waves < 0.6) return 7;
    if (waves < 0.5 && inputs > outputs && 3 * tiles >= multiprocessors) return 7;
    return inputs < outputs || waves < 0.5 && inputs === outputs ? 128 : 16;
  },
  86: ({waves}) => (waves >= 1 ? 128 : waves >= 0.5 ? 64 : 16),
  90({outputs, inputs, waves}) {
    if (waves >= 1) return waves >= 3 ? 64 : waves >= 2 ? 48 : 32;
    return waves < 0.5 || inputs >= outputs && waves < 0.75 ? 7 : 16;
  },
  120({outputs, inputs, tiles, waves}) {
    if (waves >= 0.8) return waves >= 3 ? 256 : waves >= 2 ? 128 : inputs >= outputs ? 96 : 64;
    if (waves >= 0.5) return 2 * inputs >= outputs && tiles >= 128 ? 64 : 8;
    return inputs > 2 * outputs && tiles > 64 ? 16 : 8;
  },
  89({multiprocessors, outputs, inputs, tiles, waves}) {
    const tall = inputs > 2 * outputs;
    if (waves >= 2) return waves >= 3 ? 256 : 128;
    if (waves >= 0.8) return tall || tiles >= 200 ? 128 : inputs < outputs ? 64 : multiprocessors >= 60 ? 128 : 32;
    if (waves >= 0.5) return tall ? 64 : tiles >= 64 ? 8 : 32;
    if (inputs > outputs && tiles <= 48) return inputs >= 3 * outputs ? 12 : 10;
    return tall || tiles < 48 ? 16 : 8;
  },
};

const WORKSPACES = {
  cublas_workspace: gpu => (gpu.major === 9 && gpu.minor === 0 ? 32 * MIB : 8 * MIB + 128 * KIB),
  cublaslt_workspace: () => MIB,
  grouped_arguments: (gpu, groups) => (24 * roundUp(groups, 2) + 36 * groups) * groupsProducts(gpu),
  grouped_workspace(gpu, rows, groups, columns) {
    const small = floorDiv(rows, groups) <= 128 || columns <= 128;
    return gpu.multiprocessors * (gpu.major === 9 ? 512 : gpu.major === 10 ? (small ? 5376 : 5888) : 0);
  },
  cudnn_backward: (gpu, batch, heads, sequence, width, sharedKeys = 0) =>
    FP32 * batch * heads * sequence * (width + 1) + 2 * 2 * batch * heads * sharedKeys * width,
  flash_softmax_sum: (gpu, batch, heads, sequence) => FP32 * batch * heads * roundUp(sequence, 128),
  flash_dq_accumulator: (gpu, batch, heads, sequence, width) =>
    FP32 * batch * heads * roundUp(sequence, 128) * flashWidth(width),
  flash_split_sums(gpu, batch, heads, sequence, width, keys = sequence) {
    const splits = flashSplits(gpu, batch, heads, sequence, width, keys);
    return splits > 1 ? FP32 * splits * batch * heads * sequence : 0;
  },
  flash_split_outputs: (gpu, batch, heads, sequence, width, keys = sequence) =>
    WORKSPACES.flash_split_sums(gpu, batch, heads, sequence, width, keys) * flashWidth(width),
  efficient_rows: (gpu, batch, heads, sequence) => FP32 * batch * heads * roundUp(sequence, 32),
  padded_mask: (gpu, rows, length, itemsize) => rows * roundUp(length, 8) * itemsize,
  bias_gradient: (gpu, rows, length, itemsize) => rows * roundUp(length, 16) * itemsize,
  efficient_delta: (gpu, batch, heads, sequence) => FP32 * batch * heads * sequence,
  efficient_backward(gpu, batch, heads, sequence, width, itemsize = 2, length = sequence) {
    const [queries, keys] = efficientBlock(gpu, width, itemsize);
    let each = ceilDiv(sequence, queries) * ceilDiv(width, keys) * (FP32 * queries * keys + 16);
    if (itemsize < FP32 && width > queries) {
      const splits = Math.max(Math.min(ceilDiv(length, keys), floorDiv(200, batch * heads)), 1);
      each += 2 * FP32 * splits * keys * roundUp(width, queries);
    }
    return batch * heads * each;
  },
  reduction_buffer: (...call) => reduction(...call)[0],
  reduction_semaphores: (...call) => reduction(...call)[1],
  norm_partials: (gpu, rows, width, itemsize) =>
    (inParts(gpu, rows, width) ? normParts(rows, width) * width * itemsize : 0),
  norm_first: (gpu, rows, width, itemsize) => (inParts(gpu, rows, width) ? width * itemsize : 0),
  norm_buffer: (gpu, rows, width) =>
    (inParts(gpu, rows, width) ? reduction(gpu, width, normParts(rows, width), FP32, 0, 0)[0] : 0),
  norm_semaphores: (gpu, rows, width) =>
    (inParts(gpu, rows, width) ? reduction(gpu, width, normParts(rows, width), FP32, 0, 0)[1] : 0),
  batch_norm_staging(gpu, rows, channels, numbers) {
    const blocks = batchNormBlocks(rows, channels)[1];
    return blocks > 1 ? FP32 * numbers * channels * blocks : 0;
  },
  batch_norm_semaphores(gpu, rows, channels) {
    const [columns, blocks] = batchNormBlocks(rows, channels);
    return blocks > 1 ? 4 * columns : 0;
  },
  liger_partials: (gpu, width) => FP32 * gpu.multiprocessors * width,
  liger_logits(gpu, tokens, width, vocabulary, itemsize) {
    const share = ceilDiv(tokens, ceilDiv(vocabulary, width)), power = lastPowerOfTwo(share);
    return Math.min(power < share ? 2 * power : power, tokens) * vocabulary * itemsize;
  },
  trl_tile: (gpu, tokens, itemsize) => Math.min(tokens, TRL_TOKENS) * TRL_WORDS * itemsize,
  trl_rows: (gpu, tokens, width, itemsize, tiles) =>
    Math.min(Math.max(tokens - tiles * TRL_TOKENS, 0), TRL_TOKENS) * width * itemsize,
  trl_words: (gpu, tokens, size, tiles) => (tokens > tiles * TRL_TOKENS ? size : 0),
  unpacked_4bit: (gpu, rows, outputs, inputs, itemsize, size) =>
    (isFused(gpu, rows, outputs, inputs, itemsize) ? 0 : size),
  cub_scan: (gpu, items, itemsize = INT64, cub = NEWEST_CUB) =>
    roundUp((ceilDiv(items, 896) + 32) * 2 * itemsize, CUB_ALIGNMENT) + slack(cub),
  cub_select: (gpu, items, cub = NEWEST_CUB) =>
    roundUp((ceilDiv(items, tile(gpu, SELECT_TILES, cub)) + 32) * 8, CUB_ALIGNMENT) + slack(cub),
  cub_sum: (gpu, items) => {
    const blocks = 5 * gpu.multiprocessors * floorDiv(gpu.threads_per_multiprocessor, 256);
    return items > 4096 ? roundUp(4 * blocks, CUB_ALIGNMENT) + CUB_ALIGNMENT - 1 : 1;
  },
  index_sort: (gpu, items, rows, cub = NEWEST_CUB) =>
    (items > 2304 ? radixSort(gpu, items, passes(rows), cub) : 1),
  row_sort: (gpu, items, cub = NEWEST_CUB) => (items > 4096 ? radixSort(gpu, items, 8, cub) : 0),
  embedding_indices: (gpu, tokens) => many(tokens, () => INT64 * tokens),
  embedding_sort: (gpu, tokens, cub = NEWEST_CUB, rows = null) => many(tokens, () =>
    radixSort(gpu, tokens, rows === null ? 8 : passes(rows), cub)),
  embedding_number: (gpu, tokens) => many(tokens, () => INT64),
  embedding_unique: (gpu, tokens, cub = NEWEST_CUB) => many(tokens, () =>
    roundUp((ceilDiv(tokens, tile(gpu, UNIQUE_TILES, cub)) + 32) * (cub >= 1206 ? 16 : 8), CUB_ALIGNMENT) + slack(cub)),
  embedding_scan: (gpu, tokens, vocabulary, cub = NEWEST_CUB) => many(tokens, () =>
    WORKSPACES.cub_scan(gpu, Math.min(tokens, vocabulary), INT64, cub)),
  embedding_segments: (gpu, tokens, vocabulary) => many(tokens, () => INT64 * Math.min(tokens, vocabulary)),
  embedding_partials: (gpu, tokens, vocabulary, width) => many(tokens, () =>
    FP32 * (floorDiv(tokens, ROWS_PER_THREAD) + Math.min(tokens, vocabulary)) * width),
  embedding_rows: (gpu, tokens, vocabulary, width) => many(tokens, () => FP32 * vocabulary * width),
};
