//! Several vectors at once with packed slices on a GPU: lanes that share a row, each with a unit of vectors side by side.

use super::march::March;
use super::{Uploaded, Values, blocks};
use crate::device::{BLOCK, Buffer, Gpu, Kernel, Launch, Module, Ptr, Queue, Scratch};
use crate::encoding::Header;
use crate::encoding::long::Piece;
use crate::{Error, Precision, Scalar, ScalarKind};
use std::sync::Arc;

/// Bytes of factors that the lanes of a row load together at most: a line of the cache.
const LINE: usize = 128;

/// Where several vectors are on a GPU, and where their products go.
///
/// Element `c` of vector `v` is at `x[c · stride + v]`, row `r` of its product at `y[r · row + v · vector]`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DeviceVectors<T> {
    pub(crate) x: Ptr<T>,
    pub(crate) stride: usize,
    pub(crate) y: Ptr<T>,
    pub(crate) row: usize,
    pub(crate) vector: usize,
    /// How many vectors there are.
    pub(crate) count: usize,
}

impl<T: Scalar> DeviceVectors<T> {
    /// Vectors that one launch takes at most.
    pub(crate) const MOST: usize = LINE / size_of::<T>();

    /// What there is kernels for: how many vectors a unit has, the widest first.
    const UNITS: &'static [usize] = match T::KIND {
        ScalarKind::F32 => &[4, 2],
        ScalarKind::F64 => &[2],
    };

    /// The widest unit in which `x` can be loaded; none when the elements of the vectors do not stand so.
    pub(crate) fn unit(&self) -> Option<usize> {
        let fits = |&&unit: &&usize| self.stride.is_multiple_of(unit) && is_aligned(self.x, unit);
        Self::UNITS.iter().find(fits).copied()
    }

    /// The parameters that say where they are, in units of so many vectors.
    pub(super) fn args(&self, launch: Launch, unit: usize) -> Launch {
        let launch = launch.arg(self.x).arg((self.stride / unit) as u32).arg(self.y);
        let launch = launch.arg(self.row as u64).arg(self.vector as u64).arg(self.count as u32);
        launch.arg(u32::from(self.is_whole(unit)))
    }

    /// Whether `y` can be stored in such units.
    fn is_whole(&self, unit: usize) -> bool {
        let whole = self.row.is_multiple_of(unit) && self.count.is_multiple_of(unit);
        whole && self.vector == 1 && is_aligned(self.y, unit)
    }
}

/// Whether any slots stand in groups of so many: those of steps of several slots never do, nor do fewer than a group. Where none does, the
/// kernels without groups take the same bytes, and have registers for three steps of three slots at a time (`femrandom` with 8 vectors in `f32`
/// on an H200: 182 in place of 211 µs).
fn is_grouped(headers: &[Header], group: usize) -> bool {
    headers.iter().map(|header| header.shape()).any(|shape| shape.run == 1 && shape.full >= group)
}

/// Whether units of so many numbers can be loaded or stored there.
fn is_aligned<T>(ptr: Ptr<T>, unit: usize) -> bool {
    ptr.address().is_multiple_of((unit * size_of::<T>()) as u64)
}

/// What products with several vectors need beside the matrix.
#[derive(Debug)]
pub(crate) struct Several<T> {
    /// As [`DeviceVectors::UNITS`].
    kernels: Vec<(usize, Kernel)>,
    /// The sums of every piece of a long row.
    sums: Scratch<T>,
    /// As those of a product with one vector.
    done: Scratch<u32>,
    /// What is quicker where all slices are diagonal, for some numbers of vectors.
    march: Option<Arc<March>>,
}

impl<T: Scalar> Uploaded<T> {
    /// Makes the kernels for several vectors ready on the matrix's GPU.
    ///
    /// # Errors
    ///
    /// What compiling gives.
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
        // Where there is no room for it the other way is taken.
        let march = match March::of(self, &headers, gpu) {
            Err(Error::GpuMemory { .. }) => None,
            march => march?.map(Arc::new),
        };
        Ok(Several { kernels, sums, done: Scratch::cleared(gpu, pieces), march })
    }

    /// Enqueues the products with several vectors, at most [`DeviceVectors::MOST`]; `y` is overwritten without being read.
    ///
    /// # Errors
    ///
    /// What the GPU gives.
    ///
    /// # Safety
    ///
    /// `several` is this matrix's, `vectors` have a [unit](DeviceVectors::unit), and `x` can be read as far as the last unit reaches. The
    /// memory is that of the matrix's GPU; `x` and `y` do not overlap, and they, the matrix and `several` live until it is done.
    pub(crate) unsafe fn multiply_several(
        &self,
        several: &Several<T>,
        queue: &Queue,
        vectors: DeviceVectors<T>,
    ) -> Result<(), Error> {
        if let Some(march) = several.march.as_ref().filter(|march| march.takes(&vectors)) {
            // A graph owns what it uses.
            if queue.records() {
                queue.keep(march.clone());
            }
            // SAFETY: the caller's promise.
            return unsafe { march.multiply(self, queue, vectors) };
        }
        let Some(unit) = vectors.unit() else { unreachable!("the caller has vectors with a unit") };
        let (_, kernel) = several.kernels.iter().find(|kernel| kernel.0 == unit).expect("one for every unit");
        let shift = vectors.count.div_ceil(unit).next_power_of_two().trailing_zeros();
        let or_null = |array: &Option<Buffer<u32>>| array.as_ref().map_or(Ptr::NULL, Buffer::ptr);
        let pieces = self.long.as_ref().map_or(0, |long| long.pieces.len());
        // As many warps for a slice as lanes for a row.
        let launch = Launch::new(blocks(pieces) + blocks(self.headers.len() << shift), BLOCK);
        let launch = launch.arg(self.headers.ptr()).arg(self.values.ptr()).arg(self.index.ptr());
        let launch = launch.arg(self.dictionary.ptr()).arg(or_null(&self.perm)).arg(or_null(&self.skip));
        let launch = launch.arg(self.nrows as u32);
        let launch = match &self.long {
            Some(long) => launch.arg(long.pieces.ptr()).arg(long.col_idx.ptr()).arg(long.values.ptr()),
            None => launch.arg(Ptr::<Piece>::NULL).arg(Ptr::<u32>::NULL).arg(Ptr::<u8>::NULL),
        };
        let launch = launch.arg(pieces as u32).arg(several.sums.on(queue)?).arg(several.done.on(queue)?);
        let launch = vectors.args(launch, unit).arg(shift);
        // SAFETY: these are the parameters of all kernels in multi.cuh. Every row has as many lanes as there are units, and every piece room
        // for as many sums; the counters were zero and are so again afterwards. The vectors are the caller's promise.
        unsafe { kernel.launch(queue, launch) }
    }
}

impl<T> Several<T> {
    /// Bytes of what was made of the matrix for it.
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
        assert_eq!([unit(256, 8), unit(256, 2), unit(256, 3), unit(264, 2)], [Some(2), Some(2), None, None]);
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
