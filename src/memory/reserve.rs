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

/// ReserveSlots of one size: as many as `taken` has bits.
struct ReserveSlots {
    /// Bytes of a slot.
    size: usize,
    /// Byte of the reserve where the slots begin.
    start: usize,
    /// A set bit for each slot that is in use.
    taken: &'static [AtomicU64],
}

/// Greatest alignment of an allocation in the reserve.
const ALIGNMENT: usize = 256;

/// Sizes of slots in bytes, ascending, multiples of [`ALIGNMENT`].
const SIZES: [usize; 3] = [256, 4 << 10, 64 << 10];

/// Number of 64 slots of each size.
const WORDS: [usize; 3] = [32, 4, 1];

/// Bytes of the reserve.
const BYTES: usize = 64 * (SIZES[0] * WORDS[0] + SIZES[1] * WORDS[1] + SIZES[2] * WORDS[2]);

#[repr(align(256))]
struct Backing(UnsafeCell<[u8; BYTES]>);

// SAFETY: the bytes of a slot belong to the one allocation that set its bit.
unsafe impl Sync for Backing {}

/// Not mapped by the system before it is used.
static BACKING: Backing = Backing(UnsafeCell::new([0; BYTES]));

static SMALL: [AtomicU64; WORDS[0]] = [const { AtomicU64::new(0) }; WORDS[0]];
static MEDIUM: [AtomicU64; WORDS[1]] = [const { AtomicU64::new(0) }; WORDS[1]];
static LARGE: [AtomicU64; WORDS[2]] = [const { AtomicU64::new(0) }; WORDS[2]];

static SLOTS: [ReserveSlots; 3] = [
    ReserveSlots { size: SIZES[0], start: 0, taken: &SMALL },
    ReserveSlots { size: SIZES[1], start: 64 * SIZES[0] * WORDS[0], taken: &MEDIUM },
    ReserveSlots { size: SIZES[2], start: BYTES - 64 * SIZES[2] * WORDS[2], taken: &LARGE },
];

impl ReserveSlots {
    /// Takes a free slot.
    fn take(&self) -> Option<usize> {
        for (word, taken) in self.taken.iter().enumerate() {
            while taken.load(Relaxed) != u64::MAX {
                let bit = taken.load(Relaxed).trailing_ones().min(63);
                if taken.fetch_or(1 << bit, Acquire) >> bit & 1 == 0 {
                    return Some(self.start + (64 * word + bit as usize) * self.size);
                }
            }
        }
        None
    }

    fn bytes(&self) -> usize {
        64 * self.taken.len() * self.size
    }
}

/// A slot of the reserve, or null.
fn take(layout: Layout) -> *mut u8 {
    if layout.align() > ALIGNMENT {
        return std::ptr::null_mut();
    }
    let fits = SLOTS.iter().filter(|slots| layout.size() <= slots.size);
    match fits.filter_map(ReserveSlots::take).next() {
        Some(start) => BACKING.0.get().cast::<u8>().wrapping_add(start),
        None => std::ptr::null_mut(),
    }
}

/// Gives a slot back; false if the pointer is none of the reserve.
fn give(pointer: *mut u8) -> bool {
    let at = pointer.addr().wrapping_sub(BACKING.0.get().addr());
    let Some(slots) = SLOTS.iter().find(|slots| at.wrapping_sub(slots.start) < slots.bytes())
    else {
        return false;
    };
    let slot = (at - slots.start) / slots.size;
    slots.taken[slot / 64].fetch_and(!(1 << (slot % 64)), Release);
    true
}

/// True if more than a quarter of the slots of a size are in use.
pub(super) fn is_low() -> bool {
    SLOTS.iter().any(|slots| {
        let taken: u32 = slots.taken.iter().map(|word| word.load(Relaxed).count_ones()).sum();
        taken as usize > 16 * slots.taken.len()
    })
}

/// Allocator that has slots for small allocations which `A` refuses: up to 64 KiB each, 5 MiB in
/// all.
///
/// ```
/// #[global_allocator]
/// static ALLOCATOR: sparseop::Reserve<std::alloc::System> = sparseop::Reserve(std::alloc::System);
/// ```
pub struct Reserve<A>(pub A);

// SAFETY: a pointer is one of `A`, or of a slot of at least the size and alignment of its layout,
// which is taken until the pointer is freed.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Reserve<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        let pointer = unsafe { self.0.alloc(layout) };
        if pointer.is_null() { take(layout) } else { pointer }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        let pointer = unsafe { self.0.alloc_zeroed(layout) };
        if !pointer.is_null() {
            return pointer;
        }
        let slot = take(layout);
        if !slot.is_null() {
            // SAFETY: the slot has this size.
            unsafe { slot.write_bytes(0, layout.size()) };
        }
        slot
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        if !give(pointer) {
            // SAFETY: the caller's promise, and the pointer is one of `A`.
            unsafe { self.0.dealloc(pointer, layout) };
        }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let at = pointer.addr().wrapping_sub(BACKING.0.get().addr());
        if at >= BYTES {
            // SAFETY: the caller's promise, and the pointer is one of `A`.
            let grown = unsafe { self.0.realloc(pointer, layout, size) };
            if !grown.is_null() {
                return grown;
            }
        }
        // SAFETY: the caller's promise: `size` is a valid size for this alignment.
        let new = unsafe { self.alloc(Layout::from_size_align_unchecked(size, layout.align())) };
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

    /// Held by the test that uses the reserve.
    static IN_USE: std::sync::Mutex<()> = std::sync::Mutex::new(());

    #[test]
    fn threads_have_slots_of_their_own() {
        let _in_use = IN_USE.lock();
        let layout = Layout::from_size_align(4000, 8).unwrap();
        let work = |thread: u8| {
            for _ in 0..2000 {
                // SAFETY: a size above zero; four threads have fewer slots than there are.
                unsafe {
                    let slot = Reserve(Nothing).alloc(layout);
                    slot.write_bytes(thread, 4000);
                    std::thread::yield_now();
                    let bytes = std::slice::from_raw_parts(slot, 4000);
                    assert!(bytes.iter().all(|byte| *byte == thread));
                    Reserve(Nothing).dealloc(slot, layout);
                }
            }
        };
        std::thread::scope(|scope| {
            (0..4).for_each(|thread| drop(scope.spawn(move || work(thread))))
        });
    }

    #[test]
    fn slots_are_apart_and_used_again() {
        let _in_use = IN_USE.lock();
        let layout = |size| Layout::from_size_align(size, 16).unwrap();
        let reserve = Reserve(Nothing);
        // The slots of all sizes, the small ones first.
        let count = 64 * WORDS.iter().sum::<usize>();
        for round in 0..3 {
            let fill = |i: usize| (i % 251) as u8;
            let taken: Vec<_> = (0..count)
                // SAFETY: sizes above zero.
                .map(|_| unsafe { reserve.alloc_zeroed(layout(200)) })
                .inspect(|pointer| assert!(!pointer.is_null()))
                .collect();
            assert!(is_low());
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
            assert!(!is_low());
        }
        // SAFETY: sizes above zero, and layouts of the allocations.
        unsafe {
            let small = reserve.alloc(layout(3));
            small.copy_from(b"abc".as_ptr(), 3);
            let grown = reserve.realloc(small, layout(3), 60_000);
            assert_eq!(std::slice::from_raw_parts(grown, 3), b"abc");
            assert!(reserve.realloc(grown, layout(60_000), 70_000).is_null());
            reserve.dealloc(grown, layout(60_000));
            assert!(reserve.alloc(Layout::from_size_align(8, 512).unwrap()).is_null());
        }
    }
}
