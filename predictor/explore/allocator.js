// PyTorch's caching allocator at its default settings: predictor/allocator/, whose names these are. Segments, splits,
// merges, deferred frees of blocks that other streams use, and what is given back before a request fails. Expandable
// segments are in expandable.js.

const MIN_BLOCK = 512, SMALL_SIZE = MIB, SMALL_SEGMENT = 2 * MIB, LARGE_SEGMENT = 20 * MIB;
const LARGE_REQUEST = 10 * MIB, LARGE_ROUNDING = 2 * MIB;
const FIRST_ADDRESS = 2 ** 44, LAST_ADDRESS = 2 ** 46;
const FREE = 0, ALLOCATED = 1, PENDING = 2;

class OutOfMemory extends Error {
  constructor(requested, allocator) {
    super("out of memory");
    this.requested = requested;
    this.allocated = allocator.allocated;
    this.reserved = allocator.reserved;
  }
}

/** The free blocks of one pool and stream, by size, then address. */
class Arena {
  /** `least`: the smallest remainder, in bytes, that is split off a block. */
  constructor(small, least) {
    this.small = small;
    this.least = least;
    this.blocks = [];
  }

  /** Where a block of this size and address is, or would be. */
  place(size, address) {
    const blocks = this.blocks;
    let low = 0, high = blocks.length;
    while (low < high) {
      const middle = (low + high) >>> 1, block = blocks[middle];
      if (block.size < size || (block.size === size && block.address < address)) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  insert(block) {
    this.blocks.splice(this.place(block.size, block.address), 0, block);
  }

  remove(block) {
    this.blocks.splice(this.place(block.size, block.address), 1);
  }
}

class Allocator {
  /** `limit`: bytes that PyTorch can have; null for no limit. `waits`: events complete at a synchronisation only. */
  constructor(limit, waits) {
    this.limit = limit;
    this.waits = waits;
    this.requested = this.allocated = this.reserved = 0;
    this.peakAllocated = this.peakReserved = 0;
    this.small = new Map();
    this.large = new Map();
    this.spare = []; // blocks that were merged into others
    this.gaps = [[FIRST_ADDRESS, LAST_ADDRESS]];
    this.uses = new Map(); // block -> other streams that use it
    this.queues = new Map(); // stream -> [synchronisations when recorded, block]
    this.counts = new Map(); // block -> events that it waits for
    this.synchronizations = 0;
    this.retried = false; // whether the limit was ever reached
  }

  malloc(size, stream) {
    if (this.queues.size) this.process();
    const rounded = size > MIN_BLOCK ? roundUp(size, MIN_BLOCK) : MIN_BLOCK;
    const arenas = rounded <= SMALL_SIZE ? this.small : this.large;
    let arena = arenas.get(stream);
    if (arena === undefined) arenas.set(stream, arena = this.newArena(rounded <= SMALL_SIZE));
    const at = this.choose(arena, arena.place(rounded, 0));
    let block;
    if (at < arena.blocks.length) {
      block = arena.blocks[at];
      arena.blocks.splice(at, 1);
    } else block = this.newBlock(arena, rounded, size);
    const rest = block.size - rounded;
    if (rest >= arena.least) arena.insert(this.cut(block, rounded));
    block.state = ALLOCATED;
    block.requested = size;
    this.requested += size;
    this.allocated += block.size;
    if (this.allocated > this.peakAllocated) this.peakAllocated = this.allocated;
    return block;
  }

  newArena(small) {
    return new Arena(small, small ? MIN_BLOCK : SMALL_SIZE + 1);
  }

  /** The free block to take, where `at` is the best fit. */
  choose(arena, at) {
    return at;
  }

  /** Cuts a block at `size` bytes. The upper part is a new block and in no list. */
  cut(block, size) {
    const upper = this.block(block.address + size, block.size - size, block.arena, block.base);
    upper.state = block.state;
    upper.prev = block;
    upper.next = block.next;
    if (upper.next !== null) upper.next.prev = upper;
    block.next = upper;
    block.size = size;
    return upper;
  }

  free(block) {
    if (this.uses.size && this.uses.has(block)) return this.defer(block);
    this.allocated -= block.size;
    this.requested -= block.requested;
    block.state = FREE;
    const arena = block.arena, next = block.next, previous = block.prev;
    if (next !== null && next.state === FREE) {
      arena.remove(next);
      block.size += next.size;
      block.next = next.next;
      if (block.next !== null) block.next.prev = block;
      this.spare.push(next);
    }
    if (previous !== null && previous.state === FREE) {
      arena.remove(previous);
      previous.size += block.size;
      previous.next = block.next;
      if (previous.next !== null) previous.next.prev = previous;
      this.spare.push(block);
      block = previous;
    }
    arena.insert(block);
  }

  recordStream(block, own, stream) {
    if (stream === own) return;
    if (!this.uses.has(block)) this.uses.set(block, new Set());
    this.uses.get(block).add(stream);
  }

  /** The program is done with a block that other streams use: it is free when their events are complete. */
  defer(block) {
    const streams = this.uses.get(block);
    this.uses.delete(block);
    block.state = PENDING;
    this.allocated -= block.size;
    for (const stream of streams) {
      if (!this.queues.has(stream)) this.queues.set(stream, []);
      this.queues.get(stream).push([this.synchronizations, block]);
    }
    this.counts.set(block, streams.size);
  }

  countDown(block) {
    const left = this.counts.get(block) - 1;
    this.counts.set(block, left);
    if (left > 0) return;
    this.counts.delete(block);
    block.state = ALLOCATED;
    this.allocated += block.size;
    this.free(block);
  }

  process() {
    for (const [stream, queue] of [...this.queues]) {
      while (queue.length && (!this.waits || this.synchronizations > queue[0][0])) this.countDown(queue.shift()[1]);
      if (!queue.length) this.queues.delete(stream);
    }
  }

  /** Waits for every event, then gives back every segment that nothing uses. */
  emptyCache() {
    if (this.queues.size) {
      this.synchronizations += 1;
      for (const queue of this.queues.values()) for (const [, block] of queue) this.countDown(block);
      this.queues.clear();
    }
    for (const arenas of [this.large, this.small])
      for (const arena of arenas.values()) this.giveBack(arena);
  }

  giveBack(arena) {
    const whole = arena.blocks.filter(block => block.prev === null && block.next === null);
    if (!whole.length) return;
    arena.blocks = arena.blocks.filter(block => block.prev !== null || block.next !== null);
    for (const block of whole) {
      this.synchronizations += 1; // cudaFree waits for the device
      this.reserved -= block.size;
      this.unreserve(block);
    }
  }

  unreserve({address, size}) {
    const gaps = this.gaps;
    let start = address, end = start + size, index = gaps.findIndex(gap => gap[0] > start), last;
    if (index < 0) index = gaps.length;
    last = index;
    if (index < gaps.length && gaps[index][0] === end) end = gaps[last++][1];
    if (index > 0 && gaps[index - 1][1] === start) start = gaps[--index][0];
    gaps.splice(index, last - index, [start, end]);
  }

  newBlock(arena, rounded, requested) {
    let block = this.fromDriver(arena, rounded);
    if (block !== null) return block;
    this.retried = true;
    this.emptyCache();
    block = this.fromDriver(arena, rounded);
    if (block === null) throw new OutOfMemory(requested, this);
    return block;
  }

  /** A block of at least so many bytes, in no list; null if the driver has no memory for it. */
  fromDriver(arena, rounded) {
    const size = rounded <= SMALL_SIZE ? SMALL_SEGMENT : rounded < LARGE_REQUEST ? LARGE_SEGMENT
      : roundUp(rounded, LARGE_ROUNDING);
    if (!this.book(size)) return null;
    const address = this.reserve(size);
    return this.block(address, size, arena, address);
  }

  /** Whether the driver has memory for so many bytes; then they are counted. */
  book(size) {
    if (this.limit !== null && this.reserved + size > this.limit) return false;
    this.reserved += size;
    if (this.reserved > this.peakReserved) this.peakReserved = this.reserved;
    return true;
  }

  /** The lowest range of so many addresses. */
  reserve(size) {
    const index = this.gaps.findIndex(([start, end]) => start + size <= end), gap = this.gaps[index], address = gap[0];
    if (address + size < gap[1]) gap[0] += size;
    else this.gaps.splice(index, 1);
    return address;
  }

  /** A free block, in no list; one that was merged away serves again, which spares the garbage collector. */
  block(address, size, arena, base) {
    const block = this.spare.pop();
    if (block === undefined) return {address, size, state: FREE, prev: null, next: null, arena, base, requested: 0};
    block.address = address;
    block.size = size;
    block.state = FREE;
    block.prev = block.next = null;
    block.arena = arena;
    block.base = base; // address of its segment
    return block;
  }
}

/**
 * A run's events through an allocator of its own, until they end or one fails (predictor/allocator/simulate.py).
 * `curves`, if given, gets the allocated and reserved bytes after each event; after a failure they stay as they are.
 * `expandable`: the GPU's memory, if segments are expandable.
 */
function simulate(run, bytes, limit, waits, curves = null, expandable = null) {
  const allocator = expandable === null ? new Allocator(limit, waits) : new ExpandableAllocator(limit, waits, expandable);
  const {kind, buffer, stream} = run, blocks = new Array(run.buffers);
  let peak = 0, peakAt = 0, reservedAtPeak = 0, failedAt = null, error = null;
  for (let index = 0; index < kind.length; index++) {
    const what = kind[index], which = buffer[index];
    if (curves !== null && index > 0) {
      curves.allocated[index - 1] = allocator.allocated;
      curves.reserved[index - 1] = allocator.reserved;
    }
    if (what === 1) {
      const size = bytes[which];
      if (size === 0) continue;
      try {
        blocks[which] = allocator.malloc(size, stream[which]);
      } catch (caught) {
        if (!(caught instanceof OutOfMemory)) throw caught;
        failedAt = index;
        error = caught;
        break;
      }
      if (allocator.peakAllocated > peak) {
        peak = allocator.peakAllocated;
        peakAt = index;
        reservedAtPeak = allocator.reserved;
      }
    } else if (what === -1) {
      if (bytes[which] !== 0) allocator.free(blocks[which]);
    } else if (what >= 16) {
      if (bytes[which] !== 0) allocator.recordStream(blocks[which], stream[which], what - 16);
    } else if (what === 2) allocator.emptyCache();
    else allocator.synchronizations += 1;
  }
  if (curves !== null)
    for (const name of ["allocated", "reserved"]) curves[name].fill(allocator[name], failedAt ?? kind.length - 1);
  return {curves, peakAllocated: allocator.peakAllocated, peakReserved: allocator.peakReserved, peakAt, reservedAtPeak,
    failedAt, error, retried: allocator.retried};
}
