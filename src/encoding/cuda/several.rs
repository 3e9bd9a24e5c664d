//! SpMM with packed SELL on a GPU: several lanes share a row, each with one unit of adjacent
//! vectors.

use super::march::March;
use super::{Uploaded, Values, blocks};
use crate::device::{BLOCK, Buffer, Gpu, Kernel, Launch, Module, Ptr, Queue, Scratch};
use crate::encoding::Header;
use crate::encoding::long::Piece;
use crate::{Error, Precision, Scalar, ScalarKind};
use std::sync::Arc;

/// Largest number of bytes of `x` that the lanes of a row load together: a cache line.
const LINE: usize = 128;

/// Addresses and layout of the multivectors of a product on a GPU.
///
/// Element `c` of vector `v` is at `x[c · stride + v]`, row `r` of its product at
/// `y[r · row + v · vector]`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DeviceVectors<T> {
    pub(crate) x: Ptr<T>,
    pub(crate) stride: usize,
    pub(crate) y: Ptr<T>,
    pub(crate) row: usize,
    pub(crate) vector: usize,
    /// Number of vectors.
    pub(crate) count: usize,
}

impl<T: Scalar> DeviceVectors<T> {
    /// Largest number of vectors per launch.
    pub(crate) const MOST: usize = LINE / size_of::<T>();

    /// Numbers of vectors per unit for which kernels exist, widest first.
    const UNITS: &'static [usize] = match T::KIND {
        ScalarKind::F32 => &[4, 2],
        ScalarKind::F64 => &[2],
    };

    /// Widest unit in which `x` can be loaded; `None` if layout or alignment of the vectors permits
    /// none.
    pub(crate) fn unit(&self) -> Option<usize> {
        let fits = |&&unit: &&usize| self.stride.is_multiple_of(unit) && is_aligned(self.x, unit);
        Self::UNITS.iter().find(fits).copied()
    }

    /// Adds the kernel parameters of the vectors, for units of `unit` vectors.
    pub(super) fn args(&self, launch: Launch, unit: usize) -> Launch {
        let launch = launch.arg(self.x).arg((self.stride / unit) as u32).arg(self.y);
        let launch = launch.arg(self.row as u64).arg(self.vector as u64).arg(self.count as u32);
        launch.arg(u32::from(self.is_whole(unit)))
    }

    /// True if `y` can be stored in such units.
    fn is_whole(&self, unit: usize) -> bool {
        let whole = self.row.is_multiple_of(unit) && self.count.is_multiple_of(unit);
        whole && self.vector == 1 && is_aligned(self.y, unit)
    }
}

/// True if any slots are stored in groups of `group`. Slots of steps with several slots never are,
/// nor are fewer slots than a group. If none are, the kernels without groups read the same bytes,
/// and have enough registers for three steps of three slots at a time (`femrandom` with 8 vectors
/// in `f32` on an H200: 182 instead of 211 µs).
fn is_grouped(headers: &[Header], group: usize) -> bool {
    headers.iter().map(|header| header.shape()).any(|shape| shape.run == 1 && shape.full >= group)
}

/// True if units of `unit` numbers can be loaded or stored at `ptr`.
fn is_aligned<T>(ptr: Ptr<T>, unit: usize) -> bool {
    ptr.address().is_multiple_of((unit * size_of::<T>()) as u64)
}

/// State of SpMM in addition to the matrix.
#[derive(Debug)]
pub(crate) struct Several<T> {
    /// Kernels by unit; see [`DeviceVectors::UNITS`].
    kernels: Vec<(usize, Kernel)>,
    /// Sums of every piece of a long row.
    sums: Scratch<T>,
    /// Numbers of finished pieces, as for a product with one vector.
    done: Scratch<u32>,
    /// Sliding-window SpMM, which is faster for some numbers of vectors if all slices are diagonal.
    march: Option<Arc<March>>,
}

impl<T: Scalar> Uploaded<T> {
    /// Loads the SpMM kernels on the matrix's GPU.
    ///
    /// # Errors
    ///
    /// Errors of kernel compilation.
    pub(crate) fn several(&self, gpu: Gpu) -> Result<Several<T>, Error> {
        let file = match self.values {
            Values::Plain(_) => "multi_plain",
            Values::Codes(_) => "multi_coded",
            Values::Halves(Precision::Bf16, _) => "multi_bf16",
            Values::Halves(..) => "multi_f16",
            Values::Singles(_) => "multi_f32",
            Values::Same => "multi_same",
        };
        let headers = self.headers.to_vec()?;
        let group = if is_grouped(&headers, self.group) { self.group } else { 1 };
        let kernel = |&unit: &usize| {
            let module = Module::of(file, self.residency().whole());
            let kernel = gpu.kernel(module, &format!("{file}_v{group}_{}x{unit}", T::KIND))?;
            Ok((unit, kernel))
        };
        let kernels = DeviceVectors::<T>::UNITS.iter().map(kernel).collect::<Result<_, Error>>()?;
        let pieces = self.long.as_ref().map_or(0, |long| long.pieces.len());
        let sums = Scratch::new(gpu, pieces * DeviceVectors::<T>::MOST);
        // If the GPU does not have enough memory for it, the standard kernel is used.
        let march = match March::of(self, &headers, gpu) {
            Err(Error::GpuMemory { .. }) => None,
            march => march?.map(Arc::new),
        };
        Ok(Several { kernels, sums, done: Scratch::cleared(gpu, pieces), march })
    }

    /// Enqueues the product with a multivector of at most [`DeviceVectors::MOST`] vectors. `y` is
    /// overwritten without being read.
    ///
    /// # Errors
    ///
    /// Errors of the GPU.
    ///
    /// # Safety
    ///
    /// `several` belongs to this matrix, `vectors` have a [unit](DeviceVectors::unit), and `x` can
    /// be read up to the end of the last unit. The memory is that of the matrix's GPU. `x` and `y`
    /// do not overlap, and they, the matrix and `several` live until the product is done.
    pub(crate) unsafe fn multiply_several(
        &self,
        several: &Several<T>,
        queue: &Queue,
        vectors: DeviceVectors<T>,
    ) -> Result<(), Error> {
        if let Some(march) = several.march.as_ref().filter(|march| march.takes(&vectors)) {
            // A graph owns the memory it uses.
            if queue.records() {
                queue.keep(march.clone());
            }
            // SAFETY: the caller's promise.
            return unsafe { march.multiply(self, queue, vectors) };
        }
        let Some(unit) = vectors.unit() else { unreachable!("the caller has vectors with a unit") };
        let (_, kernel) =
            several.kernels.iter().find(|kernel| kernel.0 == unit).expect("one for every unit");
        let shift = vectors.count.div_ceil(unit).next_power_of_two().trailing_zeros();
        let or_null = |array: &Option<Buffer<u32>>| array.as_ref().map_or(Ptr::NULL, Buffer::ptr);
        let pieces = self.long.as_ref().map_or(0, |long| long.pieces.len());
        // As many warps per slice as lanes per row.
        let launch = Launch::new(blocks(pieces) + blocks(self.headers.len() << shift), BLOCK);
        let launch = launch.arg(self.headers.ptr()).arg(self.values.ptr()).arg(self.index.ptr());
        let launch =
            launch.arg(self.dictionary.ptr()).arg(or_null(&self.perm)).arg(or_null(&self.skip));
        let launch = launch.arg(self.nrows as u32);
        let launch = match &self.long {
            Some(long) => {
                launch.arg(long.pieces.ptr()).arg(long.col_idx.ptr()).arg(long.values.ptr())
            }
            None => launch.arg(Ptr::<Piece>::NULL).arg(Ptr::<u32>::NULL).arg(Ptr::<u8>::NULL),
        };
        let launch =
            launch.arg(pieces as u32).arg(several.sums.on(queue)?).arg(several.done.on(queue)?);
        let launch = vectors.args(launch, unit).arg(shift);
        // SAFETY: these are the parameters of all kernels in multi.cuh. Every row has one lane per
        // unit, and every piece has room for as many sums; the counters are zero before and
        // afterwards. The vectors are the caller's promise.
        unsafe { kernel.launch(queue, launch) }
    }
}

impl<T> Several<T> {
    /// Size of the arrays made for SpMM, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.march.as_ref().map_or(0, |march| march.bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encoding::{Order, PackedSlices, Packing, ValueEncoding};
    use crate::matrix::gallery::Spec;

    #[test]
    fn where_nothing_is_grouped_the_bytes_are_those_without_groups() {
        let packed = |spec: &str, values, group| {
            let a = spec.parse::<Spec>().unwrap().generate::<f32>().unwrap();
            let packing = Packing { values, group, ..Packing::default() };
            PackedSlices::pack(a.view(), Order::Windows(512), packing).unwrap()
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

    fn vectors<T>(x: u64, stride: usize, y: u64, count: usize) -> DeviceVectors<T> {
        let (x, y) = (Ptr::from_address(x), Ptr::from_address(y));
        DeviceVectors { x, stride, y, row: stride, vector: 1, count }
    }

    #[test]
    fn units_are_as_wide_as_the_vectors_stand() {
        let unit = |x, stride| vectors::<f32>(x, stride, 0, stride).unit();
        assert_eq!([unit(256, 8), unit(256, 6), unit(256, 7)], [Some(4), Some(2), None]);
        assert_eq!([unit(264, 8), unit(260, 8)], [Some(2), None], "where they begin counts, too");
        let unit = |x, stride| vectors::<f64>(x, stride, 0, stride).unit();
        assert_eq!(
            [unit(256, 8), unit(256, 2), unit(256, 3), unit(264, 2)],
            [Some(2), Some(2), None, None]
        );
    }

    #[test]
    fn units_are_stored_whole_only_where_they_are() {
        let whole = |y, stride, count| vectors::<f32>(0, stride, y, count).is_whole(4);
        assert_eq!(
            [whole(16, 8, 8), whole(8, 8, 8), whole(16, 6, 4), whole(16, 8, 6)],
            [true, false, false, false]
        );
        assert!(!DeviceVectors { vector: 9, ..vectors::<f32>(0, 8, 0, 8) }.is_whole(4));
    }
}
