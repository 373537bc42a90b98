// Expandable segments (predictor/allocator/expandable.py, search.py): one range of addresses for each pool and stream,
// whose pages are mapped as they are needed.

const UNMAPPED = 3;

class ExpandableArena extends Arena {
  constructor(small) {
    super(small, MIN_BLOCK);
    this.page = small ? SMALL_SEGMENT : LARGE_SEGMENT;
    this.unmapped = []; // by address
  }

  /** Where an unmapped block of this address is, or would be. */
  unmappedPlace({address}) {
    const place = this.unmapped.findIndex(block => block.address >= address);
    return place < 0 ? this.unmapped.length : place;
  }

  /** Puts a block into the list of its state. */
  add(block) {
    if (block.state === FREE) this.insert(block);
    else this.unmapped.splice(this.unmappedPlace(block), 0, block);
  }

  takeOut(block) {
    if (block.state === FREE) this.remove(block);
    else this.unmapped.splice(this.unmappedPlace(block), 1);
  }
}

class ExpandableAllocator extends Allocator {
  /** `total`: the memory that the GPU reports. */
  constructor(limit, waits, total) {
    super(limit, waits);
    this.total = total;
  }

  newArena(small) {
    return new ExpandableArena(small);
  }

  /** Best fit by the size that a block can grow to: continues while the next larger block could grow less. */
  choose({blocks}, at) {
    const grown = block => block.size + (block.next !== null && block.next.state === UNMAPPED ? block.next.size : 0);
    while (at + 1 < blocks.length && grown(blocks[at + 1]) < grown(blocks[at])) at += 1;
    return at;
  }

  fromDriver(arena, rounded) {
    let block = this.find(arena, rounded);
    if (block.state === UNMAPPED) block = this.map(block, Math.min(block.size, rounded));
    while (block !== null && block.size < rounded)
      block = this.map(block.next, Math.min(rounded - block.size, block.next.size));
    if (block !== null) arena.takeOut(block);
    return block;
  }

  /** The lowest free or unmapped block that begins so many contiguous bytes of free or unmapped memory. */
  find(arena, size) {
    for (let block of arena.unmapped) {
      if (block.prev !== null && block.prev.state === FREE) block = block.prev;
      let room = 0;
      for (let next = block; next !== null && room < size && (next.state === FREE || next.state === UNMAPPED); next = next.next)
        room += next.size;
      if (room >= size) return block;
    }
    const range = roundUp(Math.max(this.total + Math.floor(this.total / 8), size), arena.page), address = this.reserve(range);
    const block = this.block(address, range, arena, address);
    block.state = UNMAPPED;
    arena.add(block);
    return block;
  }

  /** Maps pages at the start of an unmapped block. Returns the free block that now contains them, or null. */
  map(block, size) {
    const {arena} = block, mapped = roundUp(size, arena.page);
    if (!this.book(mapped)) return null;
    arena.takeOut(block);
    if (mapped < block.size) arena.add(this.cut(block, mapped));
    block.state = FREE;
    return this.joined(block);
  }

  /** Merges a block with its neighbours of the same state, and puts it into its list. */
  joined(block) {
    for (const lower of [block, block.prev]) {
      const upper = lower === null ? null : lower.next;
      if (upper === null || lower.state !== block.state || upper.state !== block.state) continue;
      block.arena.takeOut(lower === block ? upper : lower);
      lower.size += upper.size;
      lower.next = upper.next;
      if (lower.next !== null) lower.next.prev = lower;
      this.spare.push(upper);
      block = lower;
    }
    block.arena.add(block);
    return block;
  }

  giveBack(arena) {
    for (const block of [...arena.blocks]) this.unmap(block);
  }

  /** Unmaps every whole page of a free block. Gives the addresses back when the whole segment is unmapped. */
  unmap(block) {
    const {arena, base} = block, {page} = arena, end = block.address + block.size;
    const first = base + roundUp(block.address - base, page), last = base + Math.floor((end - base) / page) * page;
    if (first >= last) return;
    arena.takeOut(block);
    if (last < end) arena.add(this.cut(block, last - block.address));
    if (first > block.address) {
      const upper = this.cut(block, first - block.address);
      arena.add(block);
      block = upper;
    }
    this.synchronizations += 1; // unmapping waits for the stream
    this.reserved -= last - first;
    block.state = UNMAPPED;
    block = this.joined(block);
    if (block.prev !== null || block.next !== null) return;
    arena.takeOut(block);
    this.unreserve(block);
  }
}
