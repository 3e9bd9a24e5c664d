// Analysis of a CSR matrix in GPU memory: statistics of all rows and entries, and copies of samples
// for the host. Counts are those of src/analysis on the host.

// Selectable: one kernel at a time.

#include "common.cuh"

using namespace analysis;

// Checks row offsets, and widens them unless `widened` is null: they rise from 0 to `nnz`, and no
// row has more entries than a matrix may have columns. Sets `wrong` otherwise.
#define OFFSETS(SUFFIX, O)                                                                                            \
    KERNEL(check_offsets_##SUFFIX)(const O *offsets, u32 nrows, u64 nnz, u64 *widened, u32 *wrong) {                  \
        u64 row = thread_id();                                                                                        \
        if (row > nrows) return;                                                                                      \
        u64 own = offsets[row];                                                                                       \
        if (widened) widened[row] = own;                                                                              \
        if (row == 0 && own != 0) *wrong = 1;                                                                         \
        u64 next = row < nrows ? offsets[row + 1] : own;                                                              \
        if (next < own || next - own >= PADDING || (row == nrows && own != nnz)) *wrong = 1;                          \
    }

OFFSETS(u32, u32)
OFFSETS(u64, u64)

// Sets `wrong` unless all columns are below `ncols`.
KERNEL(check_columns)(const u32 *cols, u64 nnz, u32 ncols, u32 *wrong) {
    u64 first = u64(blockIdx.x) * (BLOCK * CHECKED) + threadIdx.x;
    bool all = true;
#pragma unroll
    for (u32 k = 0; k < CHECKED; ++k) all &= __ldcs(cols + min(first + k * BLOCK, nnz - 1)) < ncols;
    if (!all) *wrong = 1;
}

// Row lengths: their histogram, the number of changes from row to row, and the sums of the slices
// of sorted windows (`SortedSlices`). A block has BLOCK_ROWS rows. Rows of HISTOGRAM
// entries and more are listed.

// Adds the slices of C rows to three sums: slots, masked slots and the largest slice. Rows that do
// not exist have no entries.
template <u32 C>
__device__ __forceinline__ void add_slices(const u32 *lengths, u64 *sums) {
    u64 slots = 0, masked = 0;
    u32 widest = 0;
    for (u32 i = threadIdx.x; i < BLOCK_ROWS; i += BLOCK) {
        u32 most = lengths[i], least = most;
#pragma unroll
        for (u32 offset = C / 2; offset > 0; offset /= 2) {
            most = max(most, __shfl_xor_sync(ALL_LANES, most, offset));
            least = min(least, __shfl_xor_sync(ALL_LANES, least, offset));
        }
        slots += most;
        masked += most - least;
        widest = max(widest, most);
    }
    // Every lane of a slice has the same numbers: the sums over all lanes are those of C slots
    // each.
#pragma unroll
    for (u32 offset = WARP / 2; offset > 0; offset /= 2) {
        slots += __shfl_xor_sync(ALL_LANES, slots, offset);
        masked += __shfl_xor_sync(ALL_LANES, masked, offset);
        widest = max(widest, __shfl_xor_sync(ALL_LANES, widest, offset));
    }
    if (lane_id() != 0) return;
    atomicAdd(sums, slots);
    atomicAdd(sums + 1, masked);
    atomicMax(sums + 2, u64(widest) * C);
}

// Continues the bitonic network that has sorted windows of `sorted` rows until those of `window`
// rows are sorted, every other one in reverse: that does not change the slices of a window.
__device__ __forceinline__ void sort_windows(u32 *lengths, u32 sorted, u32 window) {
#pragma unroll 1
    for (u32 run = 2 * sorted; run <= window; run *= 2)
#pragma unroll 1
        for (u32 offset = run / 2; offset > 0; offset /= 2) {
            __syncthreads();
            for (u32 pair = threadIdx.x; pair < BLOCK_ROWS / 2; pair += BLOCK) {
                u32 i = (pair & ~(offset - 1)) << 1 | (pair & (offset - 1)), j = i | offset;
                u32 one = lengths[i], other = lengths[j];
                if ((one > other) == ((i & run) == 0)) {
                    lengths[i] = other;
                    lengths[j] = one;
                }
            }
        }
    __syncthreads();
}

// `found` are the changes, the number of listed rows, and three sums for every pair of a slice and
// a window, in the order of `SortedSlices::MEASURED`.
KERNEL(row_lengths)(const u64 *row_ptr, u32 nrows, u32 *histogram, u32 *listed, u64 *found) {
    __shared__ u32 lengths[BLOCK_ROWS];
    __shared__ u32 counts[HISTOGRAM];
    __shared__ u64 sums[SLICE_SUMS];
    for (u32 i = threadIdx.x; i < HISTOGRAM; i += BLOCK) counts[i] = 0;
    for (u32 i = threadIdx.x; i < SLICE_SUMS; i += BLOCK) sums[i] = 0;
    __syncthreads();
    u32 changes = 0;
    for (u32 i = threadIdx.x; i < BLOCK_ROWS; i += BLOCK) {
        u64 row = u64(blockIdx.x) * BLOCK_ROWS + i;
        bool exists = row < nrows;
        u64 begin = exists ? row_ptr[row] : 0;
        u32 len = exists ? u32(row_ptr[row + 1] - begin) : 0;
        lengths[i] = len;
        changes += exists && row > 0 && u32(begin - row_ptr[row - 1]) != len;
        bool is_short = exists && len < HISTOGRAM;
        u32 same = __match_any_sync(ALL_LANES, is_short ? len : HISTOGRAM);
        if (is_short && lanes_before(same) == 0) atomicAdd(counts + len, __popc(same));
        if (exists && !is_short) listed[atomicAdd(found + 1, 1ull)] = len;
    }
    u64 all = block_scan(changes).all;
    if (threadIdx.x == 0) atomicAdd(found, all);
    __syncthreads();
    add_slices<32>(lengths, sums);
    sort_windows(lengths, 1, 128);
    add_slices<16>(lengths, sums + 3);
    add_slices<32>(lengths, sums + 6);
    sort_windows(lengths, 128, 512);
    add_slices<32>(lengths, sums + 9);
    sort_windows(lengths, 512, 1024);
    add_slices<16>(lengths, sums + 12);
    sort_windows(lengths, 1024, BLOCK_ROWS);
    add_slices<16>(lengths, sums + 15);
    add_slices<32>(lengths, sums + 18);
    __syncthreads();
    for (u32 i = threadIdx.x; i < HISTOGRAM; i += BLOCK)
        if (counts[i]) atomicAdd(histogram + i, counts[i]);
    if (threadIdx.x >= SLICE_SUMS) return;
    if (threadIdx.x % 3 == 2) atomicMax(found + 2 + threadIdx.x, sums[threadIdx.x]);
    else atomicAdd(found + 2 + threadIdx.x, sums[threadIdx.x]);
}

// The last row from `low` on that begins at `entry` or before it; it is not after `high`.
__device__ __forceinline__ u32 row_of(const u64 *row_ptr, u32 low, u32 high, u64 entry) {
    while (low < high) {
        u32 middle = high - (high - low) / 2;
        if (__ldg(row_ptr + middle) <= entry) low = middle;
        else high = middle - 1;
    }
    return low;
}

// Column contiguity: entries shifted from the previous row, and contiguous ones, in one section of
// `every`. A warp has a section.
KERNEL(contiguity)(const u64 *row_ptr, const u32 *cols, u32 nrows, u64 nnz, u32 every, u64 sections,
                   u64 count, u64 *found) {
    u64 i = thread_id() / WARP;
    if (i >= count) return;
    u64 section = min(i * every + u32(i * SPREAD >> 32) % every, sections - 1);
    u64 from = section * SECTION, to = min(from + SECTION, nnz);
    u32 first = row_of(row_ptr, 0, nrows - 1, from), last = row_of(row_ptr, first, nrows - 1, to - 1);
    u32 shifted = 0, contiguous = 0;
    for (u64 entry = from + lane_id(); entry < to; entry += WARP) {
        u32 row = row_of(row_ptr, first, last, entry);
        u64 begin = row_ptr[row];
        u32 col = cols[entry];
        contiguous += entry > begin && cols[entry - 1] + 1 == col;
        if (row == 0) continue;
        u64 above = row_ptr[row - 1] + (entry - begin);
        shifted += above < begin && cols[above] + 1 == col;
    }
#pragma unroll
    for (u32 offset = WARP / 2; offset > 0; offset /= 2) {
        shifted += __shfl_xor_sync(ALL_LANES, shifted, offset);
        contiguous += __shfl_xor_sync(ALL_LANES, contiguous, offset);
    }
    if (lane_id() == 0 && shifted) atomicAdd(found, shifted);
    if (lane_id() == 0 && contiguous) atomicAdd(found + 1, contiguous);
}

// Reuse distances of the gathers from x (`Reuse`). The touches of sampled groups of columns are
// sorted by group, lowest digit first, and stay in their order otherwise. A touch is its group
// above its place in the windows, which has PLACE_BITS bits.

// Touches in their present order: those of the windows, or those of the previous pass.
struct Touches {
    const u32 *cols;
    u64 window;
    u64 half_distance;
    u32 skipped;
    const u64 *from;
    u64 count;
    u32 shift;

    // Touch number i. False if there is none, or if its group is not sampled.
    __device__ __forceinline__ bool get(u64 i, u64 &touch) const {
        if (i >= count) return false;
        if (from) {
            touch = from[i];
            return true;
        }
        u64 number = i / window;
        u32 group = __ldg(cols + half_distance * (2 * number + 1) + (i - number * window)) >> GROUP_BITS;
        touch = u64(group) << PLACE_BITS | i;
        return (((group ^ group >> 16) * GROUP_SPREAD) & 0xFFFF) >> (16 - skipped) == 0;
    }
    __device__ __forceinline__ u32 digit(u64 touch) const { return u32(touch >> (PLACE_BITS + shift)) % TOUCH_DIGITS; }
    // Place of this thread's touch in a round; a warp has consecutive ones.
    __device__ __forceinline__ u64 place(u32 round) const {
        return u64(blockIdx.x) * (TOUCH_ROUNDS * BLOCK) +
               (threadIdx.x / WARP * TOUCH_ROUNDS + round) * WARP + lane_id();
    }
};

// Histogram of the digits of every block: counts[digit · blocks + block].
KERNEL(count_touches)(const u32 *cols, u64 window, u64 half_distance, u32 skipped, const u64 *from,
                      u64 count, u32 shift, u64 *counts) {
    __shared__ u32 found[TOUCH_DIGITS];
    Touches touches{cols, window, half_distance, skipped, from, count, shift};
    found[threadIdx.x] = 0;
    __syncthreads();
    for (u32 round = 0; round < TOUCH_ROUNDS; ++round) {
        u64 touch;
        if (touches.get(touches.place(round), touch)) atomicAdd(&found[touches.digit(touch)], 1);
    }
    __syncthreads();
    counts[u64(threadIdx.x) * gridDim.x + blockIdx.x] = found[threadIdx.x];
}

// Moves every touch to its place: after all touches of lower digits, and after earlier ones of the
// same digit.
KERNEL(place_touches)(const u32 *cols, u64 window, u64 half_distance, u32 skipped, const u64 *from,
                      u64 count, u32 shift, const u64 *before, u64 *to) {
    __shared__ u32 next[WARPS][TOUCH_DIGITS];
    Touches touches{cols, window, half_distance, skipped, from, count, shift};
    u32 warp = threadIdx.x / WARP;
    for (u32 w = 0; w < WARPS; ++w) next[w][threadIdx.x] = 0;
    __syncthreads();
    for (u32 round = 0; round < TOUCH_ROUNDS; ++round) {
        u64 touch;
        if (touches.get(touches.place(round), touch)) atomicAdd(&next[warp][touches.digit(touch)], 1);
    }
    __syncthreads();
    u32 place = u32(before[u64(threadIdx.x) * gridDim.x + blockIdx.x]);
    for (u32 w = 0; w < WARPS; ++w) {
        u32 own = next[w][threadIdx.x];
        next[w][threadIdx.x] = place;
        place += own;
    }
    __syncthreads();
    for (u32 round = 0; round < TOUCH_ROUNDS; ++round) {
        u64 touch;
        bool exists = touches.get(touches.place(round), touch);
        u32 own = exists ? touches.digit(touch) : TOUCH_DIGITS;
        u32 same = __match_any_sync(ALL_LANES, own);
        u32 earlier = lanes_before(same);
        if (exists) to[next[warp][own] + earlier] = touch;
        __syncwarp();
        if (exists && earlier == 0) next[warp][own] += __popc(same);
        __syncwarp();
    }
}

// Binary logarithms of the distances of sorted touches; CLASSES for the first one of a group in its
// window.
KERNEL(tally_touches)(const u64 *touches, u64 count, u64 window, u64 *tally) {
    __shared__ u32 found[WARPS][WARP];
    found[threadIdx.x / WARP][lane_id()] = 0;
    __syncwarp();
    for (u64 i = thread_id(); i < count; i += u64(gridDim.x) * BLOCK) {
        u64 own = touches[i], before = i > 0 ? touches[i - 1] : ~own;
        u64 mask = (1ull << PLACE_BITS) - 1;
        u64 place = own & mask, other = before & mask;
        bool again = own >> PLACE_BITS == before >> PLACE_BITS && place / window == other / window;
        atomicAdd(&found[threadIdx.x / WARP][again ? 31 - __clz(u32(place - other)) : CLASSES], 1);
    }
    __syncthreads();
    if (threadIdx.x > CLASSES) return;
    u64 all = 0;
    for (u32 w = 0; w < WARPS; ++w) all += found[w][threadIdx.x];
    if (all) atomicAdd(tally + threadIdx.x, all);
}

// Layout of a floating-point number: `FloatLayout` in src/precision.rs.
struct FloatLayout {
    u32 fraction;
    u32 exponent;

    __device__ __forceinline__ int bias() const { return (1 << (exponent - 1)) - 1; }
};

// True if numbers of another layout represent a number exactly: `Precision::holds`.
__device__ __forceinline__ bool holds(FloatLayout wide, FloatLayout own, u64 bits) {
    u32 lost = wide.fraction - own.fraction;
    u64 fraction = bits & ((1ull << wide.fraction) - 1);
    u32 special = (1u << wide.exponent) - 1, exponent = u32(bits >> wide.fraction) & special;
    u32 zeros = fraction ? __ffsll(fraction) - 1 : 64;
    if (exponent == special) return zeros >= lost;
    u64 significand = exponent ? fraction | 1ull << wide.fraction : fraction;
    int first = exponent ? int(exponent) - wide.bias() : 1 - wide.bias();
    if (significand == 0) return true;
    u32 below = u32(max(1 - own.bias() - first, 0));
    return first <= own.bias() && u32(__ffsll(significand) - 1) >= lost + below;
}

// Precisions that do not represent all values. Ends early when none does.
template <typename B>
__device__ __forceinline__ void inexact_in(const B *values, u64 count, u32 *inexact) {
    constexpr bool is_wide = sizeof(B) == 8;
    constexpr FloatLayout own = is_wide ? FloatLayout{52, 11} : FloatLayout{23, 8};
    u32 lost = 0, round = 0;
    for (u64 i = thread_id(); i < count; i += u64(gridDim.x) * BLOCK, ++round) {
        u64 bits = values[i];
        if (!holds(own, FloatLayout{7, 8}, bits)) lost |= NOT_BF16;
        if (!holds(own, FloatLayout{10, 5}, bits)) lost |= NOT_F16;
        if (is_wide && !holds(own, FloatLayout{23, 8}, bits)) lost |= NOT_F32;
        if (round % 16 == 0 && *reinterpret_cast<volatile u32 *>(inexact) ==
                                   (NOT_BF16 | NOT_F16 | (is_wide ? NOT_F32 : 0)))
            break;
    }
    if (lost & ~*reinterpret_cast<volatile u32 *>(inexact)) atomicOr(inexact, lost);
}

KERNEL(inexact_f32)(const u32 *values, u64 count, u32 *inexact) { inexact_in(values, count, inexact); }
KERNEL(inexact_f64)(const u64 *values, u64 count, u32 *inexact) { inexact_in(values, count, inexact); }

// Copies ranges of an array, one after the other: a warp has range i, which begins at element
// from[i] and has its copy from to[i] to to[i + 1].
#define GATHER(SUFFIX, E)                                                                                            \
    KERNEL(gather_##SUFFIX)(const E *elements, const u64 *from, const u64 *to, u32 count, E *copies) {                \
        u64 range = thread_id() / WARP;                                                                              \
        if (range >= count) return;                                                                                  \
        u64 begin = to[range], len = to[range + 1] - begin;                                                          \
        for (u64 k = lane_id(); k < len; k += WARP) copies[begin + k] = elements[from[range] + k];                    \
    }

GATHER(u32, u32)
GATHER(u64, u64)

// Least and largest column of rows, or (2³² - 1, 0) of a row without entries, and the lower and the
// upper half of the row's offset. A block has a row.
KERNEL(column_spans)(const u64 *row_ptr, const u32 *cols, const u32 *rows, uint4 *spans) {
    __shared__ u32 bounds[2];
    if (threadIdx.x == 0) bounds[0] = ALL_LANES, bounds[1] = 0;
    __syncthreads();
    u32 row = rows[blockIdx.x], least = ALL_LANES, most = 0;
    u64 begin = row_ptr[row], end = row_ptr[row + 1ull];
    for (u64 k = begin + threadIdx.x; k < end; k += BLOCK) {
        u32 col = cols[k];
        least = min(least, col);
        most = max(most, col);
    }
    if (least <= most) {
        atomicMin(bounds, least);
        atomicMax(bounds + 1, most);
    }
    __syncthreads();
    if (threadIdx.x == 0) spans[blockIdx.x] = make_uint4(bounds[0], bounds[1], u32(begin), u32(begin >> 32));
}

// Frequencies of columns (`Frequencies`). Runs of FREQUENCY_RUN entries are sampled at even
// distances. A hash table has the columns of the even runs, plus one, how often they occur there,
// and how often in the odd ones.

// Adds the entries of the even runs, or with `second` those of the odd ones. A thread has an entry.
KERNEL(add_columns)(const u32 *cols, u64 distance, u32 runs, u32 second, u32 slots, u32 *columns, u32 *times,
                    u32 *entries) {
    u64 run = thread_id() / FREQUENCY_RUN * 2 + second;
    if (run >= runs) return;
    u32 key = cols[run * distance + thread_id() % FREQUENCY_RUN] + 1;
    u32 slot = __umulhi(u32(key * analysis::SPREAD >> 32), slots);
    for (;; slot = (slot + 1) & (slots - 1)) {
        u32 found = *reinterpret_cast<volatile u32 *>(columns + slot);
        if (found == 0 && second) return;
        if (found == 0) found = atomicCAS(columns + slot, 0u, key);
        if (found == 0 || found == key) break;
    }
    atomicAdd((second ? entries : times) + slot, 1);
}

// Sums over the columns by the number of times that they occur: columns, then entries.
KERNEL(tally_columns)(u32 slots, const u32 *columns, const u32 *times, const u32 *entries, u32 *counts) {
    __shared__ u32 found[2 * FREQUENCIES];
    for (u32 i = threadIdx.x; i < 2 * FREQUENCIES; i += BLOCK) found[i] = 0;
    __syncthreads();
    for (u64 slot = thread_id(); slot < slots; slot += u64(gridDim.x) * BLOCK) {
        if (columns[slot] == 0) continue;
        u32 own = min(times[slot], FREQUENCIES - 1);
        atomicAdd(found + own, 1);
        if (entries[slot]) atomicAdd(found + FREQUENCIES + own, entries[slot]);
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < 2 * FREQUENCIES; i += BLOCK)
        if (found[i]) atomicAdd(counts + i, found[i]);
}

// Distinct values of a matrix, as in `ValueSet`. Zero marks a free slot. `counts` are the number of
// values other than zero, and 1 if zero is among the values.

// Adds a key to a table. Returns false if there are too many values: the search for a free slot is
// then long.
__device__ __forceinline__ bool add_value(u64 *slots, u32 *count, u64 bits) {
    u32 slot = value_slot(bits);
    for (u32 tries = 0; tries < VALUE_SLOTS; ++tries, slot = (slot + 1) % VALUE_SLOTS) {
        if (tries % 8 == 7 && *reinterpret_cast<volatile u32 *>(count) > DICTIONARY) return false;
        u64 found = *reinterpret_cast<volatile u64 *>(slots + slot);
        if (found == 0) found = atomicCAS(slots + slot, 0ull, bits);
        if (found == 0) atomicAdd(count, 1);
        if (found == 0 || found == bits) return true;
    }
    return false;
}

// Every block collects its distinct values and adds them to the common table at the end. Blocks
// stop early when there are too many values.
template <typename B>
__device__ __forceinline__ void distinct_values(const B *values, u64 count, u64 *slots, u32 *counts) {
    __shared__ u64 own[VALUE_SLOTS];
    __shared__ u32 own_counts[2];
    for (u32 slot = threadIdx.x; slot < VALUE_SLOTS; slot += BLOCK) own[slot] = 0;
    if (threadIdx.x < 2) own_counts[threadIdx.x] = 0;
    __syncthreads();
    auto is_full = [](u32 *count) { return *reinterpret_cast<volatile u32 *>(count) > DICTIONARY; };
    u64 last = 0;
    u32 round = 0;
    for (u64 i = thread_id(); i < count; i += u64(gridDim.x) * BLOCK, ++round) {
        u64 bits = values[i];
        if (bits == 0) own_counts[1] = 1;
        if (bits != 0 && bits != last) {
            // After the limit is reached, a block adds at most one key per thread, for which the
            // table has space.
            if (is_full(own_counts)) break;
            add_value(own, own_counts, bits);
        }
        last = bits;
        if (round % 16 == 0 && is_full(counts)) break;
    }
    __syncthreads();
    if (threadIdx.x == 0 && own_counts[1]) counts[1] = 1;
    if (is_full(own_counts)) {
        if (threadIdx.x == 0) atomicMax(counts, DICTIONARY + 1);
        return;
    }
    for (u32 slot = threadIdx.x; slot < VALUE_SLOTS; slot += BLOCK)
        if (own[slot] && !is_full(counts) && !add_value(slots, counts, own[slot])) atomicMax(counts, DICTIONARY + 1);
}

KERNEL(distinct_f32)(const u32 *values, u64 count, u64 *slots, u32 *counts) {
    distinct_values(values, count, slots, counts);
}
KERNEL(distinct_f64)(const u64 *values, u64 count, u64 *slots, u32 *counts) {
    distinct_values(values, count, slots, counts);
}
