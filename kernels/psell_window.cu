// Sliding-window SpMM for packed SELL whose slices are all diagonal, with the columns of all slices
// in a few bands along the diagonal: see src/formats/psell/cuda/window.rs.
//
// A block goes through consecutive slices, one slice per consumer warp in each iteration. The
// columns of X that an iteration needs are in shared memory, in a ring buffer per band: each
// iteration loads the columns by which its bands have moved on. Producer warps do only that, at
// most STAGES iterations ahead. A lane multiplies two adjacent rows with one of the two units of a
// column. The buffer holds even and odd columns separately, so that the lanes of a quarter warp
// read 128 contiguous bytes. On the next diagonal the first row needs the column that the second
// row has just used; it is reused from registers.
//
// Selectable: one kernel at a time.

#include "common.cuh"
#include "psell_spmm.cuh"

typedef long long i64;

// Bytes of a warp's slot table: a slice has at most one slot per lane.
[[maybe_unused]] constexpr u32 TABLE = WARP * SLOT_BYTES;

#if HAS_HOPPER && __CUDACC_VER_MAJOR__ >= 12

// Barriers in shared memory (mbarrier), and copies that arrive at them on completion.
__device__ __forceinline__ u32 shared_address(const void *at) { return u32(__cvta_generic_to_shared(at)); }

__device__ __forceinline__ void make_barrier(u64 *barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void arrive_at(u64 *barrier) {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
// Arrives when all copies of this thread by `begin_copy` are complete.
__device__ __forceinline__ void arrive_copied(u64 *barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}
// Waits for the end of a phase. `odd` is 1 for the second, fourth and so on.
__device__ __forceinline__ void wait_for(u64 *barrier, u32 odd) {
    u32 over;
    do {
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                     : "=r"(over)
                     : "r"(shared_address(barrier)), "r"(odd)
                     : "memory");
    } while (!over);
}
// Copies `bytes` bytes, an aligned multiple of 16. The phase of the barrier ends when they have
// arrived.
__device__ __forceinline__ void copy_range(u8 *to, const u8 *from, u32 bytes, u64 *barrier) {
    u32 at = shared_address(barrier);
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(to)),
                 "l"(from), "r"(bytes), "r"(at)
                 : "memory");
}

// Ring buffers of a block: for each band the even columns, then the odd ones, `half + HALO`
// each.
template <typename U>
struct RingBuffers {
    u8 *bytes;
    // First column of every band minus the row.
    const int *starts;
    u32 bands, half, ncols, units;
    UnitColumns<U> x;

    // Bytes of the even or of the odd columns.
    __device__ __forceinline__ u32 half_bytes() const { return (half + HALO) * u32(COLUMN_UNITS * sizeof(U)); }

    __device__ __forceinline__ void load_column(u8 *half_at, u32 place, const U *from) const {
        begin_copy(reinterpret_cast<float4 *>(half_at + place * (COLUMN_UNITS * sizeof(U))),
                   reinterpret_cast<const float4 *>(from));
        if (place < HALO)
            begin_copy(reinterpret_cast<float4 *>(half_at + (place + half) * (COLUMN_UNITS * sizeof(U))),
                       reinterpret_cast<const float4 *>(from));
    }

    // Begins to load `count` columns of every band, from that of `row` + `skip` on, to the
    // positions from `place` on, each of which has an even and an odd column. `threads` threads in
    // whole warps take part. Columns outside the matrix are clamped, and are never multiplied.
    __device__ __forceinline__ void fill(u32 row, u32 skip, u32 place, u32 count, u32 thread, u32 threads) const {
        u32 unit = thread % COLUMN_UNITS, odd = thread / COLUMN_UNITS % 2, own = min(unit, units - 1);
#pragma unroll 1
        for (u32 s = 0; s < bands; ++s) {
            i64 first = i64(row) + skip + __ldg(starts + s);
            u8 *half_at = bytes + (s * 2 + odd) * half_bytes() + unit * sizeof(U);
            u32 h = place + thread / (2 * COLUMN_UNITS), i = thread / COLUMN_UNITS;
            if (first >= 0 && first + count <= ncols) {
                const u8 *from = reinterpret_cast<const u8 *>(x.x + own) + (first + i) * x.stride;
                u64 on = u64(threads / COLUMN_UNITS) * u32(x.stride);
#pragma unroll 4
                for (; i < count; i += threads / COLUMN_UNITS, h += threads / (2 * COLUMN_UNITS), from += on)
                    load_column(half_at, min(h, h - half), reinterpret_cast<const U *>(from));
            } else {
#pragma unroll 1
                for (; i < count; i += threads / COLUMN_UNITS, h += threads / (2 * COLUMN_UNITS))
                    load_column(half_at, min(h, h - half),
                                x.offset_by(x.x + own,
                                            u32(min(max(first + i, i64(0)), i64(ncols) - 1))));
            }
        }
    }
};

// A masked slot: positions of the columns of the warp's first two rows, the mask of its lanes, and
// the position of its values.
struct alignas(SLOT_BYTES) Partial {
    u32 first, second, mask, values;
};

// Sums of two adjacent rows.
template <typename T, u32 N>
struct RowPair {
    Unit<T, N> first = {}, second = {};
    // Column of the previous slot for the second row.
    Unit<T, N> column = {};

    __device__ __forceinline__ static Unit<T, N> shared_unit(const u8 *at) {
        return *reinterpret_cast<const Unit<T, N> *>(at);
    }
    __device__ __forceinline__ void add_slot(const u8 *mine, uint2 at, T value, T below) {
        if (int(at.x) >= 0) column = shared_unit(mine + at.x);
        add(first, value, column);
        column = shared_unit(mine + at.y);
        add(second, below, column);
    }
    __device__ __forceinline__ void add_partial(const u8 *mine, const u8 *values, const Partial &slot, u32 row) {
        u32 has = slot.mask >> row;
        const T *value = reinterpret_cast<const T *>(values + slot.values) + __popc(slot.mask & ((1u << row) - 1));
        T one = value[0], other = value[has & 1];
        Unit<T, N> column = shared_unit(mine + slot.first), next = shared_unit(mine + slot.second);
        if (has & 1) add(first, one, column);
        if (has & 2) add(second, other, next);
    }
};

// Loads four contiguous values.
__device__ __forceinline__ void load_side_by_side(const float *at, float *to) {
    float4 v = *reinterpret_cast<const float4 *>(at);
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
}
__device__ __forceinline__ void load_side_by_side(const double *at, double *to) {
    double2 v = reinterpret_cast<const double2 *>(at)[0], w = reinterpret_cast<const double2 *>(at)[1];
    to[0] = v.x, to[1] = v.y, to[2] = w.x, to[3] = w.y;
}

// Sums two rows of a slice. `table` is the warp's slot table, `values` are the values of the slice,
// and `mine` is the address of the lane's unit of the warp's columns.
template <u32 V, typename T, u32 N>
__device__ __forceinline__ RowPair<T, N> sum_pair(const u8 *table, const u8 *values, const u8 *mine,
                                               u32 full, u32 width, u32 row) {
    RowPair<T, N> pair;
    const uint2 *at = reinterpret_cast<const uint2 *>(table);
    const T *value = reinterpret_cast<const T *>(values);
    u32 k = 0;
#pragma unroll 1
    for (; k + 4 <= full; k += 4) {
        uint4 two = *reinterpret_cast<const uint4 *>(at + k), more = *reinterpret_cast<const uint4 *>(at + k + 2);
        uint2 place[4] = {{two.x, two.y}, {two.z, two.w}, {more.x, more.y}, {more.z, more.w}};
        T one[4], other[4];
        const T *own = value + k * WARP + row * V;
        if constexpr (V == 4) {
            load_side_by_side(own, one);
            load_side_by_side(own + 4, other);
        } else {
#pragma unroll
            for (u32 u = 0; u < 4; ++u) one[u] = own[u * WARP], other[u] = own[u * WARP + 1];
        }
#pragma unroll
        for (u32 u = 0; u < 4; ++u) pair.add_slot(mine, place[u], one[u], other[u]);
    }
    auto rest = [&](u32 slot) {
        pair.add_slot(mine, at[slot], value[slot * WARP + row], value[slot * WARP + row + 1]);
    };
    if (k < full) rest(k);
    if (k + 1 < full) rest(k + 1);
    if (k + 2 < full) rest(k + 2);
    const Partial *partial = reinterpret_cast<const Partial *>(table + padded(full * 2) * sizeof(u32));
#pragma unroll 3
    for (k = 0; k < width - full; ++k) pair.add_partial(mine, values, partial[k], row);
    return pair;
}

// Index words of the slot that a lane enters in the table.
struct SlotIndex {
    u32 place, mask;

    // Loads the words of a slice with this header; zeros if there is no such slot.
    __device__ __forceinline__ SlotIndex(const u32 *index, uint4 header, u32 lane) : place(0), mask(0) {
        SliceShape shape = SliceShape::of(header.w);
        if (lane >= shape.width) return;
        const u32 *at = index + u64(header.y) * UNIT_WORDS;
        at += lane < shape.full ? lane : padded(shape.full) + lane - shape.full;
        place = __ldg(at);
        if (lane >= shape.full) mask = __ldg(at + padded(shape.width - shape.full));
    }

    // Enters the slot in the table. The columns of the warp begin at position `from`.
    template <typename T>
    __device__ __forceinline__ void enter(u8 *table, u32 lane, u32 full, u32 width, u32 from,
                                          u32 half, u32 half_bytes, u32 bytes) const {
        u32 odd = place >> 16 & 1, half_number = place >> 16 & 0x7FFF, at = from + (place & 0xFFFF);
        at = min(at, at - half);
        u32 first = half_number * half_bytes + at * bytes, second = (half_number ^ 1) * half_bytes + (at + odd) * bytes;
        if (lane < full) reinterpret_cast<uint2 *>(table)[lane] = {first | (place & REUSES_COLUMN), second};
        if (width == full) return;
        u32 count = __popc(mask), before = count;
#pragma unroll
        for (u32 offset = 1; offset < WARP; offset *= 2) {
            u32 other = __shfl_up_sync(ALL_LANES, before, offset);
            if (lane >= offset) before += other;
        }
        if (lane < full || lane >= width) return;
        u32 values = (full * WARP + before - count) * u32(sizeof(T));
        reinterpret_cast<Partial *>(table + padded(full * 2) * sizeof(u32))[lane - full] =
            {first, second, mask, values};
    }
};

// A grid of as many blocks as run at the same time. In the header of a slice, the bytes of its
// values take the place of the base. `index` has for every slot the position of its column in the
// buffers, relative to that of the slice's first row: see window.rs. `most` is the maximum number
// of bytes of values of a slice.
template <u32 V, typename T, u32 N>
__device__ __forceinline__ void multiply_window(const uint4 *headers, const u8 *values,
                                                const u32 *index, u32 nrows,
                                                RingBuffers<Unit<T, N>> buffers, u32 most,
                                                UnitSums<T> sums) {
    // Static shared memory of the barriers, by which window.rs recognises that the kernel is not
    // empty.
    __shared__ u64 filled[STAGES], used[STAGES], copied[CONSUMERS][2];
    u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, consumers = blockDim.x / WARP - PRODUCERS;
    u32 rows = consumers * WARP, span = buffers.half * 2 - STAGES * rows;
    u64 slices = (u64(nrows) + WARP - 1) / WARP;
    u32 begin = u32(slices * blockIdx.x / gridDim.x), end = u32(slices * (blockIdx.x + 1) / gridDim.x);
    u32 iterations = (end - begin + consumers - 1) / consumers;
    if (threadIdx.x == 0) {
        for (u32 d = 0; d < STAGES; ++d) make_barrier(filled + d, PRODUCERS * WARP), make_barrier(used + d, consumers);
        for (u32 w = 0; w < consumers; ++w) make_barrier(copied[w], 1), make_barrier(copied[w] + 1, 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    buffers.fill(begin * WARP, 0, 0, span + rows, threadIdx.x, blockDim.x);
    end_copies();
    __syncthreads();

    if (warp >= consumers) {
        u32 place = (span + rows) / 2;
        for (u32 t = 1; t < iterations; ++t) {
            if (t >= STAGES) wait_for(used + t % STAGES, (t / STAGES - 1) & 1);
            buffers.fill(begin * WARP + t * rows, span, place, rows, threadIdx.x - rows, PRODUCERS * WARP);
            arrive_copied(filled + (t - 1) % STAGES);
            place += rows / 2;
            place = min(place, place - buffers.half);
        }
        end_copies();
        return;
    }

    // After the buffers, every warp has space for the values of two slices and for its slot table.
    constexpr u32 COLUMN = COLUMN_UNITS * sizeof(Unit<T, N>);
    u8 *own = buffers.bytes + buffers.bands * 2 * buffers.half_bytes() + warp * (2 * most + TABLE), *table = own + 2 * most;
    u32 slice = begin + warp, row = lane / COLUMN_UNITS * 2, unit = lane % COLUMN_UNITS, from = warp * (WARP / 2), phases = 0;
    const u8 *mine = buffers.bytes + row / 2 * COLUMN + unit * sizeof(Unit<T, N>);
    auto header_of = [&](u32 s) { return s < end ? __ldg(headers + s) : uint4{0, 0, 0, 0}; };
    auto copy_values = [&](uint4 header, u32 to) {
        if (lane == 0 && header.z)
            copy_range(own + to * most, values + u64(header.x) * ALIGNMENT, header.z, copied[warp] + to);
    };
    uint4 header = header_of(slice), next = header_of(slice + consumers);
    copy_values(header, 0);
    SlotIndex slot_index(index, header, lane);
#pragma unroll 1
    for (u32 t = 0; t < iterations; ++t, slice += consumers) {
        uint4 later = header_of(slice + 2 * consumers);
        copy_values(next, ~t & 1);
        SlotIndex next_index(index, next, lane);
        SliceShape shape = SliceShape::of(header.w);
        slot_index.enter<T>(table, lane, shape.full, shape.width, from, buffers.half, buffers.half_bytes(), COLUMN);
        __syncwarp();
        if (t > 0) wait_for(filled + (t - 1) % STAGES, ((t - 1) / STAGES) & 1);
        if (header.z) {
            wait_for(copied[warp] + (t & 1), phases >> (t & 1) & 1);
            phases ^= 1u << (t & 1);
        }
        RowPair<T, N> pair = sum_pair<V, T, N>(table, own + (t & 1) * most, mine, shape.full, shape.width, row);
        __syncwarp();
        if (lane == 0) arrive_at(used + t % STAGES);
        u64 r = u64(slice) * WARP + row;
        if (slice < end && unit < buffers.units) {
            if (r < nrows) sums.put(u32(r), unit, pair.first);
            if (r + 1 < nrows) sums.put(u32(r + 1), unit, pair.second);
        }
        header = next, next = later, slot_index = next_index;
        from += rows / 2;
        from = min(from, from - buffers.half);
    }
}

#define WINDOW_BODY(V, T, N)                                                                                           \
    extern __shared__ float4 shared[];                                                                                 \
    RingBuffers<Unit<T, N>> buffers{reinterpret_cast<u8 *>(shared), starts, bands, half, ncols, (vectors + N - 1) / N, \
                            UNIT_COLUMNS(T, N)};                                                                       \
    multiply_window<V>(headers, values, index, nrows, buffers, most, UNIT_SUMS(T));

#else

// Earlier GPUs have no such barriers, and earlier compilers do not support them: the kernels are
// empty there. window.rs detects that and uses psell_spmm.cuh instead.
#define WINDOW_BODY(V, T, N)

#endif

#define WINDOW(NAME, V, T, N)                                                                                                       \
    KERNEL_OF(NAME, (CONSUMERS + PRODUCERS) * WARP, 1)(const uint4 *headers, const u8 *values, const u32 *index, const int *starts, \
                                                    u32 bands, u32 half, u32 most, u32 nrows, u32 ncols, UNIT_PARAMETERS(T, N)) {   \
        WINDOW_BODY(V, T, N)                                                                                                        \
    }

WINDOW(psell_window_v1_f32, 1, float, 4)
WINDOW(psell_window_v4_f32, 4, float, 4)
WINDOW(psell_window_v1_f64, 1, double, 2)
WINDOW(psell_window_v4_f64, 4, double, 2)
