//! The inner loop of all slot-major formats: several adjacent rows at a time, slot after slot.

use super::raw::{element, element_at};
use super::simd::{Vector, prefetch};
use crate::Scalar;

/// Stored slots and the vector that they multiply.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slots<'a, T> {
    /// Column of each slot.
    pub(crate) col_idx: &'a [u32],
    /// Value of each slot.
    pub(crate) values: &'a [T],
    /// The vector.
    pub(crate) x: &'a [T],
    /// True if consecutive columns across lanes are common enough to check for them.
    pub(crate) consecutive: bool,
    /// Prefetch distance, in slots. The hardware prefetcher follows a few streams, but not the
    /// dozens of a column-major layout, and not far enough ahead while the gathers fill its queues.
    pub(crate) ahead: usize,
}

/// Multiplies `G · LANES` adjacent rows. Slot `k` of the first row is at `offset(k)`, those of the
/// other rows follow.
///
/// The slots before `full` hold an entry in every lane. Those from `full` to `width` hold an entry
/// in the lanes of `mask(k, lane)`, for the vector that begins at row `lane` of the strip; nothing
/// is read for the other lanes.
///
/// # Safety
///
/// The machine has the instructions of `V`. For every lane that holds an entry, the slot is inside
/// `col_idx` and `values`, and its column inside `x`.
#[inline(always)]
pub(crate) unsafe fn strip<T: Scalar, V: Vector<T>, const G: usize>(
    slots: Slots<'_, T>,
    full: usize,
    width: usize,
    offset: impl Fn(usize) -> usize,
    mask: impl Fn(usize, usize) -> u32,
) -> [V; G] {
    // SAFETY: the caller's promise covers every slot touched below.
    unsafe {
        if const { !V::COMPACT } && slots.consecutive {
            strip_as::<T, V, G, true>(slots, full, width, offset, mask)
        } else {
            strip_as::<T, V, G, false>(slots, full, width, offset, mask)
        }
    }
}

#[inline(always)]
unsafe fn strip_as<T: Scalar, V: Vector<T>, const G: usize, const CONSECUTIVE: bool>(
    slots: Slots<'_, T>,
    full: usize,
    width: usize,
    offset: impl Fn(usize) -> usize,
    mask: impl Fn(usize, usize) -> u32,
) -> [V; G] {
    let (col_idx, values, x) = (slots.col_idx.as_ptr(), slots.values.as_ptr(), slots.x.as_ptr());
    // SAFETY: the caller's promise.
    unsafe {
        let mut acc = [V::zero(); G];
        for k in 0..full {
            let start = offset(k);
            for (g, acc) in acc.iter_mut().enumerate() {
                let at = start + g * V::LANES;
                prefetch(values.wrapping_add(at + slots.ahead));
                prefetch(col_idx.wrapping_add(at + slots.ahead));
                *acc = multiply::<T, V, CONSECUTIVE>(
                    *acc,
                    element_at(values, at),
                    x,
                    element_at(col_idx, at),
                );
            }
        }
        for k in full..width {
            let start = offset(k);
            for (g, acc) in acc.iter_mut().enumerate() {
                let at = start + g * V::LANES;
                match mask(k, g * V::LANES) {
                    0 => {}
                    m if m == V::ALL => {
                        prefetch(values.wrapping_add(at + slots.ahead));
                        prefetch(col_idx.wrapping_add(at + slots.ahead));
                        *acc = multiply::<T, V, CONSECUTIVE>(
                            *acc,
                            element_at(values, at),
                            x,
                            element_at(col_idx, at),
                        );
                    }
                    m => {
                        *acc = acc.mul_add_masked(
                            m,
                            element_at(values, at),
                            x,
                            element_at(col_idx, at),
                        )
                    }
                }
            }
        }
        acc
    }
}

/// Multiplies one vector of slots in which every lane holds an entry.
#[inline(always)]
unsafe fn multiply<T: Scalar, V: Vector<T>, const CONSECUTIVE: bool>(
    acc: V,
    values: *const T,
    x: *const T,
    col: *const u32,
) -> V {
    // SAFETY: the caller's promise; consecutive columns are each a column of `x`.
    unsafe {
        let x = if CONSECUTIVE && V::consecutive(col) {
            V::load(element_at(x, element(col, 0) as usize))
        } else {
            V::gather(x, col)
        };
        acc.mul_add(V::load(values), x)
    }
}
