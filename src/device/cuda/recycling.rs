//! Memory that a build frees and allocates again: a call of the driver that allocates memory takes
//! some 60 µs, and one that frees it some 30.

use super::Gpu;
use std::cell::RefCell;

/// Largest ratio of freed memory to what is allocated in it.
const MAX_RATIO: f64 = 1.125;

/// Freed memory of a GPU.
struct Freed {
    gpu: Gpu,
    address: u64,
    bytes: usize,
}

thread_local! {
    /// Memory that this thread has freed during a build; `None` outside of builds.
    static FREED: RefCell<Option<Vec<Freed>>> = const { RefCell::new(None) };
}

/// Guard during which this thread keeps the memory that it frees, for memory that it allocates. The
/// rest is freed at the end.
pub(crate) struct Recycling {
    /// True if there is no other guard.
    is_first: bool,
}

impl Recycling {
    /// Begins.
    pub(crate) fn new() -> Self {
        let begin = |freed: &mut Option<Vec<Freed>>| {
            let is_first = freed.is_none();
            freed.get_or_insert_default();
            is_first
        };
        Self { is_first: with(begin).unwrap_or(false) }
    }
}

impl Drop for Recycling {
    fn drop(&mut self) {
        if self.is_first {
            with(Option::take).flatten().into_iter().flatten().for_each(Freed::free);
        }
    }
}

impl Freed {
    fn free(self) {
        super::memory::free(self.gpu, self.address);
    }
}

/// Calls `with` with the memory that this thread keeps; `None` while the thread ends.
fn with<R>(with: impl FnOnce(&mut Option<Vec<Freed>>) -> R) -> Option<R> {
    FREED.try_with(|freed| with(&mut freed.borrow_mut())).ok()
}

/// Memory of a GPU for `bytes` bytes that this thread has freed; `None` if there is none of about
/// this size.
pub(super) fn take(gpu: Gpu, bytes: usize) -> Option<u64> {
    let most = (bytes as f64 * MAX_RATIO) as usize;
    with(|freed| {
        let freed = freed.as_mut()?;
        let fits = |memory: &Freed| memory.gpu == gpu && (bytes..=most).contains(&memory.bytes);
        let places = freed.iter().enumerate().filter(|(_, memory)| fits(memory));
        let (place, _) = places.min_by_key(|(_, memory)| memory.bytes)?;
        Some(freed.swap_remove(place).address)
    })?
}

/// Keeps memory for later, after all work that may use it. False if it is to be freed: this thread
/// does not build an operator, or work has failed.
pub(super) fn keep(gpu: Gpu, address: u64, bytes: usize) -> bool {
    let builds = with(|freed| freed.is_some()).unwrap_or(false);
    if !builds || gpu.synchronize().is_err() {
        return false;
    }
    let push = |freed: &mut Option<Vec<Freed>>| {
        freed.as_mut().map(|freed| freed.push(Freed { gpu, address, bytes }))
    };
    with(push).flatten().is_some()
}

/// Frees all memory that this thread keeps. False if there is none.
pub(super) fn free_all() -> bool {
    let all = with(|freed| freed.as_mut().map(std::mem::take)).flatten().unwrap_or_default();
    let any = !all.is_empty();
    all.into_iter().for_each(Freed::free);
    any
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;
    use crate::testing::devices;

    #[test]
    fn freed_memory_is_used_again_during_a_build() {
        let gpu = devices().iter().find_map(|device| match device {
            Device::Cuda(gpu) => Some(*gpu),
            Device::Cpu => None,
        });
        let Some(gpu) = gpu else { return };
        let allocate = |len| gpu.uninitialised::<u32>(len).unwrap();
        let address = |len| allocate(len).ptr().address();
        let guard = Recycling::new();
        let (large, small) = (address(1 << 20), address(1 << 10));
        drop(Recycling::new());
        // The smaller one does not fit, and the larger one is too large.
        let others = [allocate(1 << 19), allocate(1 << 11)];
        assert!(others.iter().all(|other| ![large, small].contains(&other.ptr().address())));
        let (first, second) = (allocate(1_000_000), allocate(1_000_000));
        assert_eq!(first.ptr().address(), large);
        assert_ne!(second.ptr().address(), large, "it is in use");
        assert_eq!(address(1 << 10), small);
        assert!(free_all() && !free_all());
        drop((first, second));
        drop(guard);
        assert!(!free_all());
        assert!(take(gpu, 4_000_000).is_none());
    }
}
