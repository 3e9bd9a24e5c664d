//! Allocator with a reserve for small allocations.
//!
//! Allocations of the size of a matrix return an error if the system refuses memory. Those of
//! tables, texts and threads end the process, as in every Rust program. The program, the C library
//! and the Python package use [`Reserve`]: if the system refuses a small allocation, it has a slot
//! of a static array. While few slots are left, allocations that can fail are refused, so that work
//! ends in an error before the last slot is taken.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Greatest alignment of an allocation in the reserve.
const ALIGNMENT: usize = 256;

/// Sizes of slots in bytes, ascending, multiples of [`ALIGNMENT`].
const SIZES: [usize; 3] = [256, 4 << 10, if cfg!(miri) { 8 << 10 } else { 64 << 10 }];

/// Slots of each size: 64 for each number here, which are bits of a word.
const WORDS: [usize; 3] = if cfg!(miri) { [2, 1, 1] } else { [32, 4, 1] };

/// Bytes of the reserve.
const BYTES: usize = 64 * (SIZES[0] * WORDS[0] + SIZES[1] * WORDS[1] + SIZES[2] * WORDS[2]);

/// Slots of the sizes, one size after the other.
#[repr(align(256))]
struct ReserveSlots {
    /// Not mapped by the system before it is used.
    memory: UnsafeCell<[u8; BYTES]>,
    /// A set bit for each slot that is in use.
    taken: [AtomicU64; WORDS[0] + WORDS[1] + WORDS[2]],
}

// SAFETY: the bytes of a slot belong to the one allocation that set its bit.
unsafe impl Sync for ReserveSlots {}

static SLOTS: ReserveSlots = ReserveSlots::new();

/// Size of the slots of each word, and the byte where they begin.
fn words() -> impl Iterator<Item = (usize, usize)> {
    let mut start = 0;
    let sizes = SIZES.into_iter().zip(WORDS);
    sizes.flat_map(|(size, words)| std::iter::repeat_n(size, words)).map(move |size| {
        let first = start;
        start += 64 * size;
        (size, first)
    })
}

impl ReserveSlots {
    const fn new() -> Self {
        Self {
            memory: UnsafeCell::new([0; BYTES]),
            taken: [const { AtomicU64::new(0) }; WORDS[0] + WORDS[1] + WORDS[2]],
        }
    }

    /// Takes a slot; null if none is free or fits.
    fn take(&self, layout: Layout) -> *mut u8 {
        for ((size, first), taken) in words().zip(&self.taken) {
            if layout.size() > size || layout.align() > ALIGNMENT {
                continue;
            }
            while taken.load(Relaxed) != u64::MAX {
                let bit = taken.load(Relaxed).trailing_ones().min(63);
                if taken.fetch_or(1 << bit, Acquire) >> bit & 1 == 0 {
                    let start = first + bit as usize * size;
                    return self.memory.get().cast::<u8>().wrapping_add(start);
                }
            }
        }
        std::ptr::null_mut()
    }

    /// Position of a pointer in the reserve, if it is one of it.
    fn position(&self, pointer: *mut u8) -> Option<usize> {
        let at = pointer.addr().wrapping_sub(self.memory.get().addr());
        (at < BYTES).then_some(at)
    }

    /// Gives a slot back; false if the pointer is none of the reserve.
    fn give(&self, pointer: *mut u8) -> bool {
        let Some(at) = self.position(pointer) else { return false };
        for ((size, first), taken) in words().zip(&self.taken) {
            if (first..first + 64 * size).contains(&at) {
                taken.fetch_and(!(1 << ((at - first) / size)), Release);
            }
        }
        true
    }

    /// True if more than a quarter of the slots of a size are in use.
    fn is_low(&self) -> bool {
        let mut first = 0;
        WORDS.into_iter().any(|words| {
            let taken = &self.taken[first..first + words];
            first += words;
            let count: u32 = taken.iter().map(|word| word.load(Relaxed).count_ones()).sum();
            count as usize > 16 * words
        })
    }
}

/// True if little of the reserve is left.
pub(super) fn is_low() -> bool {
    SLOTS.is_low()
}

/// Allocator that has slots for small allocations which `A` refuses: up to 64 KiB each, 5 MiB in
/// all.
///
/// ```
/// #[global_allocator]
/// static ALLOCATOR: sparseop::Reserve<std::alloc::System> =
///     sparseop::Reserve::new(std::alloc::System);
/// ```
pub struct Reserve<A> {
    system: A,
    slots: &'static ReserveSlots,
}

impl<A> Reserve<A> {
    /// The allocator `system`, with the reserve of the process.
    pub const fn new(system: A) -> Self {
        Self { system, slots: &SLOTS }
    }
}

// SAFETY: a pointer is one of `A`, or of a slot of at least the size and alignment of its layout,
// which is taken until the pointer is freed.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Reserve<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        let pointer = unsafe { self.system.alloc(layout) };
        if pointer.is_null() { self.slots.take(layout) } else { pointer }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        let pointer = unsafe { self.system.alloc_zeroed(layout) };
        if !pointer.is_null() {
            return pointer;
        }
        let slot = self.slots.take(layout);
        if !slot.is_null() {
            // SAFETY: the slot has this size.
            unsafe { slot.write_bytes(0, layout.size()) };
        }
        slot
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        if !self.slots.give(pointer) {
            // SAFETY: the caller's promise, and the pointer is one of `A`.
            unsafe { self.system.dealloc(pointer, layout) };
        }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's promise: `size` is a valid size for this alignment.
        let wanted = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        let new = if self.slots.position(pointer).is_some() {
            // SAFETY: as above.
            unsafe { self.alloc(wanted) }
        } else {
            // SAFETY: the caller's promise, and the pointer is one of `A`.
            let grown = unsafe { self.system.realloc(pointer, layout, size) };
            if !grown.is_null() {
                return grown;
            }
            self.slots.take(wanted)
        };
        if !new.is_null() {
            // SAFETY: both have the lesser size, and are apart.
            unsafe {
                new.copy_from_nonoverlapping(pointer, size.min(layout.size()));
                self.dealloc(pointer, layout);
            }
        }
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Refuses everything.
    struct Nothing;

    // SAFETY: null is an allocation that failed.
    unsafe impl GlobalAlloc for Nothing {
        unsafe fn alloc(&self, _: Layout) -> *mut u8 {
            std::ptr::null_mut()
        }

        unsafe fn dealloc(&self, _: *mut u8, _: Layout) {
            unreachable!()
        }
    }

    /// An allocator that serves all from a reserve of its own: the library refuses allocations
    /// while little is left in that of the process.
    fn without_system(slots: &'static ReserveSlots) -> Reserve<Nothing> {
        Reserve { system: Nothing, slots }
    }

    #[test]
    fn threads_have_slots_of_their_own() {
        static OWN: ReserveSlots = ReserveSlots::new();
        let layout = Layout::from_size_align(4000, 8).unwrap();
        let rounds = if cfg!(miri) { 10 } else { 2000 };
        let work = |thread: u8| {
            for _ in 0..rounds {
                // SAFETY: a size above zero; four threads have fewer slots than there are.
                unsafe {
                    let slot = without_system(&OWN).alloc(layout);
                    slot.write_bytes(thread, 4000);
                    std::thread::yield_now();
                    let bytes = std::slice::from_raw_parts(slot, 4000);
                    assert!(bytes.iter().all(|byte| *byte == thread));
                    without_system(&OWN).dealloc(slot, layout);
                }
            }
        };
        std::thread::scope(|scope| {
            (0..4).for_each(|thread| drop(scope.spawn(move || work(thread))))
        });
    }

    #[test]
    fn slots_are_apart_and_used_again() {
        static OWN: ReserveSlots = ReserveSlots::new();
        let layout = |size| Layout::from_size_align(size, 16).unwrap();
        let reserve = without_system(&OWN);
        // The slots of all sizes, the small ones first.
        let count = 64 * WORDS.iter().sum::<usize>();
        for round in 0..3 {
            let fill = |i: usize| (i % 251) as u8;
            let taken: Vec<_> = (0..count)
                // SAFETY: sizes above zero.
                .map(|_| unsafe { reserve.alloc_zeroed(layout(200)) })
                .inspect(|pointer| assert!(!pointer.is_null()))
                .collect();
            assert!(OWN.is_low());
            // SAFETY: a size above zero.
            assert!(unsafe { reserve.alloc(layout(1)) }.is_null(), "round {round}");
            for (i, pointer) in taken.iter().enumerate() {
                // SAFETY: as many bytes are allocated.
                unsafe { pointer.write_bytes(fill(i), 200) };
            }
            for (i, pointer) in taken.iter().enumerate() {
                // SAFETY: as above, initialised.
                let bytes = unsafe { std::slice::from_raw_parts(*pointer, 200) };
                assert!(bytes.iter().all(|byte| *byte == fill(i)));
            }
            // SAFETY: allocated with this layout.
            taken.iter().for_each(|pointer| unsafe { reserve.dealloc(*pointer, layout(200)) });
            assert!(!OWN.is_low());
        }
        let largest = SIZES[2];
        // SAFETY: sizes above zero, and layouts of the allocations.
        unsafe {
            let small = reserve.alloc(layout(3));
            small.copy_from(b"abc".as_ptr(), 3);
            let grown = reserve.realloc(small, layout(3), largest);
            assert_eq!(std::slice::from_raw_parts(grown, 3), b"abc");
            assert!(reserve.realloc(grown, layout(largest), largest + 1).is_null());
            reserve.dealloc(grown, layout(largest));
            assert!(reserve.alloc(Layout::from_size_align(8, 512).unwrap()).is_null());
        }
    }
}
