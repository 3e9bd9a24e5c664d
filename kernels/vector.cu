// Fused passes over vectors: every element is read once and written once. Coefficients and sums are
// numbers in GPU memory, the registers. When the sums are complete, a short program computes the
// next coefficients, without a round trip to the host. Sums are accumulated in 64 bits, in an order
// that depends only on the length and on the GPU. Sums that several GPUs share are those of fixed
// blocks of elements, in the order of the blocks: they do not depend on the number of GPUs.
//
// Selectable: one kernel at a time.

#include "common.cuh"
#include "peers.cuh"

OVERLAPPING

using namespace fused;

// Parameters of a pass besides its vectors, in the bits of one word.
struct PassShape {
    u64 bits;
    __device__ u32 code_len() const { return bits & 0xFF; }
    __device__ bool guarded() const { return bits >> 8 & 1; }
    __device__ bool backward() const { return bits >> 9 & 1; }
    // Second factors of both sums: PARTNER_ABSENT and so on.
    __device__ u32 first() const { return bits >> 16 & 7; }
    __device__ u32 second() const { return bits >> 20 & 7; }
    __device__ u32 sums() const { return u32(bits >> 32); }
};

// Registers, and the memory of the sums and programs that fill them.
struct ScalarRegisters {
    double *registers;
    double *partials;
    u32 *arrivals;
    const u64 *code;
};

// Status and coefficients of a pass, one in each of the first lanes of a warp: the status, 0 if it
// makes no difference to the pass, then the coefficients, 0 where absent. A warp fetches all of
// them with one load: all warps of the pass load these words, and the L2 answers one by one.
struct PassHead {
    static constexpr u32 COEFFICIENTS = 3;
    static constexpr u64 NO_COEFFICIENTS = ~u64(0);
    double own;

    // Begins a pass, which reads and writes nothing before. All threads call it.
    __device__ __forceinline__ PassHead(const double *registers, u64 coefficients, PassShape shape) {
        wait_for_previous_launch();
        trigger_next_launch();
        u32 lane = lane_id(), bits = ABSENT;
        if (lane == 0 && shape.guarded()) bits = STATUS;
        if (lane >= 1 && lane <= COEFFICIENTS) bits = u32(coefficients >> (16 * (lane - 1))) & 0xFFFF;
        own = 0;
        if (bits == ABSENT) return;
        own = __ldcg(registers + (bits & ~NEGATIVE));
        if (bits & NEGATIVE) own = -own;
    }

    // True if the pass is to do nothing.
    __device__ __forceinline__ bool is_stopped() const { return __shfl_sync(ALL_LANES, own, 0) != 0; }

    // Coefficient number `which`.
    template <typename T>
    __device__ __forceinline__ T coefficient(u32 which) const {
        return T(__shfl_sync(ALL_LANES, own, which + 1));
    }
};

// Two sums.
struct SumPair {
    double first, second;
};

// Sums over the block, in every thread.
__device__ __forceinline__ SumPair block_sums(SumPair sums) {
    __shared__ double2 warp_sums[WARPS];
    double first = subwarp_sum(sums.first, WARP), second = subwarp_sum(sums.second, WARP);
    // Protects the results of an earlier call.
    __syncthreads();
    if (threadIdx.x % WARP == 0) warp_sums[threadIdx.x / WARP] = make_double2(first, second);
    __syncthreads();
    SumPair total{};
#pragma unroll
    for (u32 w = 0; w < WARPS; ++w) total.first += warp_sums[w].x, total.second += warp_sums[w].y;
    return total;
}

// Sums of this thread over its share of `count` pairs, in their order.
__device__ __forceinline__ SumPair pair_sums(const double2 *pairs, u32 count) {
    constexpr u32 LOADED = 8;
    SumPair sums{};
    for (u32 base = threadIdx.x; base < count; base += LOADED * BLOCK) {
        double2 loaded[LOADED];
#pragma unroll
        for (u32 t = 0; t < LOADED; ++t) {
            u32 at = base + t * BLOCK;
            loaded[t] = at < count ? __ldcg(pairs + at) : make_double2(0, 0);
        }
#pragma unroll
        for (u32 t = 0; t < LOADED; ++t) sums.first += loaded[t].x, sums.second += loaded[t].y;
    }
    return sums;
}

// Runs a program in one thread, which reads from `window` and writes to `window` and `registers`.
// Few branches: the program is on the critical path of an iteration.
__device__ __forceinline__ void run_scalar_program(const u64 *code, u32 len, double *window, double *registers) {
    u64 next = code[0];
    for (u32 i = 0; i < len; ++i) {
        u64 word = next;
        next = code[min(i + 1, len - 1)];
        u32 operation = word & 0xFF, to = u32(word >> 16) & 0xFFFF;
        double a = window[u32(word >> 32) & 0xFFFF], b = window[u32(word >> 48)];
        if (operation >= STOP_AT_MOST) {
            bool stops = operation == STOP_AT_MOST ? a <= b
                         : operation == STOP_UNLESS_ABOVE ? !(a > b) : !(a - a == 0);
            if (!stops) continue;
            registers[STATUS] = to;
            return;
        }
        if (operation == PUSH) {
            registers[to + u64(b) % RING] = a;
            continue;
        }
        double result = operation == MUL ? a * b : operation == SUB ? a - b : a + b;
        if (operation == DIV) result = b == 0 ? 0 : a / b;
        if (operation == SQRT) result = sqrt(a);
        window[to] = result;
        registers[to] = result;
    }
}

// A register of the window and a word of the program, for the thread with their number.
struct ThreadProgram {
    double value;
    u64 word;
};

__device__ __forceinline__ ThreadProgram load_program(ScalarRegisters state, PassShape shape) {
    ThreadProgram program{};
    if (threadIdx.x < WINDOW) program.value = __ldcg(state.registers + threadIdx.x);
    if (threadIdx.x < shape.code_len()) program.word = state.code[threadIdx.x];
    return program;
}

// Adds the sums of all threads of the last block, and runs the program.
__device__ __forceinline__ void conclude(SumPair sums, ScalarRegisters state, ThreadProgram program,
                                         PassShape shape) {
    __shared__ double window[WINDOW];
    __shared__ u64 code[MAX_CODE];
    if (threadIdx.x < WINDOW) window[threadIdx.x] = program.value;
    if (threadIdx.x < MAX_CODE) code[threadIdx.x] = program.word;
    sums = block_sums(sums);
    if (threadIdx.x != 0) return;
    u32 at = shape.sums();
    state.registers[at] = sums.first;
    if (at < WINDOW) window[at] = sums.first;
    if (shape.second() != PARTNER_ABSENT) {
        state.registers[at + 1] = sums.second;
        if (at + 1 < WINDOW) window[at + 1] = sums.second;
    }
    run_scalar_program(code, shape.code_len(), window, state.registers);
}

// Elements of a pass for block `block` of `blocks`: its share of `n` elements from `start` on. The
// first `vectors16` vectors of 16 bytes are loaded by wide loads.
struct PassShare {
    u64 start, n, vectors16;
    u32 block, blocks;
    bool backward;
};

// Sums over the elements of this GPU.
struct OwnSums {
    // Calls `body` with the share of the block, and returns its sums, of this thread.
    template <typename Body>
    __device__ __forceinline__ SumPair each_share(u64 n, u64 vectors16, u32, PassShape shape, Body body) const {
        return body(PassShare{0, n, vectors16, blockIdx.x, gridDim.x, shape.backward()});
    }

    // Completes the sums: the last block to arrive adds the sums of all blocks in a fixed order.
    __device__ __forceinline__ void finish(SumPair sums, ScalarRegisters state, PassShape shape) const {
        sums = block_sums(sums);
        double2 *partials = reinterpret_cast<double2 *>(state.partials);
        if (threadIdx.x == 0) partials[blockIdx.x] = make_double2(sums.first, sums.second);
        if (!is_last_block(state.arrivals)) return;
        ThreadProgram program = load_program(state, shape);
        conclude(pair_sums(partials, gridDim.x), state, program, shape);
    }
};

// Sums over the elements of several GPUs, of which each has some blocks of elements. Every GPU has
// a table with the sums of all blocks of elements, and adds it in their order. A block of threads
// sums a block of elements and writes the sums to all tables. A pass is a round, as in peers.cu;
// tables have two halves. The order of the words is that of src/device/peers/sums.rs. Between hosts
// there are two passes: one writes the sums of the own blocks to the own table, and when NCCL has
// exchanged them another one, without blocks of its own, adds the table. The own flag is then a
// word of the host that counts the rounds; otherwise it is null.
struct PeerSums {
    const u64 *words;
    __device__ u32 blocks() const { return words[0]; }
    __device__ u32 first_block() const { return words[1]; }
    __device__ u32 all_blocks() const { return words[2]; }
    __device__ u32 block_elements() const { return words[3]; }
    __device__ u32 rank() const { return words[4]; }
    __device__ u32 parts() const { return words[5]; }
    // The number of complete rounds, and the arrivals of the blocks of a launch.
    __device__ u32 *state() const { return reinterpret_cast<u32 *>(words[6]); }
    __device__ const u32 *own_flags() const { return reinterpret_cast<u32 *>(words[7]); }
    __device__ Waits waits() const { return {reinterpret_cast<u32 *>(words[8]), words[9]}; }
    __device__ u64 half() const { return words[10]; }
    __device__ double2 *table(u32 part, u32 round) const {
        return reinterpret_cast<double2 *>(words[SUMS_HEAD + part * SUMS_PART]) + (round % 2) * half();
    }
    __device__ u32 *flag(u32 part) const { return reinterpret_cast<u32 *>(words[SUMS_HEAD + part * SUMS_PART + 1]); }

    // Calls `body` with the blocks of elements of the block of threads, and publishes their sums.
    template <typename Body>
    __device__ __forceinline__ SumPair each_share(u64 n, u64 vectors16, u32 size, PassShape shape, Body body) const {
        u32 elements = block_elements(), round = __ldcg(state()), all = blocks();
        for (u32 i = blockIdx.x; i < all; i += gridDim.x) {
            u32 block = shape.backward() ? all - 1 - i : i;
            u64 start = min(u64(block) * elements, n);
            u32 own = min(u64(elements), n - start);
            SumPair sums = body(PassShare{start, own, vectors16 > 0 ? own / size : 0, 0, 1, shape.backward()});
            sums = block_sums(sums);
            for (u32 part = threadIdx.x; part < parts(); part += BLOCK)
                table(part, round)[first_block() + block] = make_double2(sums.first, sums.second);
        }
        return {};
    }

    __device__ __forceinline__ void finish(SumPair, ScalarRegisters registers, PassShape shape) const {
        u32 round = __ldcg(state()), part = threadIdx.x;
        publish();
        if (!is_last_block(state() + 1)) return;
        bool complete = true;
        if (part < parts() && part != rank()) {
            signal(flag(part), round + 1);
            complete = is_signalled(own_flags() + part, round + 1, waits());
        }
        u32 *counted = flag(rank());
        if (counted != nullptr && part == 0) complete = *(volatile u32 *)waits().ended == 0;
        complete = __syncthreads_and(complete);
        SumPair sums = pair_sums(table(rank(), round), all_blocks());
        if (threadIdx.x == 0) {
            *state() = round + 1;
            if (counted != nullptr) signal(counted, round + 1);
        }
        // Programs stop at a sum that is no number.
        if (!complete) sums.first = sums.second = __longlong_as_double(0x7FF8000000000000);
        conclude(sums, registers, load_program(registers, shape), shape);
    }
};

// Vectors of 16 bytes in a line of the caches.
constexpr u64 LINE_VECTORS = 8;

// Elements that are loaded and stored together: 16 bytes.
template <typename T>
struct alignas(16) Vector16 {
    static constexpr u32 SIZE = 16 / sizeof(T);
    T at[SIZE];
};

// Calls `each(in, out)` for every element of a share of blocks. `in` has one element of every array
// of `from`, 0 for null arrays; `out` is stored to the arrays of `to`. Elements that are in no such
// vector are loaded one by one.
template <u32 INS, u32 OUTS, typename T, typename Each>
__device__ __forceinline__ void for_each_element(const T *const (&from)[INS], T *const (&to)[OUTS],
                                                 PassShare share, Each each) {
    constexpr u32 SIZE = Vector16<T>::SIZE;
    u64 vectors16 = share.vectors16, stride = u64(share.blocks) * BLOCK * LOADS;
    // Backward, warps store whole lines too: the first ones begin past the last vector.
    u64 span = share.backward ? (vectors16 + LINE_VECTORS - 1) / LINE_VECTORS * LINE_VECTORS : vectors16;
    for (u64 base = u64(share.block) * BLOCK * LOADS + threadIdx.x; base < span; base += stride) {
        Vector16<T> in[LOADS][INS];
        u64 at[LOADS];
        bool exists[LOADS];
#pragma unroll
        for (u32 t = 0; t < LOADS; ++t) {
            u64 i = base + t * BLOCK;
            at[t] = share.backward ? span - 1 - i : i;
            exists[t] = at[t] < vectors16;
            // Vectors past the end repeat the last one.
            at[t] = min(at[t], vectors16 - 1);
        }
#pragma unroll
        for (u32 k = 0; k < INS; ++k) {
            if (from[k] != nullptr) {
#pragma unroll
                for (u32 t = 0; t < LOADS; ++t)
                    in[t][k] = reinterpret_cast<const Vector16<T> *>(from[k] + share.start)[at[t]];
            } else {
#pragma unroll
                for (u32 t = 0; t < LOADS; ++t) in[t][k] = Vector16<T>{};
            }
        }
#pragma unroll
        for (u32 t = 0; t < LOADS; ++t) {
            if (!exists[t]) continue;
            Vector16<T> out[OUTS];
#pragma unroll
            for (u32 e = 0; e < SIZE; ++e) {
                T one_in[INS], one_out[OUTS];
#pragma unroll
                for (u32 k = 0; k < INS; ++k) one_in[k] = in[t][k].at[e];
                each(one_in, one_out);
#pragma unroll
                for (u32 k = 0; k < OUTS; ++k) out[k].at[e] = one_out[k];
            }
#pragma unroll
            for (u32 k = 0; k < OUTS; ++k)
                if (to[k] != nullptr) reinterpret_cast<Vector16<T> *>(to[k] + share.start)[at[t]] = out[k];
        }
    }
    u64 end = share.start + share.n;
    u64 rest = share.start + vectors16 * SIZE + u64(share.block) * BLOCK + threadIdx.x;
    for (u64 i = rest; i < end; i += u64(share.blocks) * BLOCK) {
        T one_in[INS], one_out[OUTS];
#pragma unroll
        for (u32 k = 0; k < INS; ++k) one_in[k] = from[k] != nullptr ? from[k][i] : T(0);
        each(one_in, one_out);
#pragma unroll
        for (u32 k = 0; k < OUTS; ++k)
            if (to[k] != nullptr) to[k][i] = one_out[k];
    }
}

// Σ a b and Σ a c. If b is null, the first sum is Σ a.
template <typename T, typename Sums>
__device__ __forceinline__ void dots(const T *__restrict__ a, const T *__restrict__ b,
                                     const T *__restrict__ c, u64 n, u64 vectors16,
                                     ScalarRegisters state, PassShape shape, Sums sums) {
    if (PassHead(state.registers, PassHead::NO_COEFFICIENTS, shape).is_stopped()) return;
    const T *const from[3] = {a, b, c};
    T *const to[1] = {nullptr};
    SumPair own = sums.each_share(n, vectors16, Vector16<T>::SIZE, shape, [&](PassShare share) {
        SumPair sum{};
        for_each_element(from, to, share, [&](const T(&in)[3], T(&)[1]) {
            sum.first += double(in[0]) * (b != nullptr ? double(in[1]) : 1.0);
            sum.second += double(in[0]) * double(in[2]);
        });
        return sum;
    });
    sums.finish(own, state, shape);
}

// Contribution of an element of the result, whose old value is `before`, to a sum.
template <typename T>
__device__ __forceinline__ double term(u32 partner, T out, T before, T other, T diagonal) {
    if (partner == PARTNER_CHANGE) return fabs(double(out) - double(before));
    double factor = partner == PARTNER_ITSELF ? double(out) : partner == PARTNER_OTHER
        ? double(other) : double(diagonal) * double(out);
    return double(out) * factor;
}

// y = keep y + with_u (d u) + with_v v, where each term may be absent, and up to two sums over the
// result.
template <typename T, typename Sums>
__device__ __forceinline__ void combine(T *__restrict__ y, const T *__restrict__ u,
                                        const T *__restrict__ v, const T *__restrict__ d,
                                        const T *__restrict__ w, u64 n, u64 vectors16, u64 coefficients,
                                        ScalarRegisters state, PassShape shape, u32 scales_u,
                                        Sums sums) {
    PassHead head(state.registers, coefficients, shape);
    if (head.is_stopped()) return;
    T keep = head.coefficient<T>(0), with_u = head.coefficient<T>(1), with_v = head.coefficient<T>(2);
    bool keeps = (coefficients & 0xFFFF) != ABSENT;
    u32 one = shape.first(), two = shape.second();
    const T *const from[5] = {keeps || one == PARTNER_CHANGE ? y : nullptr, u, v, d, w};
    T *const to[1] = {y};
    SumPair own = sums.each_share(n, vectors16, Vector16<T>::SIZE, shape, [&](PassShare share) {
        SumPair sum{};
        for_each_element(from, to, share, [&](const T(&in)[5], T(&out)[1]) {
            T scaled = scales_u ? in[1] * in[3] : in[1];
            T result = with_u * scaled + with_v * in[2];
            if (keeps) result += keep * in[0];
            out[0] = result;
            if (one != PARTNER_ABSENT) sum.first += term(one, result, in[0], in[4], in[3]);
            if (two != PARTNER_ABSENT) sum.second += term(two, result, in[0], in[4], in[3]);
        });
        return sum;
    });
    if (one != PARTNER_ABSENT) sums.finish(own, state, shape);
}

// x += along p; p = with_r (d r) + keep p. If d is null, p = with_r r + keep p.
template <typename T>
__device__ __forceinline__ void step(T *__restrict__ x, T *__restrict__ p, const T *__restrict__ r,
                                     const T *__restrict__ d, u64 n, u64 vectors16, u64 coefficients,
                                     const double *registers, PassShape shape) {
    PassHead head(registers, coefficients, shape);
    if (head.is_stopped()) return;
    T along = head.coefficient<T>(0), with_r = head.coefficient<T>(1), keep = head.coefficient<T>(2);
    const T *const from[4] = {x, p, r, d};
    T *const to[2] = {x, p};
    PassShare share{0, n, vectors16, blockIdx.x, gridDim.x, shape.backward()};
    for_each_element(from, to, share, [&](const T(&in)[4], T(&out)[2]) {
        out[0] = in[0] + along * in[1];
        out[1] = with_r * (d != nullptr ? in[3] * in[2] : in[2]) + keep * in[1];
    });
}

#define INSTANCES(SUFFIX, T)                                                                                                                 \
    KERNEL_WITH(vector_dots_##SUFFIX, DOTS_BLOCKS)(const T *a, const T *b, const T *c, u64 n, u64 vectors16, double *registers,              \
                                        double *partials, u32 *arrivals, const u64 *code, u64 shape) {                                       \
        dots(a, b, c, n, vectors16, ScalarRegisters{registers, partials, arrivals, code}, PassShape{shape}, OwnSums{});                      \
    }                                                                                                                                        \
    KERNEL_WITH(vector_combine_##SUFFIX, COMBINE_BLOCKS)(T *y, const T *u, const T *v, const T *d, const T *w, u64 n, u64 vectors16,         \
                                           u64 coefficients, double *registers, double *partials, u32 *arrivals,                             \
                                           const u64 *code, u64 shape, u32 scales_u) {                                                       \
        combine(y, u, v, d, w, n, vectors16, coefficients, ScalarRegisters{registers, partials, arrivals, code}, PassShape{shape}, scales_u, \
                OwnSums{});                                                                                                                  \
    }                                                                                                                                        \
    KERNEL_WITH(vector_step_##SUFFIX, STEP_BLOCKS)(T *x, T *p, const T *r, const T *d, u64 n, u64 vectors16, u64 coefficients,               \
                                        const double *registers, u64 shape) {                                                                \
        step(x, p, r, d, n, vectors16, coefficients, registers, PassShape{shape});                                                           \
    }                                                                                                                                        \
    KERNEL_WITH(vector_peer_dots_##SUFFIX, PEER_BLOCKS)(const T *a, const T *b, const T *c, u64 n, u64 vectors16, double *registers,         \
                                             const u64 *peers, const u64 *code, u64 shape) {                                                 \
        dots(a, b, c, n, vectors16, ScalarRegisters{registers, nullptr, nullptr, code}, PassShape{shape}, PeerSums{peers});                  \
    }                                                                                                                                        \
    KERNEL_WITH(vector_peer_combine_##SUFFIX, PEER_BLOCKS)(T *y, const T *u, const T *v, const T *d, const T *w, u64 n, u64 vectors16,       \
                                                u64 coefficients, double *registers, const u64 *peers, const u64 *code, u64 shape,           \
                                                u32 scales_u) {                                                                              \
        combine(y, u, v, d, w, n, vectors16, coefficients, ScalarRegisters{registers, nullptr, nullptr, code}, PassShape{shape}, scales_u,   \
                PeerSums{peers});                                                                                                            \
    }

INSTANCES(f32, float)
INSTANCES(f64, double)
