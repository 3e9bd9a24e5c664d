// Exchange of vector elements among GPUs that access each other's memory, and rows of a part: see
// src/device/peers/exchange.rs.
//
// Every exchange is a round. A part writes the elements that its neighbours need to their inboxes,
// and signals them; it then waits for the signals of its neighbours. An inbox has two halves for
// rounds of either parity: a neighbour writes the next round while this one is being read, but not
// the one after that, since it waits for this part in between.

#include "common.cuh"
#include "peers.cuh"

// State of an exchange: the number of complete rounds, and the arrivals of the blocks of a launch.
struct ExchangeState {
    u32 *words;
    __device__ u32 round() const { return __ldcg(words); }
    __device__ u32 *arrivals() const { return words + 1; }
};

// Writes `elements` of `count` interleaved vectors to the neighbours. `table` has for each neighbour
// the end of its elements, the address of their place in its inbox, the number of elements of half
// the inbox, and the address of its flag.
template <typename T>
__device__ __forceinline__ void send(const T *x, const u32 *elements, u32 count, const u64 *table, u32 neighbours,
                                     ExchangeState state) {
    u32 round = state.round();
    u64 begin = 0;
    for (u32 n = 0; n < neighbours; ++n) {
        u64 end = table[n * NEIGHBOUR];
        T *inbox = reinterpret_cast<T *>(table[n * NEIGHBOUR + 1]) + (round % 2) * table[n * NEIGHBOUR + 2];
        for (u64 i = begin * count + thread_id(); i < end * count; i += u64(gridDim.x) * BLOCK)
            inbox[i - begin * count] = gather(x + u64(elements[i / count]) * count + i % count);
        begin = end;
    }
    publish();
    if (is_last_block(state.arrivals()) && threadIdx.x < neighbours)
        signal(reinterpret_cast<u32 *>(table[threadIdx.x * NEIGHBOUR + 3]), round + 1);
}

// Waits for the neighbours, and writes what they sent to `used`, around the `own_count` own elements
// that boundary rows use, which begin at place `own_place`.
template <typename T>
__device__ __forceinline__ void receive(T *used, const T *x, const u32 *own, u64 own_count, u64 own_place, const T *inbox, u64 received,
                                        u32 count, const u32 *flags, u32 neighbours, ExchangeState state, Waits waits) {
    u64 stride = u64(gridDim.x) * BLOCK;
    for (u64 i = thread_id(); i < own_count * count; i += stride)
        used[own_place * count + i] = gather(x + u64(own[i / count]) * count + i % count);
    u32 round = state.round();
    if (threadIdx.x < neighbours) is_signalled(flags + threadIdx.x, round + 1, waits);
    __syncthreads();
    inbox += (round % 2) * received * count;
    for (u64 i = thread_id(); i < received * count; i += stride)
        used[i < own_place * count ? i : i + own_count * count] = __ldcg(inbox + i);
    if (is_last_block(state.arrivals()) && threadIdx.x == 0) *state.words = round + 1;
}

// y[rows[i]] = products[i], of `count` interleaved vectors.
template <typename T>
__device__ __forceinline__ void place(T *y, const u32 *rows, const T *products, u64 elements, u32 count) {
    for (u64 i = thread_id(); i < elements; i += u64(gridDim.x) * BLOCK) y[u64(rows[i / count]) * count + i % count] = products[i];
}

#define INSTANCES(SUFFIX, T)                                                                                                   \
    KERNEL(peers_send_##SUFFIX)(const T *x, const u32 *elements, u32 count, const u64 *table, u32 neighbours, \
                               u32 *state) {                                                                                   \
        send(x, elements, count, table, neighbours, ExchangeState{state});                                            \
    }                                                                                                                          \
    KERNEL(peers_receive_##SUFFIX)(T *used, const T *x, const u32 *own, u64 own_count, u64 own_place, const T *inbox,            \
                                  u64 received, u32 count, const u32 *flags, u32 neighbours, u32 *state, u32 *ended,            \
                                  u64 limit) {                                                                                 \
        receive(used, x, own, own_count, own_place, inbox, received, count, flags, neighbours, ExchangeState{state},           \
                Waits{ended, limit});                                                                                          \
    }                                                                                                                          \
    KERNEL(peers_place_##SUFFIX)(T *y, const u32 *rows, const T *products, u64 elements, u32 count) {                           \
        place(y, rows, products, elements, count);                                                                             \
    }

INSTANCES(f32, float)
INSTANCES(f64, double)
