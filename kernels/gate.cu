// Launch gate: see src/device/cuda/launch_gate.rs.

#include "common.cuh"

// Waits, in one thread, until the host opens the gate with this number or a later one, for at most
// `timeout` ns. `opened`, the number of the last open gate, is in page-locked memory of the host.
KERNEL_OF(gate_wait, 1, 1)(const u32 *opened, u32 number, u64 timeout) {
    const volatile u32 *current = opened;
    u64 start = nanoseconds();
    while (int(*current - number) < 0 && nanoseconds() - start < timeout) {}
}
