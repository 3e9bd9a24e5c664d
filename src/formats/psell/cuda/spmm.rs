//! SpMM with packed SELL on a GPU: several lanes share a row, each with one unit of adjacent
//! vectors.

use super::super::Header;
use super::window::SlidingWindow;
use super::{DevicePsell, blocks};
use crate::device::{BLOCK, Buffer, Gpu, Launch, Module, Ptr, Queue, Scratch, kernels};
use crate::formats::{DeviceMatrix, DeviceSpmm, DeviceVectors, UnitKernels};
use crate::{Error, Scalar};
use std::sync::Arc;

/// True if any slots are stored in groups of `group`. Slots of steps with several slots never are,
/// nor are fewer slots than a group. If none are, the kernels without groups read the same bytes,
/// and have enough registers for three steps of three slots at a time (`femrandom` with 8 vectors
/// in `f32` on an H200: 182 instead of 211 µs).
fn is_grouped(headers: &[Header], group: usize) -> bool {
    headers
        .iter()
        .map(|header| header.shape())
        .any(|shape| shape.step_columns == 1 && shape.full >= group)
}

/// SpMM with a packed SELL matrix on its GPU.
#[derive(Debug)]
pub(crate) struct Spmm<T> {
    matrix: Arc<DevicePsell<T>>,
    kernels: UnitKernels,
    /// Sums of every piece of a long row.
    sums: Scratch<T>,
    /// Numbers of finished pieces, as for a product with one vector.
    done: Scratch<u32>,
    /// Sliding-window SpMM, which is faster for some numbers of vectors if all slices are diagonal.
    window: Option<Arc<SlidingWindow>>,
}

impl<T: Scalar> Spmm<T> {
    /// Loads the kernels on the matrix's GPU. Without tables there is no sliding window.
    ///
    /// # Errors
    ///
    /// Errors of kernel compilation.
    pub(crate) fn new(
        matrix: Arc<DevicePsell<T>>,
        gpu: Gpu,
        has_tables: bool,
    ) -> Result<Self, Error> {
        let module_name = matrix.values.form().spmm_module();
        let headers = matrix.headers.to_vec()?;
        let group = if is_grouped(&headers, matrix.group) { matrix.group } else { 1 };
        let module = Module::of(module_name, matrix.residency().whole());
        let name = |unit| format!("{module_name}_v{group}_{}x{unit}", T::KIND);
        let kernels = UnitKernels::load::<T>(gpu, module, name)?;
        let pieces = matrix.long.as_ref().map_or(0, |long| long.pieces.len());
        let sums = Scratch::new(gpu, pieces * DeviceVectors::<T>::MAX);
        // If the GPU does not have enough memory for it, the standard kernel is used.
        let window = match has_tables.then(|| SlidingWindow::of(&matrix, &headers, gpu)) {
            None | Some(Err(Error::GpuMemory { .. })) => None,
            Some(window) => window?.map(Arc::new),
        };
        Ok(Self { kernels, sums, done: Scratch::cleared(gpu, pieces), window, matrix })
    }
}

impl<T: Scalar> DeviceSpmm<T> for Spmm<T> {
    unsafe fn multiply(&self, queue: &Queue, vectors: DeviceVectors<T>) -> Result<(), Error> {
        let Self { matrix, kernels, sums, done, window } = self;
        if let Some(window) = window.as_ref().filter(|window| window.supports(&vectors)) {
            // A graph owns the memory it uses.
            if queue.records() {
                queue.keep(window.clone());
            }
            // SAFETY: the caller's promise.
            return unsafe { window.multiply(matrix, queue, vectors) };
        }
        let (unit, kernel) = kernels.of(&vectors);
        let shift = vectors.lane_shift(unit);
        let or_null = |array: &Option<Buffer<u32>>| array.as_ref().map_or(Ptr::NULL, Buffer::ptr);
        let pieces = matrix.long.as_ref().map_or(0, |long| long.pieces.len());
        // As many warps per slice as lanes per row.
        let launch = Launch::new(blocks(pieces) + blocks(matrix.headers.len() << shift), BLOCK);
        let (long_pieces, long_cols, long_values) = match &matrix.long {
            Some(long) => (long.pieces.ptr(), long.col_idx.ptr(), long.values.ptr()),
            None => (Ptr::NULL, Ptr::NULL, Ptr::NULL),
        };
        let launch = launch.with(kernels::psell_spmm::Spmm {
            headers: matrix.headers.ptr().cast(),
            values: matrix.values.ptr(),
            index: matrix.index.ptr().cast(),
            dictionary: matrix.dictionary.ptr(),
            perm: or_null(&matrix.perm),
            skip: or_null(&matrix.skip),
            nrows: matrix.nrows as u32,
            pieces: long_pieces,
            long_cols,
            long_values,
            long_count: pieces as u32,
            long_sums: sums.on(queue)?,
            done: done.on(queue)?,
            vectors: vectors.in_units(unit),
            shift,
        });
        // SAFETY: the kernel is one of psell_spmm.cuh. Every row has one lane per unit, and every
        // piece has room for as many sums; the counters are zero before and afterwards. The vectors
        // are the caller's promise.
        unsafe { kernel.launch(queue, launch) }
    }

    fn bytes(&self) -> u64 {
        self.window.as_ref().map_or(0, |window| window.bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::{HostPsell, Order, Packing, ValueEncoding};
    use super::*;
    use crate::matrix::gallery::Spec;

    #[test]
    fn where_nothing_is_grouped_the_bytes_are_those_without_groups() {
        let packed = |spec: &str, values, group| {
            let a = spec.parse::<Spec>().unwrap().generate::<f32>().unwrap();
            let packing = Packing { values, group, ..Packing::default() };
            HostPsell::pack(a.view(), Order::Windows(512), packing).unwrap()
        };
        for (spec, values, grouped) in [
            ("femrandom,nodes=900", ValueEncoding::Plain, false),
            ("femrandom,nodes=900,values=few", ValueEncoding::Packed, false),
            ("banded,rows=900", ValueEncoding::Plain, true),
            ("stencil27,n=9", ValueEncoding::Plain, true),
        ] {
            let [single, four] = [1, 4].map(|group| packed(spec, values, group));
            assert_eq!(is_grouped(&four.headers, 4), grouped, "{spec}");
            let same = (&single.headers, &single.values, &single.index, &single.dictionary)
                == (&four.headers, &four.values, &four.index, &four.dictionary);
            assert_eq!(same, !grouped, "{spec}");
        }
    }
}
