// Exchange of vector elements among GPUs that access each other's memory, and rows of a part: see
// src/device/peers/exchange.rs.
//
// Every exchange is a round. A part writes the elements that its neighbours need to their inboxes,
// and signals them; it then waits for the signals of its neighbours. An inbox has two halves for
// rounds of either parity: a neighbour writes the next round while this one is being read, but not
// the one after that, since it waits for this part in between. Between hosts a part writes to
// memory of its own, from which NCCL sends, and `receive` follows NCCL without waiting: halves are
// empty, and there are no neighbours. Words of the host then count the rounds begun and completed.

#include "common.cuh"
#include "peers.cuh"

OVERLAPPING

// Elements that a thread loads before it stores them.
constexpr u32 LOADED = 4;

// State of an exchange: the number of complete rounds, and the arrivals of the blocks of a launch.
struct ExchangeState {
    u32 *words;
    __device__ u32 round() const { return __ldcg(words); }
    __device__ u32 *arrivals() const { return words + 1; }
};

// Element and vector of a number in `count` interleaved vectors.
struct ElementPlace {
    u64 element;
    u32 vector;
    __device__ __forceinline__ ElementPlace(u64 number, u32 count)
        : element(count == 1 ? number : number / count), vector(count == 1 ? 0 : u32(number % count)) {}
    __device__ __forceinline__ u64 of(u64 element, u32 count) const { return element * count + vector; }
};

// Stores what `load` returns for the numbers from `begin` to `end` to the places `to`, several at a
// time.
template <typename T, typename Load, typename To>
__device__ __forceinline__ void copy(u64 begin, u64 end, Load load, To to) {
    u64 stride = u64(gridDim.x) * BLOCK;
    for (u64 base = begin + thread_id(); base < end; base += LOADED * stride) {
        T loaded[LOADED], *place[LOADED];
#pragma unroll
        for (u32 t = 0; t < LOADED; ++t) {
            u64 i = base + t * stride;
            if (i < end) loaded[t] = load(i), place[t] = to(i);
        }
#pragma unroll
        for (u32 t = 0; t < LOADED; ++t)
            if (base + t * stride < end) *place[t] = loaded[t];
    }
}

// Writes `elements` of `count` interleaved vectors to the neighbours. `table` has for each
// neighbour the end of its elements, the address of their place in its inbox, the number of
// elements of half the inbox, and the address of its flag.
template <typename T>
__device__ __forceinline__ void send(const T *x, const u32 *elements, u32 count, const u64 *table, u32 neighbours,
                                     ExchangeState state) {
    wait_for_previous_launch();
    trigger_next_launch();
    u32 round = state.round();
    u64 begin = 0;
    for (u32 n = 0; n < neighbours; ++n) {
        u64 end = table[n * NEIGHBOUR];
        T *inbox = reinterpret_cast<T *>(table[n * NEIGHBOUR + 1]) + (round % 2) * table[n * NEIGHBOUR + 2];
        copy<T>(begin * count, end * count, [=](u64 i) {
            ElementPlace from(i, count);
            return gather(x + from.of(elements[from.element], count));
        }, [=](u64 i) { return inbox + (i - begin * count); });
        begin = end;
    }
    publish();
    if (is_last_block(state.arrivals()) && threadIdx.x < neighbours)
        signal(reinterpret_cast<u32 *>(table[threadIdx.x * NEIGHBOUR + 3]), round + 1);
}

// Waits for the neighbours, and writes what they sent to `used`, around the `own_count` own
// elements that boundary rows use, of which the first is used element `own_place`. The elements are
// in their order, or at `places`. `completed` counts the rounds, unless it is null.
template <typename T>
__device__ __forceinline__ void receive(T *used, const T *x, const u32 *own, u64 own_count,
                                        u64 own_place, const u32 *places, const T *inbox,
                                        u64 received, u64 half, u32 count, const u32 *flags,
                                        u32 neighbours, ExchangeState state, u32 *completed,
                                        Waits waits) {
    wait_for_previous_launch();
    auto place_of = [=](u64 element) { return places ? u64(places[element]) : element; };
    copy<T>(0, own_count * count, [=](u64 i) {
        ElementPlace from(i, count);
        return gather(x + from.of(own[from.element], count));
    }, [=](u64 i) {
        ElementPlace from(i, count);
        return used + from.of(place_of(own_place + from.element), count);
    });
    u32 round = state.round();
    if (threadIdx.x < neighbours) is_signalled(flags + threadIdx.x, round + 1, waits);
    __syncthreads();
    // Not before: blocks that wait would take the place of the interior rows beside this launch.
    trigger_next_launch();
    inbox += (round % 2) * half;
    copy<T>(0, received * count, [=](u64 i) { return __ldcg(inbox + i); }, [=](u64 i) {
        ElementPlace from(i, count);
        u64 element = from.element < own_place ? from.element : from.element + own_count;
        return used + from.of(place_of(element), count);
    });
    if (is_last_block(state.arrivals()) && threadIdx.x == 0) {
        *state.words = round + 1;
        if (completed != nullptr) signal(completed, round + 1);
    }
}

// y[rows[i]] = products[i], of `count` interleaved vectors.
template <typename T>
__device__ __forceinline__ void place(T *y, const u32 *rows, const T *products, u64 elements, u32 count) {
    wait_for_previous_launch();
    trigger_next_launch();
    for (u64 i = thread_id(); i < elements; i += u64(gridDim.x) * BLOCK) {
        ElementPlace to(i, count);
        y[to.of(rows[to.element], count)] = gather(products + i);
    }
}

#define INSTANCES(SUFFIX, T)                                                                                             \
    KERNEL(peers_send_##SUFFIX)(const T *x, const u32 *elements, u32 count, const u64 *table, u32 neighbours, u32 *state) {\
        send(x, elements, count, table, neighbours, ExchangeState{state});                                               \
    }                                                                                                                    \
    KERNEL(peers_receive_##SUFFIX)(T *used, const T *x, const u32 *own, u64 own_count, u64 own_place, const u32 *places, \
                                  const T *inbox, u64 received, u64 half, u32 count, const u32 *flags, u32 neighbours,   \
                                  u32 *state, u32 *completed, u32 *ended, u64 limit) {                                   \
        receive(used, x, own, own_count, own_place, places, inbox, received, half, count, flags, neighbours,             \
                ExchangeState{state}, completed, Waits{ended, limit});                                                   \
    }                                                                                                                    \
    KERNEL(peers_place_##SUFFIX)(T *y, const u32 *rows, const T *products, u64 elements, u32 count) {                    \
        place(y, rows, products, elements, count);                                                                       \
    }

INSTANCES(f32, float)
INSTANCES(f64, double)
