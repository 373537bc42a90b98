/* The simulated caching allocator in C: the hot path of simulate.py.
 *
 * The Python modules of this package are the reference. Each function here names the one that it repeats, and cites no
 * source of its own; tests/predictor/allocator/test_compiled.py compares the two event by event. One list of events runs
 * with one set of settings, so either all segments are expandable or none is, and there is no seeding, no observer and
 * no count of kernel launches. What does not occur in a sound list (a block is freed twice, a request beyond 2^60 bytes),
 * and a host without memory, end with FAILED: the caller then runs the reference, which raises the error in its words.
 *
 * All sizes and addresses are bytes.
 */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int64_t i64;

enum { FREE, ALLOCATED, PENDING, UNMAPPED };                       /* blocks.py */
enum { EVENT_FREE = -1, EVENT_ALLOCATE = 1, EVENT_EMPTY_CACHE, EVENT_SYNCHRONIZE, EVENT_RECORD_STREAM = 16 };
enum { STREAMS = 128, NONE = -1 };
enum { COMPLETED, OUT_OF_MEMORY, FAILED, NO_RANGE };               /* what simulate() returns */

/* constants.py */
static const i64 MIN_BLOCK = 512, SMALL_SIZE = 1 << 20, SMALL_SEGMENT = 2 << 20, LARGE_REQUEST = 10 << 20,
                 LARGE_ROUNDING = 2 << 20, DRIVER_PAGE = 2 << 20, LARGEST_REQUEST = (i64)1 << 60,
                 FIRST_ADDRESS = 0x100000000000, LAST_ADDRESS = 0x400000000000;
enum { ROUNDUP_INTERVALS = 16, ROUNDUP_START_LOG2 = 20 };

/* The settings of a run. compiled.py has the same fields in the same order. */
typedef struct {
    i64 large_segment_bytes, max_split_bytes, max_non_split_rounding_bytes; /* max_split_bytes: NONE without a limit */
    i64 divisions[ROUNDUP_INTERVALS], has_divisions;
    i64 expandable, completes_at_once;
    i64 capacity_bytes, total_bytes, allowed_bytes;                 /* NONE without a limit */
    i64 garbage_bytes;                                              /* NONE where no garbage is collected */
    i64 address_step;                                               /* 0 where addresses go up */
} Settings;

/* The counters after a run, and where its peak and its failure were. compiled.py has the same fields. */
typedef struct {
    i64 requested, allocated, reserved, pending;
    i64 peak_requested, peak_allocated, peak_reserved, peak_active;
    i64 segments, retries, ooms, used, refusals;
    i64 grants, returns;                       /* segments or ranges of pages that the driver granted and got back */
    i64 peak_at, reserved_at_peak, failed_at, tried, failed_request;
} Counters;

typedef struct {
    i64 address, size, requested, age;
    int prev, next, arena, segment, state, waits_for_synchronization; /* segment: an expandable one, else NONE */
    uint64_t used_on[STREAMS / 64];
} Block;

typedef struct {
    i64 size, address;
    int block;
} Entry; /* of a list of free blocks, ordered by size and address; of unmapped blocks the size is 0 */

/* Sorted entries in an array with its unused room at `gap`, where the last one came or went: of thousands of free blocks, a
 * step takes and returns small ones at the one end and leaves larger ones at the other. */
typedef struct {
    Entry *items;
    int count, room, gap;
} List;

typedef struct {
    List free, unmapped;
    i64 smallest_remainder;
    int is_small, is_used;
} Arena;

typedef struct {
    i64 start, end;
} Gap;

typedef struct {
    i64 address, size, page;
} Expandable;

typedef struct {
    int block;
    i64 synchronizations;
} Waiting;

typedef struct {
    const Settings *settings;
    Counters *c;
    Block *blocks;
    int block_count, block_room, unused_block;
    Arena arenas[2 * STREAMS]; /* the small pool's by stream, then the large pool's */
    i64 searches[2];           /* of the large and of the small pool */
    Gap *gaps;
    int gap_count, gap_room;
    Expandable *segments;
    int segment_count, segment_room;
    Waiting *waiting; /* blocks whose events are outstanding, the oldest first */
    int waiting_first, waiting_end, waiting_room;
    i64 synchronizations;
    int failed; /* FAILED or NO_RANGE */
} Allocator;

/* --- memory of the host ----------------------------------------------------------------------------------------- */

/* Whether an array has room for one more item; `items` is the address of its pointer, whatever its type. */
static int has_room(Allocator *a, void *items, int *room, int count, size_t size) {
    if (count < *room) return 1;
    void *array;
    memcpy(&array, items, sizeof array);
    int larger = *room ? 2 * *room : 64;
    array = realloc(array, (size_t)larger * size);
    if (!array) {
        a->failed = FAILED;
        return 0;
    }
    memcpy(items, &array, sizeof array);
    *room = larger;
    return 1;
}

static int new_block(Allocator *a, i64 address, i64 size, int state, int prev, int next, int arena, int segment) {
    int index = a->unused_block;
    if (index != NONE) {
        a->unused_block = a->blocks[index].next;
    } else {
        if (!has_room(a, &a->blocks, &a->block_room, a->block_count, sizeof(Block))) return NONE;
        index = a->block_count++;
    }
    Block *b = &a->blocks[index];
    memset(b, 0, sizeof *b);
    b->address = address;
    b->size = size;
    b->state = state;
    b->prev = prev;
    b->next = next;
    b->arena = arena;
    b->segment = segment;
    return index;
}

static void drop_block(Allocator *a, int index) {
    a->blocks[index].next = a->unused_block;
    a->unused_block = index;
}

/* --- lists of blocks (Arena in blocks.py) ------------------------------------------------------------------------ */

static Entry *entry(const List *list, int index) {
    return &list->items[index < list->gap ? index : index + list->room - list->count];
}

static void move_gap(List *list, int index) {
    int room = list->room - list->count;
    if (index < list->gap)
        memmove(list->items + index + room, list->items + index, (size_t)(list->gap - index) * sizeof(Entry));
    else
        memmove(list->items + list->gap, list->items + list->gap + room, (size_t)(index - list->gap) * sizeof(Entry));
    list->gap = index;
}

static int is_below(const Entry *e, i64 size, i64 address) {
    return e->size < size || (e->size == size && e->address < address);
}

/* The index of the first entry that is not below a size and an address. It halves long lists only: in a short one, a
 * processor foresees each step of a walk but the last. */
static int place(const List *list, i64 size, i64 address) {
    int low = 0, high = list->count;
    while (high - low > 16) {
        int middle = (low + high) / 2;
        if (is_below(entry(list, middle), size, address)) low = middle + 1;
        else high = middle;
    }
    while (low < high && is_below(entry(list, low), size, address)) low++;
    return low;
}

static void insert(Allocator *a, List *list, i64 size, i64 address, int block) {
    if (list->count == list->room) move_gap(list, list->count);
    if (!has_room(a, &list->items, &list->room, list->count, sizeof(Entry))) return;
    move_gap(list, place(list, size, address));
    list->items[list->gap++] = (Entry){size, address, block};
    list->count++;
}

static void remove_at(List *list, int index) {
    move_gap(list, index);
    list->count--;
}

static Arena *arena_of(Allocator *a, const Block *b) { return &a->arenas[b->arena]; }

static void insert_free(Allocator *a, int index) {
    Block *b = &a->blocks[index];
    b->state = FREE;
    b->age = a->searches[arena_of(a, b)->is_small];
    insert(a, &arena_of(a, b)->free, b->size, b->address, index);
}

static void remove_free(Allocator *a, int index) {
    Block *b = &a->blocks[index];
    remove_at(&arena_of(a, b)->free, place(&arena_of(a, b)->free, b->size, b->address));
}

static void insert_unmapped(Allocator *a, int index) {
    Block *b = &a->blocks[index];
    b->state = UNMAPPED;
    insert(a, &arena_of(a, b)->unmapped, 0, b->address, index);
}

static void remove_unmapped(Allocator *a, int index) {
    Block *b = &a->blocks[index];
    remove_at(&arena_of(a, b)->unmapped, place(&arena_of(a, b)->unmapped, 0, b->address));
}

/* --- the driver (SimulatedDriver in driver.py) ------------------------------------------------------------------- */

static i64 round_up(i64 size, i64 unit) {
    /* nearly every unit is a power of 2 */
    return unit & (unit - 1) ? (size + unit - 1) / unit * unit : (size + unit - 1) & -unit;
}

static int book(Allocator *a, i64 size) {
    if (a->settings->capacity_bytes != NONE && a->c->used + size > a->settings->capacity_bytes) {
        a->c->refusals++;
        return 0;
    }
    a->c->used += size;
    return 1;
}

static i64 taken_addresses(const Allocator *a, i64 size) {
    return round_up(size, a->settings->address_step ? a->settings->address_step : DRIVER_PAGE);
}

static i64 reserve_addresses(Allocator *a, i64 size) {
    int goes_down = a->settings->address_step != 0;
    size = taken_addresses(a, size);
    for (int n = 0; n < a->gap_count; n++) {
        int i = goes_down ? a->gap_count - 1 - n : n;
        if (a->gaps[i].start + size > a->gaps[i].end) continue;
        i64 start = goes_down ? a->gaps[i].end - size : a->gaps[i].start;
        if (goes_down) a->gaps[i].end -= size;
        else a->gaps[i].start += size;
        if (a->gaps[i].start == a->gaps[i].end) {
            a->gap_count--;
            memmove(a->gaps + i, a->gaps + i + 1, (size_t)(a->gap_count - i) * sizeof(Gap));
        }
        return start;
    }
    a->c->tried = size;
    a->failed = NO_RANGE;
    return 0;
}

static void release_addresses(Allocator *a, i64 start, i64 size) {
    i64 end = start + taken_addresses(a, size);
    int low = 0, high = a->gap_count;
    while (low < high) {
        int middle = (low + high) / 2;
        if (a->gaps[middle].start < start) low = middle + 1;
        else high = middle;
    }
    int joins_next = low < a->gap_count && a->gaps[low].start == end;
    int joins_previous = low > 0 && a->gaps[low - 1].end == start;
    if (joins_next && joins_previous) {
        a->gaps[low - 1].end = a->gaps[low].end;
        a->gap_count--;
        memmove(a->gaps + low, a->gaps + low + 1, (size_t)(a->gap_count - low) * sizeof(Gap));
    } else if (joins_next) {
        a->gaps[low].start = start;
    } else if (joins_previous) {
        a->gaps[low - 1].end = end;
    } else if (has_room(a, &a->gaps, &a->gap_room, a->gap_count, sizeof(Gap))) {
        memmove(a->gaps + low + 1, a->gaps + low, (size_t)(a->gap_count - low) * sizeof(Gap));
        a->gaps[low] = (Gap){start, end};
        a->gap_count++;
    }
}

static void count_reserved(Allocator *a, i64 size) {
    a->c->reserved += size;
    if (size > 0) a->c->grants++;
    else a->c->returns++;
    if (a->c->reserved > a->c->peak_reserved) a->c->peak_reserved = a->c->reserved;
}

/* --- frees and events (AllocatorState in state.py, OutstandingEvents in events.py) -------------------------------- */

static void take_from_neighbour(Allocator *a, int lower, int upper) {
    Block *b = &a->blocks[lower], *u = &a->blocks[upper];
    b->size += u->size;
    b->next = u->next;
    if (b->next != NONE) a->blocks[b->next].prev = lower;
    drop_block(a, upper);
}

static void free_allocated(Allocator *a, int index) {
    Block *b = &a->blocks[index];
    a->c->allocated -= b->size;
    a->c->requested -= b->requested;
    if (b->next != NONE && a->blocks[b->next].state == FREE) {
        remove_free(a, b->next);
        take_from_neighbour(a, index, b->next);
    }
    int previous = b->prev;
    if (previous != NONE && a->blocks[previous].state == FREE) {
        remove_free(a, previous);
        take_from_neighbour(a, previous, index);
        index = previous;
    }
    insert_free(a, index);
}

static void free_block(Allocator *a, int index) {
    Block *b = &a->blocks[index];
    if (!(b->used_on[0] | b->used_on[1])) {
        free_allocated(a, index);
        return;
    }
    b->used_on[0] = b->used_on[1] = 0;
    b->state = PENDING;
    a->c->allocated -= b->size;
    a->c->pending += b->size;
    if (a->waiting_first == a->waiting_end) a->waiting_first = a->waiting_end = 0;
    if (!has_room(a, &a->waiting, &a->waiting_room, a->waiting_end, sizeof(Waiting))) return;
    a->waiting[a->waiting_end++] = (Waiting){index, a->synchronizations};
}

/* Frees the blocks whose events are complete. All events of a block are recorded at once, so one queue is enough. */
static void process_events(Allocator *a) {
    while (a->waiting_first < a->waiting_end
           && (a->settings->completes_at_once
               || a->waiting[a->waiting_first].synchronizations < a->synchronizations)) {
        Block *b = &a->blocks[a->waiting[a->waiting_first].block];
        b->state = ALLOCATED;
        a->c->pending -= b->size;
        a->c->allocated += b->size;
        free_allocated(a, a->waiting[a->waiting_first++].block);
    }
}

static void synchronize_and_free_events(Allocator *a) {
    if (a->waiting_first == a->waiting_end) return;
    a->synchronizations++;
    process_events(a);
}

/* --- expandable segments (expandable.py) -------------------------------------------------------------------------- */

static int split(Allocator *a, int index, i64 size) {
    Block b = a->blocks[index];
    int upper = new_block(a, b.address + size, b.size - size, b.state, index, b.next, b.arena, b.segment);
    if (upper == NONE) return NONE;
    if (b.next != NONE) a->blocks[b.next].prev = upper;
    a->blocks[index].next = upper;
    a->blocks[index].size = size;
    return upper;
}

static int joined(Allocator *a, int index, void (*take_out)(Allocator *, int)) {
    Block *b = &a->blocks[index];
    if (b->next != NONE && a->blocks[b->next].state == b->state) {
        take_out(a, b->next);
        take_from_neighbour(a, index, b->next);
    }
    int previous = b->prev;
    if (previous != NONE && a->blocks[previous].state == b->state) {
        take_out(a, previous);
        take_from_neighbour(a, previous, index);
        return previous;
    }
    return index;
}

static int map_pages(Allocator *a, int index, i64 size) {
    i64 page = a->segments[a->blocks[index].segment].page, mapped = round_up(size, page);
    if (!book(a, mapped)) return NONE;
    remove_unmapped(a, index);
    if (mapped < a->blocks[index].size) {
        int upper = split(a, index, mapped);
        if (upper == NONE) return NONE;
        insert_unmapped(a, upper);
    }
    a->blocks[index].state = FREE;
    index = joined(a, index, remove_free);
    insert_free(a, index);
    count_reserved(a, mapped);
    return index;
}

static int is_long_enough(const Allocator *a, int index, i64 size) {
    for (; size > 0; index = a->blocks[index].next) {
        if (index == NONE || (a->blocks[index].state != FREE && a->blocks[index].state != UNMAPPED)) return 0;
        size -= a->blocks[index].size;
    }
    return 1;
}

static int find_expandable(Allocator *a, int arena, i64 size) {
    List *unmapped = &a->arenas[arena].unmapped;
    for (int i = 0; i < unmapped->count; i++) {
        int index = entry(unmapped, i)->block, previous = a->blocks[index].prev;
        if (previous != NONE && a->blocks[previous].state == FREE) index = previous;
        if (is_long_enough(a, index, size)) return index;
    }
    i64 page = a->arenas[arena].is_small ? SMALL_SEGMENT : a->settings->large_segment_bytes;
    i64 total = a->settings->total_bytes + a->settings->total_bytes / 8;
    total = round_up(total < size ? size : total, page);
    if (!has_room(a, &a->segments, &a->segment_room, a->segment_count, sizeof(Expandable))) return NONE;
    i64 address = reserve_addresses(a, total);
    if (a->failed) return NONE;
    a->segments[a->segment_count] = (Expandable){address, total, page};
    int index = new_block(a, address, total, UNMAPPED, NONE, NONE, arena, a->segment_count++);
    if (index != NONE) insert_unmapped(a, index);
    return index;
}

static int allocate_expandable(Allocator *a, int arena, i64 size) {
    int index = find_expandable(a, arena, size);
    if (a->failed) return NONE;
    if (a->blocks[index].state == UNMAPPED)
        index = map_pages(a, index, a->blocks[index].size < size ? a->blocks[index].size : size);
    while (index != NONE && a->blocks[index].size < size) {
        int following = a->blocks[index].next;
        i64 missing = size - a->blocks[index].size, there = a->blocks[following].size;
        index = map_pages(a, following, missing < there ? missing : there);
    }
    if (index != NONE && !a->failed) remove_free(a, index);
    return index;
}

static void release_expandable(Allocator *a, int index) {
    Block b = a->blocks[index];
    Expandable s = a->segments[b.segment];
    i64 first = s.address + round_up(b.address - s.address, s.page);
    i64 last = s.address + (b.address + b.size - s.address) / s.page * s.page;
    if (first >= last) return;
    remove_free(a, index);
    if (last < b.address + b.size) {
        int upper = split(a, index, last - b.address);
        if (upper == NONE) return;
        insert_free(a, upper);
    }
    if (first > b.address) {
        int upper = split(a, index, first - b.address);
        if (upper == NONE) return;
        insert_free(a, index);
        index = upper;
    }
    a->synchronizations++;
    a->c->used -= last - first;
    a->blocks[index].state = UNMAPPED;
    index = joined(a, index, remove_unmapped);
    insert_unmapped(a, index);
    count_reserved(a, first - last);
    if (a->blocks[index].prev == NONE && a->blocks[index].next == NONE) {
        remove_unmapped(a, index);
        release_addresses(a, s.address, s.size);
        drop_block(a, index);
    }
}

/* --- release of cached memory (release.py) ------------------------------------------------------------------------ */

static int is_split(const Block *b) { return b->prev != NONE || b->next != NONE; }

static void release_segment(Allocator *a, int index) {
    Block b = a->blocks[index];
    if (is_split(&b)) {
        a->failed = FAILED;
        return;
    }
    remove_free(a, index);
    drop_block(a, index);
    a->c->segments--;
    a->synchronizations++;
    a->c->used -= round_up(b.size, DRIVER_PAGE);
    release_addresses(a, b.address, b.size);
    count_reserved(a, -b.size);
}

static void release_cached_blocks(Allocator *a) {
    synchronize_and_free_events(a);
    for (int arena = 0; arena < 2 * STREAMS && !a->failed; arena++) {
        int count = a->arenas[arena].free.count;
        if (!count) continue;
        int *found = malloc((size_t)count * sizeof(int)), kept = 0;
        if (!found) {
            a->failed = FAILED;
            return;
        }
        for (int i = 0; i < count; i++) {
            int index = entry(&a->arenas[arena].free, i)->block;
            if (a->settings->expandable || !is_split(&a->blocks[index])) found[kept++] = index;
        }
        for (int i = 0; i < kept; i++) {
            if (a->settings->expandable) release_expandable(a, found[i]);
            else release_segment(a, found[i]);
        }
        free(found);
    }
}

static int release_available_cached_blocks(Allocator *a, int arena, i64 size) {
    i64 limit = a->settings->max_split_bytes;
    if (limit == NONE || a->settings->expandable) return 0;
    List *blocks = &a->arenas[arena].free;
    i64 needed = size > limit ? size : limit, released = 0;
    int index = place(blocks, needed, 0);
    if (index < blocks->count) {
        release_segment(a, entry(blocks, index)->block);
        return 1;
    }
    while (--index >= 0 && released < needed && entry(blocks, index)->size >= limit && !a->failed) {
        released += entry(blocks, index)->size;
        release_segment(a, entry(blocks, index)->block);
    }
    return released >= needed;
}

static void collect_garbage(Allocator *a) {
    if (a->c->reserved <= a->settings->garbage_bytes) return;
    i64 target = a->c->reserved - a->settings->garbage_bytes, reclaimed = 0, total_age = 0, count = 0;
    for (int arena = STREAMS; arena < 2 * STREAMS; arena++)
        for (int i = 0; i < a->arenas[arena].free.count; i++) {
            const Block *b = &a->blocks[entry(&a->arenas[arena].free, i)->block];
            if (is_split(b)) continue;
            total_age += a->searches[0] - b->age;
            count++;
        }
    while (reclaimed < target && count > 0) {
        double least_age = (double)total_age / (double)count;
        int any = 0;
        for (int arena = STREAMS; arena < 2 * STREAMS; arena++)
            for (int i = a->arenas[arena].free.count - 1; i >= 0; i--) {
                int index = entry(&a->arenas[arena].free, i)->block;
                Block b = a->blocks[index];
                i64 age = a->searches[0] - b.age;
                if (is_split(&b) || a->settings->expandable || (double)age < least_age) continue;
                any = 1;
                reclaimed += b.size;
                total_age -= age;
                count--;
                release_segment(a, index);
                if (a->failed) return;
            }
        if (!any) return;
    }
}

/* --- malloc (CachingAllocator in allocator.py, search.py, sizes.py) ----------------------------------------------- */

static i64 round_to_division(const Settings *s, i64 size) {
    if (!s->has_divisions) return round_up(size, MIN_BLOCK);
    int log2 = 0;
    while (size >> (log2 + 1)) log2++;
    int interval = log2 - ROUNDUP_START_LOG2;
    interval = interval < 0 ? 0 : interval >= ROUNDUP_INTERVALS ? ROUNDUP_INTERVALS - 1 : interval;
    i64 steps = s->divisions[interval];
    if (steps <= 1 || size <= MIN_BLOCK * steps) return round_up(size, MIN_BLOCK);
    return round_up(size, ((i64)1 << log2) / steps);
}

static i64 segment_size(const Settings *s, i64 rounded) {
    if (rounded <= SMALL_SIZE) return SMALL_SEGMENT;
    return rounded < LARGE_REQUEST ? s->large_segment_bytes : round_up(rounded, LARGE_ROUNDING);
}

static i64 size_with_growth(const Allocator *a, int index) {
    const Block *b = &a->blocks[index];
    return b->size + (b->next != NONE && a->blocks[b->next].state == UNMAPPED ? a->blocks[b->next].size : 0);
}

/* The index of the free block to take; the number of free blocks if none is suitable. */
static int choose(Allocator *a, Arena *arena, i64 size) {
    const Settings *s = a->settings;
    List *free = &arena->free;
    int index = place(free, size, 0);
    a->searches[arena->is_small] += s->garbage_bytes != NONE;
    if (index == free->count) return index;
    if (s->expandable)
        while (index + 1 < free->count && size_with_growth(a, entry(free, index + 1)->block)
                                              < size_with_growth(a, entry(free, index)->block))
            index++;
    if (s->max_split_bytes == NONE) return index;
    i64 limit = size < s->max_split_bytes ? s->max_split_bytes : size + s->max_non_split_rounding_bytes;
    return entry(free, index)->size < limit ? index : free->count;
}

static int try_new_block(Allocator *a, int arena, i64 rounded) {
    i64 size = segment_size(a->settings, rounded);
    if (a->settings->allowed_bytes != NONE && a->c->reserved + size > a->settings->allowed_bytes) return NONE;
    if (a->settings->expandable) return allocate_expandable(a, arena, rounded);
    if (!book(a, round_up(size, DRIVER_PAGE))) return NONE;
    i64 address = reserve_addresses(a, size);
    if (a->failed) return NONE;
    a->c->segments++;
    count_reserved(a, size);
    return new_block(a, address, size, FREE, NONE, NONE, arena, NONE);
}

static int new_memory(Allocator *a, int arena, i64 rounded, i64 requested) {
    if (a->settings->garbage_bytes != NONE) collect_garbage(a);
    int index = try_new_block(a, arena, rounded);
    if (index == NONE && !a->failed && release_available_cached_blocks(a, arena, rounded))
        index = try_new_block(a, arena, rounded);
    if (index == NONE && !a->failed) {
        release_cached_blocks(a);
        a->c->retries++;
        index = try_new_block(a, arena, rounded);
    }
    if (index == NONE) {
        a->c->ooms++;
        a->c->tried = segment_size(a->settings, rounded);
        a->c->failed_request = requested;
    }
    return index;
}

static int allocate(Allocator *a, i64 size, int stream) {
    const Settings *s = a->settings;
    Counters *c = a->c;
    process_events(a);
    i64 rounded = round_to_division(s, size);
    int arena_index = rounded <= SMALL_SIZE ? stream : STREAMS + stream;
    Arena *arena = &a->arenas[arena_index];
    int found = choose(a, arena, rounded), index;
    if (found < arena->free.count) {
        index = entry(&arena->free, found)->block;
        remove_at(&arena->free, found);
    } else {
        index = new_memory(a, arena_index, rounded, size);
        if (index == NONE) return NONE;
    }
    i64 remainder = a->blocks[index].size - rounded;
    if (remainder >= arena->smallest_remainder
        && (s->expandable || s->max_split_bytes == NONE || rounded < s->max_split_bytes)) {
        int upper = split(a, index, rounded);
        if (upper == NONE) return NONE;
        a->blocks[upper].state = FREE;
        insert(a, &arena->free, remainder, a->blocks[upper].address, upper);
        a->blocks[upper].age = a->blocks[index].age;
    }
    Block *b = &a->blocks[index];
    b->state = ALLOCATED;
    b->requested = size;
    c->allocated += b->size;
    c->requested += size;
    if (c->allocated > c->peak_allocated) c->peak_allocated = c->allocated;
    if (c->requested > c->peak_requested) c->peak_requested = c->requested;
    if (c->pending && c->allocated + c->pending > c->peak_active) c->peak_active = c->allocated + c->pending;
    return index;
}

/* --- the run (simulate.py) ---------------------------------------------------------------------------------------- */

/* The highest bytes after the events of each stretch. ends: the event after each stretch; the last is their count. */
typedef struct {
    const i64 *ends;
    i64 *allocated, *reserved;
} Curve;

static int play(Allocator *a, i64 count, const int8_t *kinds, const int32_t *buffers, i64 buffer_count,
                const i64 *sizes, const int32_t *streams, int *block_of, Curve *curve) {
    Counters *c = a->c;
    i64 stretch = 0;
    for (i64 at = 0; at < count; at++) {
        int32_t buffer = buffers[at];
        if (buffer < 0 || buffer >= buffer_count) return FAILED;
        int kind = kinds[at], index = NONE;
        i64 size = sizes[buffer], peak = c->peak_allocated;
        if (kind == EVENT_FREE) {
            if (size) {
                index = block_of[buffer];
                if (index == NONE) return FAILED;
                block_of[buffer] = NONE;
                free_block(a, index);
            }
        } else if (kind == EVENT_ALLOCATE) {
            if (size) {
                if (size < 0 || size >= LARGEST_REQUEST || block_of[buffer] != NONE) return FAILED;
                index = allocate(a, size, streams[buffer]);
                if (a->failed) return a->failed;
                if (index == NONE) {
                    c->failed_at = at;
                    return OUT_OF_MEMORY;
                }
                block_of[buffer] = index;
                if (c->peak_allocated > peak) {
                    c->peak_at = at;
                    c->reserved_at_peak = c->reserved;
                }
            }
        } else if (kind == EVENT_EMPTY_CACHE) {
            release_cached_blocks(a);
        } else if (kind == EVENT_SYNCHRONIZE) {
            a->synchronizations++;
        } else if (size) {
            int stream = kind - EVENT_RECORD_STREAM;
            index = block_of[buffer];
            if (index == NONE || stream < 0) return FAILED;
            if (stream != streams[buffer]) a->blocks[index].used_on[stream / 64] |= (uint64_t)1 << (stream % 64);
        }
        if (a->failed) return a->failed;
        if (curve) {
            while (at >= curve->ends[stretch]) stretch++;
            if (c->allocated > curve->allocated[stretch]) curve->allocated[stretch] = c->allocated;
            if (c->reserved > curve->reserved[stretch]) curve->reserved[stretch] = c->reserved;
        }
    }
    return COMPLETED;
}

/* --- sessions (session.py) ---------------------------------------------------------------------------------------- */

/* An allocator that outlives a list of events, and the block of each buffer. */
typedef struct {
    Allocator allocator;
    int *block_of;
    i64 buffer_count;
} Session;

void peakcast_close(Session *s) {
    if (!s) return;
    Allocator *a = &s->allocator;
    for (int i = 0; i < 2 * STREAMS; i++) {
        free(a->arenas[i].free.items);
        free(a->arenas[i].unmapped.items);
    }
    free(a->blocks);
    free(a->gaps);
    free(a->segments);
    free(a->waiting);
    free(s->block_of);
    free(s);
}

/* A session with an empty allocator; NULL where the host has no memory. It keeps both pointers. */
Session *peakcast_open(const Settings *settings, Counters *counters) {
    Session *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    Allocator *a = &s->allocator;
    memset(counters, 0, sizeof *counters);
    counters->failed_at = NONE;
    a->settings = settings;
    a->c = counters;
    a->unused_block = NONE;
    for (int i = 0; i < 2 * STREAMS; i++) {
        a->arenas[i].is_small = i < STREAMS;
        a->arenas[i].smallest_remainder = i < STREAMS || settings->expandable ? MIN_BLOCK : SMALL_SIZE + 1;
    }
    if (!has_room(a, &a->gaps, &a->gap_room, 0, sizeof(Gap))) {
        peakcast_close(s);
        return NULL;
    }
    a->gaps[0] = (Gap){FIRST_ADDRESS, LAST_ADDRESS};
    a->gap_count = 1;
    return s;
}

/* Runs events through a session's allocator, as it is.
 *
 * kinds, buffers: of each event. sizes, streams: of each buffer. Buffers keep their numbers from list to list.
 * curve: filled up to a failure; may be NULL.
 */
int peakcast_play(Session *s, i64 count, const int8_t *kinds, const int32_t *buffers, i64 buffer_count,
                  const i64 *sizes, const int32_t *streams, Curve *curve) {
    for (i64 i = 0; i < buffer_count; i++)
        if (streams[i] < 0 || streams[i] >= STREAMS) return FAILED;
    if (buffer_count > s->buffer_count || !s->block_of) {
        int *block_of = realloc(s->block_of, (size_t)(buffer_count + 1) * sizeof(int));
        if (!block_of) return FAILED;
        s->block_of = block_of;
        for (i64 i = s->buffer_count; i < buffer_count; i++) block_of[i] = NONE;
        s->buffer_count = buffer_count;
    }
    return play(&s->allocator, count, kinds, buffers, buffer_count, sizes, streams, s->block_of, curve);
}

/* Runs events through an empty allocator. The arguments are those of a session. */
int peakcast_simulate(const Settings *settings, i64 count, const int8_t *kinds, const int32_t *buffers, i64 buffer_count,
                      const i64 *sizes, const int32_t *streams, Counters *counters, Curve *curve) {
    Session *s = peakcast_open(settings, counters);
    int result = s ? peakcast_play(s, count, kinds, buffers, buffer_count, sizes, streams, curve) : FAILED;
    peakcast_close(s);
    return result;
}
